"""The operations under torch.func, forward-mode differentiation and torch.compile, for every basis."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from zoo.errors import UsageError
from zoo.layers import OrthogonalSelfAttention
from zoo.ops import matrix_exp, naive, orthogonal_attention, polar

DEFAULTS = {"newton-schulz": 12, "polar-express": 8}
BASES = ["gram", "qr", *DEFAULTS]
FIXED = [8.0, 40.0]  # one action, doubled
every_basis = pytest.mark.parametrize("basis", BASES)
fixed = pytest.mark.parametrize("max_norm", FIXED)
bounds = pytest.mark.parametrize("max_norm", [*FIXED, None])
pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop:UserWarning",  # an operator that vmap runs one by one
    "ignore:`torch.jit.script` is deprecated",  # torch's own forward-mode formulas
)

ALPHA = torch.tensor([0.3, -0.2], dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fast(basis: str, max_norm: float | None) -> Callable[..., Tensor]:
    return lambda q, k, v, alpha: orthogonal_attention(q, k, v, alpha, basis=basis, max_norm=max_norm)


def literal(basis: str) -> Callable[..., Tensor]:
    """Without a basis, which QR's is equal to: five tokens span less than six columns, and torch's has no gradient."""
    if basis in DEFAULTS:
        return lambda q, k, v, alpha: naive.iterated_attention(q, k, v, alpha, basis, DEFAULTS[basis])
    return naive.orthogonal_attention


def packed(function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """The function of one tensor (3, heads, tokens, head_dim)."""
    return lambda x: function(x[0], x[1], x[2], ALPHA)


def close(found: object, truth: object) -> None:
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-9)


# --- vmap ---------------------------------------------------------------------------------------------------------


@every_basis
@fixed
@pytest.mark.parametrize("mapped", ["q k v", "q", "k", "v", "q k", "alpha", "q k v alpha"])
def test_vmap(mapped: str, max_norm: float, basis: str) -> None:
    """Whatever is mapped, the rest is held."""
    inputs = {name: normal(4, 2, 5, 3, seed=i) for i, name in enumerate("qkv")}
    inputs["alpha"] = torch.stack([ALPHA * s for s in (1.0, -0.5, 0.0, 0.7)])
    names = mapped.split()
    arguments = [x if name in names else x[0] for name, x in inputs.items()]
    found = vmap(fast(basis, max_norm), in_dims=tuple(0 if name in names else None for name in inputs))(*arguments)
    one_by_one = [literal(basis)(*(x[i] if name in names else x[0] for name, x in inputs.items())) for i in range(4)]
    close(found, torch.stack(one_by_one))


@every_basis
@pytest.mark.parametrize("mapped", ["q k v", "k", "alpha"])
def test_vmap_cannot_choose_from_the_data(mapped: str, basis: str) -> None:
    inputs = {name: normal(4, 2, 5, 3, seed=i) for i, name in enumerate("qkv")}
    inputs["alpha"] = torch.stack([ALPHA] * 4)
    arguments = [x if name in mapped.split() else x[0] for name, x in inputs.items()]
    in_dims = tuple(0 if name in mapped.split() else None for name in inputs)
    with pytest.raises(UsageError, match=r"max_norm=None .* give max_norm a number") as caught:
        vmap(fast(basis, None), in_dims=in_dims)(*arguments)
    assert "\n" not in str(caught.value)


@every_basis
@bounds
def test_vmap_over_values_alone_can(max_norm: float | None, basis: str) -> None:
    q, k, v = normal(2, 5, 3), normal(2, 5, 3, seed=1), normal(4, 2, 5, 3, seed=2)
    found = vmap(lambda x: fast(basis, max_norm)(q, k, x, ALPHA))(v)
    close(found, torch.stack([literal(basis)(q, k, x, ALPHA) for x in v]))


@every_basis
@fixed
@pytest.mark.parametrize("tokens", [1, 3])
def test_vmap_of_few_tokens_and_a_mask(tokens: int, max_norm: float, basis: str) -> None:
    q, k, v = (normal(4, 2, tokens, 3, seed=i) for i in range(3))
    keep = torch.arange(tokens).expand(4, tokens) < torch.tensor([[0], [1], [2], [3]])

    def masked(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return orthogonal_attention(q, k, v, ALPHA, basis=basis, max_norm=max_norm, key_mask=keep)

    close(vmap(masked)(q, k, v, keep), masked(q, k, v, keep))


# --- derivatives --------------------------------------------------------------------------------------------------


@every_basis
@bounds
def test_first_derivatives(max_norm: float | None, basis: str) -> None:
    ours, theirs = packed(fast(basis, max_norm)), packed(literal(basis))
    x, along = normal(3, 2, 5, 3), normal(3, 2, 5, 3, seed=1)
    jacobian = jacrev(theirs)(x)
    close(jacrev(ours)(x), jacobian)
    close(jacfwd(ours)(x), jacobian)
    moved = torch.einsum("htdchse,chse->htd", jacobian, along)
    close(jvp(ours, (x,), (along,)), (theirs(x), moved))
    out, pull = vjp(ours, x)
    close(out, theirs(x))
    close(pull(along[0])[0], torch.einsum("htd,htdchse->chse", along[0], jacobian))
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(ours(forward_ad.make_dual(x, along)))
        close((dual.primal, dual.tangent), (theirs(x), moved))


@every_basis
@bounds
def test_derivatives_by_alpha(max_norm: float | None, basis: str) -> None:
    q, k, v = normal(3, 2, 5, 3)

    def loss(function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda alpha: function(q, k, v, alpha)[..., 0].square().sum()

    for alpha in (ALPHA, torch.tensor(0.3, dtype=torch.float64)):
        close(grad(loss(fast(basis, max_norm)))(alpha), grad(loss(literal(basis)))(alpha))
        close(hessian(loss(fast(basis, max_norm)))(alpha), jacrev(jacrev(loss(literal(basis))))(alpha))


@every_basis
@bounds
def test_hessian(max_norm: float | None, basis: str) -> None:
    x = normal(3, 2, 4, 2)
    found = hessian(lambda x: packed(fast(basis, max_norm))(x)[..., 0].sum())(x)
    close(found, jacrev(jacrev(lambda x: packed(literal(basis))(x)[..., 0].sum()))(x))


@every_basis
@fixed
def test_gradients_of_every_sample(max_norm: float, basis: str) -> None:
    x = normal(4, 3, 2, 5, 3)

    def loss(function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: packed(function)(x)[..., 0].square().sum()

    found = vmap(grad(loss(fast(basis, max_norm))))(x)
    close(found, torch.stack([grad(loss(literal(basis)))(y) for y in x]))


# --- the layer ----------------------------------------------------------------------------------------------------


@every_basis
@fixed
def test_the_layer_by_functional_call(max_norm: float, basis: str) -> None:
    """An ensemble of layers, and the gradient of every sample, against one after the other."""
    layers = [
        OrthogonalSelfAttention(8, 2, basis=basis, max_norm=max_norm, alpha=0.3, dtype=torch.float64) for _ in "ab"
    ]
    x = normal(3, 6, 8)
    stacked, _ = torch.func.stack_module_state(layers)
    found = vmap(lambda weights: functional_call(layers[0], weights, (x,)))(stacked)
    close(found, torch.stack([layer(x) for layer in layers]))
    weights = {name: p.detach() for name, p in layers[0].named_parameters()}

    def loss(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(layers[0], weights, (sample[None],)).square()[..., 0].sum()

    per_sample = vmap(grad(loss), in_dims=(None, 0))(weights, x)
    for i, sample in enumerate(x):
        layers[0].zero_grad()
        layers[0](sample[None]).square()[..., 0].sum().backward()
        for name, p in layers[0].named_parameters():
            close(per_sample[name][i], p.grad)


# --- polar and matrix_exp -----------------------------------------------------------------------------------------


OTHERS = [
    pytest.param(matrix_exp, torch.linalg.matrix_exp, id="matrix_exp"),
    *(
        pytest.param(
            lambda x, method=method: polar(x, method, 5),
            lambda x, method=method: naive.polar(x, method, 5),
            id=method,
        )
        for method in DEFAULTS
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), OTHERS)
def test_polar_and_matrix_exp(ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor]) -> None:
    x, along = normal(4, 3, 3), normal(3, 3, seed=1)
    close(vmap(ours)(x), theirs(x))
    close(vmap(ours, in_dims=2)(x.movedim(0, 2)), theirs(x))
    jacobian = jacrev(theirs)(x[0])
    close(jacrev(ours)(x[0]), jacobian)
    close(jacfwd(ours)(x[0]), jacobian)
    close(jvp(ours, (x[0],), (along,))[1], torch.einsum("ijkl,kl->ij", jacobian, along))
    close(hessian(lambda x: ours(x)[0].sum())(x[0]), jacrev(jacrev(lambda x: theirs(x)[0].sum()))(x[0]))
    found = vmap(grad(lambda x: ours(x).square()[0].sum()))(x)
    close(found, torch.stack([grad(lambda x: theirs(x).square()[0].sum())(y) for y in x]))
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(ours(forward_ad.make_dual(x[0], along))).tangent
        close(tangent, torch.einsum("ijkl,kl->ij", jacobian, along))


# --- torch.compile ------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, basis: str, max_norm: float) -> None:
        super().__init__()
        self.alpha = nn.Parameter(ALPHA.clone())
        self.basis, self.max_norm = basis, max_norm

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return orthogonal_attention(q, k, v, self.alpha, basis=self.basis, max_norm=self.max_norm)


@every_basis
@fixed
@pytest.mark.usefixtures("fresh_dynamo")
def test_compiles_whole_with_gradients(max_norm: float, basis: str) -> None:
    model = Attention(basis, max_norm)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    inputs = [normal(2, 2, 7, 3, seed=i).requires_grad_() for i in range(3)]
    found, plain = compiled(*inputs), model(*inputs)
    close(found, plain)
    wanted = (*inputs, model.alpha)
    grads = [torch.autograd.grad(out.square()[..., 0].sum(), wanted) for out in (found, plain)]
    close(*grads)
    with torch.no_grad():
        close(compiled(*inputs), plain)


@pytest.mark.parametrize("max_norm", [8.0, 40.0])
@pytest.mark.parametrize("basis", ["gram", "newton-schulz"])
def test_compiled_vmap(basis: str, max_norm: float) -> None:
    torch._dynamo.reset()
    q, k, v = torch.randn(3, 4, 2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return orthogonal_attention(q, k, v, 0.3, basis=basis, max_norm=max_norm)

    found = torch.compile(torch.func.vmap(attend), backend="eager", fullgraph=True)(q, k, v)
    torch.testing.assert_close(found, attend(q, k, v), rtol=0, atol=1e-11)
