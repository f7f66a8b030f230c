"""Orthogonal attention by a basis: QR, Newton-Schulz and Polar Express against their literal definitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from zoo import layers, load
from zoo.errors import UsageError
from zoo.ops import naive, orthogonal_attention

DEFAULTS = {"newton-schulz": 12, "polar-express": 8}
FORMS = [
    ("qr", None),
    ("newton-schulz", None),
    ("newton-schulz", 3),
    ("newton-schulz", 5),
    ("polar-express", None),
    ("polar-express", 3),
    ("polar-express", 5),
]
CONVERGED = [("qr", None), ("newton-schulz", 40), ("polar-express", 16)]
every_form = pytest.mark.parametrize(("basis", "steps"), FORMS, ids=lambda x: str(x))
every_default = pytest.mark.parametrize("basis", ["qr", *DEFAULTS])


def sample(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


def literal(q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, basis: str, steps: int | None) -> Tensor:
    if basis == "qr":
        return naive.qr_attention(q, k, v, alpha)
    return naive.iterated_attention(q, k, v, alpha, basis, DEFAULTS[basis] if steps is None else steps)


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The result and the gradients of a fixed, uneven weighting of it."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    weights = torch.linspace(-1.0, 2.0, out.numel(), dtype=out.dtype).view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, leaves, weights)]


def distance(found: Tensor, truth: Tensor) -> float:
    """||found - truth|| / ||truth|| on average over the matrices: the largest of a few is a matter of luck."""
    return float(((found.double() - truth).norm(dim=(-2, -1)) / truth.norm(dim=(-2, -1))).mean())


# --- the same function --------------------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("max_norm", [None, 14.0, 50.0])
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 17, 65])
@pytest.mark.parametrize("lead", [(1, 3), (0, 3), (4, 3), (3,)], ids=str)
def test_values_are_the_literal_form(
    lead: tuple[int, ...], tokens: int, max_norm: float | None, basis: str, steps: int | None
) -> None:
    q, k, v = sample(*lead, tokens, 5, dtype=torch.float64)
    alpha = torch.tensor([0.06, -0.1, 0.03], dtype=torch.float64)
    out = orthogonal_attention(q, k, v, alpha, basis=basis, steps=steps, max_norm=max_norm)
    assert out.shape == v.shape
    # The Gram form of the iteration may lose its growth between restarts, 1e5 eps, in the smallest directions.
    assert (out - literal(q, k, v, alpha, basis, steps)).norm() <= 1e-11 * v.norm()


@every_form
@pytest.mark.parametrize("max_norm", [None, 14.0, 50.0])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (4, 2), (1, 3), (4, 6), (0, 17), (1, 17), (4, 65)])
def test_gradients_are_the_literal_forms(
    batch: int, tokens: int, max_norm: float | None, basis: str, steps: int | None
) -> None:
    q, k, v = sample(batch, 2, tokens, 3, dtype=torch.float64)
    alpha = torch.tensor([0.12, -0.1], dtype=torch.float64)

    def plain(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor) -> Tensor:
        # torch's QR has no derivative where there are more columns than tokens.
        if basis == "qr" and tokens < 6:
            return naive.orthogonal_attention(q, k, v, alpha)
        return literal(q, k, v, alpha, basis, steps)

    found = gradients(lambda *x: orthogonal_attention(*x, basis=basis, steps=steps, max_norm=max_norm), q, k, v, alpha)
    for grad, true in zip(found, gradients(plain, q, k, v, alpha), strict=True):
        assert grad.shape == true.shape
        assert (grad - true).norm() <= 1e-10 * (1 + true.norm())


@every_form
@pytest.mark.parametrize("alpha", [0.3, torch.tensor(-0.3), torch.tensor([0.1, -0.2, 0.0]), 1], ids=str)
def test_alpha_may_be_a_number_or_a_tensor(alpha: float | Tensor, basis: str, steps: int | None) -> None:
    q, k, v = sample(2, 3, 17, 4, dtype=torch.float64)
    out = orthogonal_attention(q, k, v, alpha, basis=basis, steps=steps)
    torch.testing.assert_close(out, literal(q, k, v, alpha, basis, steps), rtol=0, atol=1e-11)


@pytest.mark.parametrize(("basis", "steps"), CONVERGED)
@pytest.mark.parametrize("tokens", [2, 5, 17, 65])
@pytest.mark.parametrize("max_norm", [20.0, 60.0])
def test_a_converged_basis_is_none(basis: str, steps: int | None, tokens: int, max_norm: float) -> None:
    """exp(S) V has no basis in it, nor has its gradient: tokens fewer and more than the columns of [Q, K]."""
    inputs = [*sample(2, 2, tokens, 4, dtype=torch.float64), torch.tensor([0.2, -0.1], dtype=torch.float64)]
    found = gradients(lambda *x: orthogonal_attention(*x, basis=basis, steps=steps, max_norm=max_norm), *inputs)
    truth = gradients(lambda *x: orthogonal_attention(*x, max_norm=max_norm), *inputs)
    for a, b in zip(found, truth, strict=True):
        assert (a - b).norm() <= 1e-9 * (1 + b.norm())


@pytest.mark.parametrize("basis", DEFAULTS)
def test_a_basis_that_has_not_converged_is_another_function(basis: str) -> None:
    q, k, v = sample(1, 2, 33, 4, dtype=torch.float64)
    out = orthogonal_attention(q, k, v, 0.3, basis=basis, steps=3)
    assert distance(out, orthogonal_attention(q, k, v, 0.3)) > 1e-3


# --- precision ----------------------------------------------------------------------------------------------------


AWKWARD = [
    *("generic 0.01", "generic 0.3", "generic 3", "generic 15", "generic 30", "near q", "rank one", "equal tokens"),
    *("duplicated columns", "large column", "small large column", "repeated token"),
]


@every_form
@pytest.mark.parametrize("name", AWKWARD)
def test_float32_costs_no_more_than_twice_the_naive_error(
    name: str, basis: str, steps: int | None, build: Callable[..., tuple[Tensor, Tensor, Tensor, float]]
) -> None:
    *wide, alpha = build(name, batch=12)
    q, k, v = (x.float() for x in wide)
    truth = literal(q.double(), k.double(), v.double(), alpha, basis, steps)
    found = distance(orthogonal_attention(q, k, v, alpha, basis=basis, steps=steps), truth)
    assert found <= 2 * distance(literal(q, k, v, alpha, basis, steps), truth) + 4 * torch.finfo(torch.float32).eps


@every_form
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("norm", [1e-3, 0.3, 12.0])
def test_half_precision_costs_no_more_than_twice_the_naive_error(
    dtype: torch.dtype,
    norm: float,
    basis: str,
    steps: int | None,
    build: Callable[..., tuple[Tensor, Tensor, Tensor, float]],
) -> None:
    *wide, alpha = build(f"generic {norm}")
    q, k, v = (x.to(dtype) for x in wide)
    truth = literal(q.double(), k.double(), v.double(), alpha, basis, steps)
    out = orthogonal_attention(q, k, v, alpha, basis=basis, steps=steps)
    assert out.dtype == dtype
    assert distance(out, truth) <= 2 * distance(literal(q, k, v, alpha, basis, steps), truth)


@every_default
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("max_norm", [8.0, 40.0])
def test_autocast_does_not_reach_the_small_matrices(basis: str, dtype: torch.dtype, max_norm: float) -> None:
    inputs = [*sample(2, 3, 33, 8), torch.tensor([0.1, 0.2, 0.3])]

    def run(enabled: bool) -> list[Tensor]:
        def function(*x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype, enabled=enabled):
                return orthogonal_attention(*x, basis=basis, max_norm=max_norm)

        return gradients(function, *inputs)

    plain, cast = run(False), run(True)
    assert all(x.dtype == torch.float32 and torch.equal(x, y) for x, y in zip(cast, plain, strict=True))


@every_default
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [20.0, 100.0, 900.0])
def test_norms_above_sixteen(
    size: float, dtype: torch.dtype, basis: str, norms: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    """The doublings: with the norm grows the rounding of S itself, and nothing else."""
    q, k, v = (x.to(dtype) for x in sample(2, 1, 40, 4))
    alpha = size / float(norms(q, k, 1.0)[0].max())
    wide = [x.double() for x in (q, k, v)]
    truth = literal(*wide, alpha, basis, None)
    bound = 10 * torch.finfo(dtype).eps * size
    for max_norm in (None, 2.0 * size):
        out = orthogonal_attention(q, k, v, alpha, basis=basis, max_norm=max_norm)
        assert distance(out, truth) <= (bound if dtype == torch.float32 else 1e-11 * size)


@every_default
@pytest.mark.parametrize("exponent", [-12, -6, -3, 3, 6, 12])
def test_only_the_product_of_scales_counts(exponent: int, basis: str) -> None:
    """Of one scale in q and k: the basis has none. The iteration's eps is zero here, so tiny inputs are as good."""
    q, k, v = sample(2, 2, 33, 8, dtype=torch.float64)
    scaled = orthogonal_attention(q * 10.0**exponent, k * 10.0**exponent, v, 0.3 * 100.0**-exponent, basis=basis)
    torch.testing.assert_close(scaled, orthogonal_attention(q, k, v, 0.3, basis=basis), rtol=0, atol=1e-11)


# --- what must not leak -------------------------------------------------------------------------------------------


@every_default
@pytest.mark.parametrize("rubbish", [0.0, math.nan, math.inf, 1e30])
@pytest.mark.parametrize("max_norm", [None, 14.0, 40.0])
def test_masked_tokens_are_left_alone_and_without_influence(basis: str, rubbish: float, max_norm: float | None) -> None:
    q, k, v = sample(3, 2, 14, 3)
    keep = torch.ones(3, 14, dtype=torch.bool)
    keep[0, 9:] = keep[1, ::2] = False
    for x in (q, k, v):
        x[~keep[:, None].expand(3, 2, 14)] = rubbish
        x.requires_grad_()
    alpha = torch.tensor([0.3, 0.6], requires_grad=True)
    out = orthogonal_attention(q, k, v, alpha, basis=basis, max_norm=max_norm, key_mask=keep)
    for b in range(3):
        alone = literal(*(x[b, :, keep[b]].double() for x in (q, k, v)), alpha.double(), basis, None)
        torch.testing.assert_close(out[b, :, keep[b]].double(), alone, rtol=0, atol=1e-5)
    left = ~keep[:, None, :, None].expand_as(v)
    assert torch.equal(out[left].view(torch.int32), v[left].view(torch.int32))
    grads = torch.autograd.grad(out[~left].sum(), (q, k, v, alpha))
    assert all(g.isfinite().all() for g in grads)
    assert all((g[left] == 0).all() for g in grads[:3])


@every_form
@pytest.mark.parametrize("kind", ["repeated tokens", "zero tokens", "all zero", "columns", "one direction", "k is q"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_are_finite_where_rank_is_lost(kind: str, dtype: torch.dtype, basis: str, steps: int | None) -> None:
    q, k, v = sample(2, 2, 20, 4, dtype=dtype)
    match kind:
        case "repeated tokens":
            q, k = q[..., :1, :].expand_as(q), k[..., :1, :].expand_as(k)
        case "zero tokens":
            q, k = (
                torch.where(torch.arange(20)[:, None] < 3, q, 0.0),
                torch.where(torch.arange(20)[:, None] < 3, k, 0.0),
            )
        case "all zero":
            q, k = torch.zeros_like(q), torch.zeros_like(k)
        case "columns":
            q, k = (torch.cat((x[..., :2], x[..., :2]), -1) for x in (q, k))
        case "one direction":
            q, k = q[..., :1] * k[..., :1, :], q[..., :1] * k[..., 1:2, :]
        case _:
            k = q
    inputs = (q, k, v, torch.tensor([0.3, -0.5], dtype=dtype))
    found = gradients(lambda *x: orthogonal_attention(*x, basis=basis, steps=steps, max_norm=30.0), *inputs)
    assert all(x.isfinite().all() for x in found)
    if basis == "qr":  # a lost rank leaves exp(S) V smooth, so its gradient is to be right as well
        truth = gradients(naive.orthogonal_attention, *(x.double() for x in inputs))
        for x, true in zip(found, truth, strict=True):
            assert (x.double() - true).norm() <= 500 * torch.finfo(dtype).eps * (1 + true.norm())


@every_default
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("max_norm", [None, 8.0, 100.0])
@pytest.mark.parametrize("tokens", [1, 3, 12])
@pytest.mark.parametrize("tracked", [False, True])
def test_nan_in_gives_nan_out(basis: str, bad: float, max_norm: float | None, tokens: int, tracked: bool) -> None:
    for which in (0, 1):
        inputs = sample(2, 3, tokens, 4)
        inputs[which][1, 2, tokens // 2, 1] = bad
        out = orthogonal_attention(*(x.requires_grad_(tracked) for x in inputs), 0.2, basis=basis, max_norm=max_norm)
        assert out[1, 2].isnan().all()
        assert out[0].isfinite().all()
        assert out[1, :2].isfinite().all()


@every_default
@pytest.mark.parametrize("max_norm", [4.0, 40.0])
def test_beyond_max_norm_is_nan_for_that_matrix_alone(
    basis: str, max_norm: float, norms: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    q, k, v = sample(3, 2, 20, 4)
    alpha = 0.9 * max_norm / float(norms(q, k, 1.0)[1].max())
    lost = torch.zeros(3, 2, dtype=torch.bool)
    lost[1, 0] = True
    larger = torch.where(lost[..., None, None], 3.0 * q, q)

    def run(q: Tensor) -> list[Tensor]:
        return gradients(lambda *x: orthogonal_attention(*x, alpha, basis=basis, max_norm=max_norm), q, k, v)

    inside, outside = run(q), run(larger)
    assert all(x.isfinite().all() for x in inside)
    for found, expected in zip(outside, inside, strict=True):
        assert found[lost].isnan().all()
        torch.testing.assert_close(found[~lost], expected[~lost], rtol=0, atol=0)
    with torch.no_grad():
        quiet = orthogonal_attention(larger, k, v, alpha, basis=basis, max_norm=max_norm)
    assert quiet[lost].isnan().all()
    torch.testing.assert_close(quiet[~lost], inside[0][~lost], rtol=0, atol=1e-5)


# --- training -----------------------------------------------------------------------------------------------------


def trained(basis: str, steps: int = 20) -> list[Tensor]:
    """The parameters of the smallest network after `steps` steps of AdamW in float64."""
    torch.manual_seed(0)
    model = load("test-osa-vit", pretrained=False, dtype=torch.float64, basis=basis, alpha=0.1).train()
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(8, 1, 28, 28, generator=generator, dtype=torch.float64)
    labels = torch.arange(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert all((p - q).norm() > 1e-4 for p, q in zip(model.parameters(), before, strict=True))
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("rival", ["qr", "literal"])
def test_training_with_qr_is_training_without_a_basis(rival: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty steps of AdamW end at the same parameters; the literal gradient goes through torch.linalg.qr."""
    plain = trained("gram")
    calls = []

    def swapped(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, **_: object) -> Tensor:
        calls.append(q.shape)
        return naive.qr_attention(q, k, v, alpha)

    if rival == "literal":
        monkeypatch.setattr(layers.orthogonal.ops, "orthogonal_attention", swapped)
    for found, true in zip(trained("qr"), plain, strict=True):
        torch.testing.assert_close(found, true, rtol=0, atol=1e-9)
    assert len(calls) == (40 if rival == "literal" else 0)


# --- what users are told ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("basis", "steps", "words"),
    [
        ("cholesky", None, "gram, qr, newton-schulz, polar-express"),
        ("QR", None, "gram, qr, newton-schulz, polar-express"),
        ("", None, "gram"),
        ("gram", 5, "takes no steps"),
        ("qr", 5, "takes no steps"),
        ("newton-schulz", 0, "steps must be .* None for 12"),
        ("newton-schulz", -1, "steps must be"),
        ("newton-schulz", 2.5, "steps must be"),
        ("newton-schulz", True, "steps must be"),
        ("polar-express", "5", "steps must be .* None for 8"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(basis: str, steps: int | None, words: str) -> None:
    for call in (
        lambda: orthogonal_attention(*sample(2, 3, 17, 4), 0.1, basis=basis, steps=steps),
        lambda: layers.OrthogonalSelfAttention(8, 2, basis=basis, steps=steps),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
