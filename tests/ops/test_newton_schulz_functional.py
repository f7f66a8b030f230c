"""The Newton-Schulz transformation under every way of differentiating, compiling, tracing and exporting it."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck
from torch.func import hessian, jacfwd, jacrev, jvp, vjp, vmap

from zoo.ops import naive, newton_schulz

Function = Callable[[Tensor], Tensor]
every_step = pytest.mark.parametrize("steps", [1, 3])
every_shape = pytest.mark.parametrize("shape", [(5, 3), (3, 5), (1, 3)], ids=str)
pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop:UserWarning",  # an operator that vmap runs one by one
    "ignore:`torch.jit:DeprecationWarning",  # torch's own forward-mode formulas, and the tracing asked for here
    "ignore:`torch.jit:FutureWarning",
    "ignore:Converting a tensor to a Python boolean",  # a trace is of one number of tokens
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(found: object, truth: object) -> None:
    torch.testing.assert_close(found, truth, rtol=1e-10, atol=1e-10)


def pair(steps: int, **how: object) -> tuple[Function, Function]:
    return lambda x: newton_schulz(x, steps=steps, **how), lambda x: naive.newton_schulz(x, steps=steps, **how)


# --- derivatives --------------------------------------------------------------------------------------------------

REGIMES = {  # which of the two clamps is at work on matrices of norm one, seen from the norms
    "neither": {},
    "unclamped": {"eps": 0.0},
    "before": {"eps": 1.1},
    "after": {"eps": 0.5, "coefficients": (0.3, -0.1, 0.05)},
    "both": {"eps": 5.0},
}


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (1, 2)], ids=str)
def test_first_and_second_derivatives_by_differences(shape: tuple[int, int], steps: int, regime: str) -> None:
    x = normal(2, *shape)
    x = (x / torch.linalg.matrix_norm(x, keepdim=True)).requires_grad_()
    ours, theirs = pair(steps, **REGIMES[regime])
    close(ours(x), theirs(x))
    assert gradcheck(ours, (x,), check_forward_ad=True)
    assert gradgradcheck(ours, (x,))


@every_step
@every_shape
def test_derivatives_of_every_kind(shape: tuple[int, int], steps: int) -> None:
    ours, theirs = pair(steps)
    x, along = normal(*shape), normal(*shape, seed=1)
    jacobian = jacrev(theirs)(x)
    close(jacrev(ours)(x), jacobian)
    close(jacfwd(ours)(x), jacobian)
    moved = torch.einsum("ijkl,kl->ij", jacobian, along)
    close(jvp(ours, (x,), (along,)), (theirs(x), moved))
    close(vjp(ours, x)[1](along)[0], torch.einsum("ij,ijkl->kl", along, jacobian))
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(ours(forward_ad.make_dual(x, along)))
        close((dual.primal, dual.tangent), (theirs(x), moved))
    close(*(hessian(lambda x, f=f: f(x)[..., 0].square().sum())(x) for f in (ours, theirs)))


@every_step
def test_a_penalty_on_the_gradient(steps: int) -> None:
    """Backward through a backward, as autograd does it outside of torch.func."""
    found = []
    for function in pair(steps):
        x = normal(2, 7, 3).requires_grad_()
        (first,) = grad(function(x)[..., 0].sum(), x, create_graph=True)
        found.append(grad(first.square().sum(), x)[0])
    close(*found)


@every_step
def test_a_gradient_that_is_no_plain_tensor(steps: int) -> None:
    """Expanded, as the sum's is; and none at all where nothing is asked."""
    x, y = normal(2, 7, 3).requires_grad_(), normal(2, 7, 3).requires_grad_()
    newton_schulz(x, steps=steps).sum().backward()
    naive.newton_schulz(y, steps=steps).sum().backward()
    close(x.grad, y.grad)
    assert not newton_schulz(x.detach(), steps=steps).requires_grad
    with torch.inference_mode():
        close(newton_schulz(x, steps=steps), naive.newton_schulz(x, steps=steps))


@every_step
@pytest.mark.parametrize("eps", [1e-6, 0.0])
def test_vmap(eps: float, steps: int) -> None:
    ours, theirs = pair(steps, eps=eps)
    x = normal(4, 2, 7, 3)
    close(vmap(ours)(x), theirs(x))
    close(vmap(ours, in_dims=3)(x.movedim(0, 3)), theirs(x))
    close(*(vmap(torch.func.grad(lambda x, f=f: f(x)[..., 0].square().sum()))(x) for f in (ours, theirs)))


# --- what it leaves alone -----------------------------------------------------------------------------------------


@every_step
@pytest.mark.parametrize("eps", [1e-6, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (1, 4), (4, 1)], ids=str)
def test_inputs_stay_and_results_repeat(shape: tuple[int, int], dtype: torch.dtype, eps: float, steps: int) -> None:
    x, weight = normal(3, *shape).to(dtype), normal(3, *shape, seed=1).to(dtype)
    kept = x.clone(), weight.clone()
    results = []
    for _ in range(2):
        followed = x.detach().requires_grad_()
        out = newton_schulz(followed, steps=steps, eps=eps)
        results.append((out.detach(), grad(out, followed, weight)[0], newton_schulz(x, steps=steps, eps=eps)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert torch.equal(x, kept[0]) and torch.equal(weight, kept[1])
    assert all(y.is_contiguous() and y.data_ptr() != x.data_ptr() for y in results[0])


@every_step
def test_on_the_meta_device(steps: int) -> None:
    x = torch.empty(2, 3, 9, 4, device="meta", requires_grad=True)
    out = newton_schulz(x, steps=steps)
    assert out.shape == x.shape and out.device.type == "meta"
    assert grad(out.sum(), x)[0].shape == x.shape
    assert newton_schulz(x.detach(), steps=steps, eps=0.0).shape == x.shape


# --- compiled, exported, traced -----------------------------------------------------------------------------------


class Model(nn.Module):
    """The least model around the op: (batch, tokens, 8) -> the same, two heads."""

    def __init__(self, steps: int, eps: float = 1e-6) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.value = nn.Linear(8, 8, bias=False)
        self.value.weight.data.normal_(std=0.5, generator=generator)
        self.steps, self.eps = steps, eps

    def forward(self, x: Tensor) -> Tensor:
        heads = self.value(x).unflatten(-1, (2, 4)).transpose(-2, -3)
        return newton_schulz(heads, steps=self.steps, eps=self.eps).transpose(-2, -3).flatten(-2)


def images(batch: int, tokens: int = 9) -> Tensor:
    return torch.randn(batch, tokens, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("backend", "steps", "tokens"), [("eager", 2, 9), ("aot_eager", 1, 3)])
@pytest.mark.usefixtures("fresh_dynamo")
def test_compiles_whole_and_once_for_every_batch(backend: str, steps: int, tokens: int) -> None:
    """Under `dynamic=True` the model's eps is a number that the compiler follows."""
    model = Model(steps)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
        for batch in (2, 5):
            with torch._dynamo.config.patch(error_on_recompile=batch > 2):
                x, y = images(batch, tokens).requires_grad_(), images(batch, tokens).requires_grad_()
                found, plain = compiled(x), model(y)
                torch.testing.assert_close(found, plain, rtol=0, atol=1e-5)
                grads = grad(found.square()[..., 0].sum(), (x, model.value.weight))
                truth = grad(plain.square()[..., 0].sum(), (y, model.value.weight))
                torch.testing.assert_close(grads, truth, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images(2, tokens)), model(images(2, tokens)), rtol=0, atol=1e-5)


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_vmap() -> None:
    x = normal(4, 2, 7, 3)
    found = torch.compile(vmap(newton_schulz), backend="eager", fullgraph=True)(x)
    close(found, naive.newton_schulz(x))


SIMPLE = {  # what an exported graph may hold besides views: products and elementwise operators
    *("add", "baddbmm", "bitwise_and", "bmm", "clamp_min", "clamp", "clone", "diagonal", "div", "eye", "full", "ge"),
    *("gt", "linear", "lt", "mul", "permute", "pow", "select", "slice", "sqrt", "square", "sum", "transpose", "t"),
    *("unsqueeze", "view", "where", "_to_copy", "to", "scalar_tensor", "mm", "sym_size", "_assert_tensor_metadata"),
    *("expand", "logical_and", "__and__", "alias", "detach", "arange", "eq", "abs", "amax"),
}


@pytest.mark.parametrize(("steps", "eps", "tokens"), [(1, 1e-6, 3), (2, 0.0, 9)])
def test_exports_to_products_and_elementwise_operators(steps: int, eps: float, tokens: int) -> None:
    model = Model(steps, eps)
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(model, (images(3, tokens),), dynamic_shapes=dynamic, strict=False)
    core = program.run_decompositions()
    used = {str(node.target).split(".")[1] for node in core.graph.nodes if "aten." in str(node.target)}
    assert used <= SIMPLE
    for batch in (1, 2, 5):
        x = images(batch, tokens)
        torch.testing.assert_close(program.module()(x), model(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("tokens", [9, 3])
def test_traces_to_torchscript_that_can_be_saved(tokens: int, followed: bool) -> None:
    """Also while gradients are on, when the weights before the op want one."""
    model = Model(2).requires_grad_(followed)
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(model, images(3, tokens)), file)
    file.seek(0)
    loaded = torch.jit.load(file)
    for batch in (1, 2, 5):
        x = images(batch, tokens)
        torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=1e-6)


def test_a_traced_graph_that_is_trained_has_the_gradients_and_none_at_a_zero_head() -> None:
    x = torch.randn(3, 9, 4)
    x[1] = 0.0
    traced = torch.jit.trace(newton_schulz, torch.randn(3, 9, 4))
    (found,), (wanted,) = (
        torch.autograd.grad(f(y).square().sum() + f(y)[..., 0].sum(), y)
        for f, y in ((traced, x.clone().requires_grad_()), (newton_schulz, x.clone().requires_grad_()))
    )
    assert not found[1].any()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_onnx_agrees_at_every_batch(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, path = Model(2).eval(), tmp_path / "model.onnx"
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    torch.onnx.export(model, (images(3),), path, dynamo=True, dynamic_shapes=dynamic, opset_version=20, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in (1, 2, 17):
        x = images(batch)
        x[0] = 0.0
        (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(out), model(x), rtol=0, atol=1e-5)
