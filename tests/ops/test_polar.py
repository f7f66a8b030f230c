"""The polar factor against the singular value decomposition, and its steps against the literal iteration."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from zoo.errors import UsageError
from zoo.ops import naive, polar
from zoo.ops.polar import POLAR_EXPRESS

METHODS = ["newton-schulz", "polar-express"]
SHAPES = [(1, 1), (5, 1), (1, 5), (4, 4), (17, 6), (6, 17), (65, 32)]
every_method = pytest.mark.parametrize("method", METHODS)


def normal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def factor(x: Tensor) -> Tensor:
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    return u @ vh


def literal(x: Tensor, method: str, steps: int, eps: float = 1e-7) -> Tensor:
    """The literal iteration, with the matrix upright."""
    if x.shape[-2] < x.shape[-1]:
        return naive.polar(x.mT, method, steps, eps=eps).mT
    return naive.polar(x, method, steps, eps=eps)


# --- what it is ---------------------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("lead", [(), (1,), (0,), (3,), (2, 0), (2, 3)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_converged_it_is_the_polar_factor(shape: tuple[int, int], lead: tuple[int, ...], method: str) -> None:
    x = normal(*lead, *shape)
    out = polar(x, method, 60)
    assert out.shape == x.shape
    torch.testing.assert_close(out, factor(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 0)], ids=str)
def test_nothing_in_nothing_out(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, requires_grad=True)
    out = polar(x)
    assert out.shape == x.shape
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad.shape == x.shape


@every_method
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 7, 8, 12])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_step_is_the_literal_one(shape: tuple[int, int], steps: int, method: str) -> None:
    """Values and gradients; what the Gram form may lose between restarts is 1e5 eps."""
    x, weight = normal(2, *shape).requires_grad_(), normal(2, *shape, seed=1)
    found, truth = polar(x, method, steps), literal(x, method, steps)
    torch.testing.assert_close(found, truth, rtol=0, atol=1e-11)
    grads = [torch.autograd.grad((out * weight).sum(), x)[0] for out in (found, truth)]
    assert (grads[0] - grads[1]).norm() <= 1e-10 * (1 + grads[1].norm())


@every_method
def test_the_default_steps(method: str) -> None:
    x = normal(17, 6)
    assert torch.equal(polar(x, method), polar(x, method, {"newton-schulz": 12, "polar-express": 8}[method]))
    assert torch.equal(polar(x), polar(x, "polar-express"))


@every_method
def test_singular_vectors_stay_and_values_go_through_the_polynomials(method: str) -> None:
    """A singular value as large as the docstring says converges, a smaller one ends between 0 and 1, zero stays."""
    least = {"newton-schulz": 0.01, "polar-express": 0.001}[method]
    rest = [0.5, 0.1, 3 * least, 1.2 * least, 0.3 * least, 1e-6, 0.0]
    values = torch.tensor([math.sqrt(1 - sum(s * s for s in rest)), *rest], dtype=torch.float64)
    left, right = torch.linalg.qr(normal(20, 8)).Q, torch.linalg.qr(normal(8, 8, seed=1)).Q
    middle = left.T @ polar(left @ values.diag() @ right.T, method) @ right
    found = middle.diagonal()
    torch.testing.assert_close(middle, found.diag(), rtol=0, atol=1e-9)
    assert (found[:4] - 1).abs().max() <= 0.1
    assert (found[:3] - 1).abs().max() <= 0.01
    assert 0.0 < found[6] < found[5] < found[4] < 1.0 + 1e-3
    assert abs(found[7]) <= 1e-12


def best_quintic(low: float, high: float) -> tuple[float, float, float]:
    """a, b, c of the odd quintic nearest to 1 on [low, high]: it errs by the same amount at four points in turn."""
    points = [low, (3 * low + high) / 4, (low + 3 * high) / 4, high]
    for _ in range(50):
        rows = [[x, x**3, x**5, sign] for x, sign in zip(points, (1.0, -1.0, 1.0, -1.0), strict=True)]
        a, b, c, _ = torch.linalg.solve(torch.tensor(rows, dtype=torch.float64), torch.ones(4).double()).tolist()
        root = math.sqrt(9 * b * b - 20 * a * c)
        points[1], points[2] = math.sqrt((-3 * b - root) / (10 * c)), math.sqrt((-3 * b + root) / (10 * c))
    return a, b, c


def test_the_coefficients_are_polar_expresses() -> None:
    """arXiv 2505.16932: step after step the best quintic, centred on 1, no lower end below a cushion of the upper.

    The last agrees to 1e-10: on so short an interval the equations are nearly singular.
    """
    low, high = 1e-3, 1.0
    for i, found in enumerate(POLAR_EXPRESS):
        a, b, c = best_quintic(max(low, 0.02407327424182761 * high), high)
        ends = [a * x + b * x**3 + c * x**5 for x in (low, high)]
        a, b, c = (2 * x / sum(ends) for x in (a, b, c))
        assert found == pytest.approx((a, b, c), rel=1e-13 if i < 6 else 1e-10)
        low = a * low + b * low**3 + c * low**5
        high = 2 - low


@pytest.mark.parametrize(
    ("method", "margin", "step"), [("newton-schulz", 1.0, (1.5, -0.5, 0.0)), ("polar-express", 1.01, None)]
)
def test_the_first_step_by_hand(method: str, margin: float, step: tuple[float, float, float] | None) -> None:
    values = torch.tensor([0.8, 0.6, 0.0], dtype=torch.float64)
    a, b, c = step or (8.28721201814563, -23.595886519098837, 17.300387312530933)
    s = values / margin
    torch.testing.assert_close(polar(7.0 * values.diag(), method, 1, eps=0.0), (a * s + b * s**3 + c * s**5).diag())
    s = values / (margin * 2.0)  # eps as large as the norm
    torch.testing.assert_close(polar(values.diag(), method, 1, eps=1.0), (a * s + b * s**3 + c * s**5).diag())


# --- precision ----------------------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("steps", [3, 5, None])
@pytest.mark.parametrize("kind", ["generic", "duplicated", "graded", "rank one", "nearly rank one", "large column"])
def test_float32_costs_no_more_than_twice_the_naive_error(kind: str, steps: int | None, method: str) -> None:
    """On average over fifty matrices: the largest error of a few is a matter of luck."""
    x = normal(50, 65, 16)
    match kind:
        case "duplicated":
            x[..., 8:] = x[..., :8]
        case "graded":
            x = x * 10.0 ** -torch.linspace(0, 4, 16, dtype=x.dtype)
        case "rank one":
            x = x[..., :1] * x[..., :1, :]
        case "nearly rank one":
            x = x[..., :1] * x[..., :1, :] + 0.01 * normal(50, 65, 16, seed=1)
        case "large column":
            x[..., 0] *= 100
    narrow = x.float()
    count = steps or {"newton-schulz": 12, "polar-express": 8}[method]
    truth = literal(narrow.double(), method, count)
    errors = [
        (out.double() - truth).norm(dim=(-2, -1))
        for out in (polar(narrow, method, steps), literal(narrow, method, count))
    ]
    eps = torch.finfo(torch.float32).eps
    assert errors[0].mean() <= 2 * errors[1].mean() + 4 * eps * truth.norm(dim=(-2, -1)).mean()


@every_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1e-2, 1.0, 1e3])
def test_half_precision_rounds_once(dtype: torch.dtype, size: float, method: str) -> None:
    x = normal(3, 33, 8, dtype=dtype) * size
    out = polar(x, method)
    assert out.dtype == dtype
    truth = polar(x.double(), method)
    assert (out.double() - truth).norm() <= torch.finfo(dtype).eps * truth.norm()


@every_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_does_not_reach_it(dtype: torch.dtype, method: str) -> None:
    x = normal(3, 33, 8, dtype=torch.float32)
    with torch.autocast("cpu", dtype):
        cast = polar(x, method)
    assert torch.equal(cast, polar(x, method))


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("exponent", range(-15, 16))
def test_without_eps_no_scale_counts(exponent: int, dtype: torch.dtype, method: str) -> None:
    x = normal(2, 33, 8)
    out = polar((x * 10.0**exponent).to(dtype), method, eps=0.0)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(out.double(), polar(x, method, eps=0.0), rtol=0, atol=tolerance)


@every_method
@pytest.mark.parametrize("exponent", range(-15, 16))
def test_the_default_eps_dampens_what_is_no_larger(exponent: int, method: str) -> None:
    """A norm well above 1e-7 has the plain result; far below all singular values shrink, and none is NaN or zero."""
    x = normal(2, 33, 8)
    x = x / torch.linalg.matrix_norm(x, keepdim=True)
    values = torch.linalg.svdvals(polar(x * 10.0**exponent, method))
    plain = torch.linalg.svdvals(polar(x, method, eps=0.0))
    assert values.isfinite().all()
    if exponent >= -5:
        torch.testing.assert_close(values, plain, rtol=0.02, atol=0)
    elif exponent <= -12:
        most = {"newton-schulz": 1.5**12, "polar-express": 2e4}[method] * 10.0 ** (exponent + 7)
        assert (values <= most).all() and (values < 0.75).all()
        assert (values > 0.0).all()
    truth = literal(x * 10.0**exponent, method, {"newton-schulz": 12, "polar-express": 8}[method])
    torch.testing.assert_close(values, torch.linalg.svdvals(truth), rtol=1e-9, atol=1e-12)


@every_method
def test_neither_overflow_nor_underflow(method: str) -> None:
    """Squares of 1e30 and 1e-30 are beyond float32."""
    x = normal(33, 8, dtype=torch.float32)
    plain = polar(x, method, eps=0.0)
    for size in (1e-30, 1e-25, 1e25, 1e30):
        y = (x * size).requires_grad_()
        out = polar(y, method, eps=0.0)
        torch.testing.assert_close(out, plain, rtol=0, atol=2e-5)


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("steps", [8, 12, 40, 60])
@pytest.mark.parametrize("kind", ["generic", "repeated rows", "repeated columns", "one direction", "nearly", "graded"])
def test_a_lost_rank_stays_bounded(kind: str, steps: int, dtype: torch.dtype, method: str) -> None:
    """Rounding gives the Gram matrix negative eigenvalues there; no number of steps may blow them up."""
    x = normal(4, 33, 8)
    match kind:
        case "repeated rows":
            x = x[..., :1, :].expand_as(x)
        case "repeated columns":
            x = torch.cat((x[..., :4], x[..., :4]), -1)
        case "one direction":
            x = x[..., :1] * x[..., :1, :]
        case "nearly":
            x = x[..., :1] * x[..., :1, :] + 1e-7 * normal(4, 33, 8, seed=1)
        case "graded":
            x = x * 10.0 ** -torch.linspace(0, 15, 8, dtype=x.dtype)
    x = x.to(dtype).requires_grad_()
    for y in (x, x.mT):
        out = polar(y, method, steps)
        assert torch.linalg.matrix_norm(out.double(), 2).max() <= 1.01
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert grad.isfinite().all()


# --- what must not leak -------------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("eps", [0.0, 1e-7])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5)], ids=str)
def test_zero_stays_zero_with_a_finite_gradient(shape: tuple[int, int], eps: float, method: str) -> None:
    x = normal(3, *shape)
    x[1] = 0.0
    x.requires_grad_()
    out = polar(x, method, eps=eps)
    assert (out[1] == 0.0).all()
    torch.testing.assert_close(out[::2], polar(x[::2], method, eps=eps), rtol=0, atol=1e-12)
    (grad,) = torch.autograd.grad((out * normal(3, *shape, seed=1)).sum(), x)
    assert grad.isfinite().all()


@every_method
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (1, 1)], ids=str)
def test_nan_is_nan_of_that_matrix_alone(shape: tuple[int, int], bad: float, method: str) -> None:
    x = normal(3, *shape, dtype=torch.float32)
    spoilt = x.clone()
    spoilt[1, 0, -1] = bad
    out = polar(spoilt, method)
    assert out[1].isnan().all()
    torch.testing.assert_close(out[::2], polar(x, method)[::2], rtol=0, atol=1e-6)


@every_method
@pytest.mark.parametrize("kind", ["tall", "square", "wide", "repeated rows", "repeated columns", "one entry"])
@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_gradcheck(kind: str, eps: float, method: str) -> None:
    x = normal(2, *{"square": (3, 3), "wide": (2, 5), "one entry": (1, 1)}.get(kind, (6, 3)))
    if kind == "repeated rows":
        x = x[:, :1].repeat(1, 6, 1)
    if kind == "repeated columns":
        x = x[..., :1].repeat(1, 1, 3)
    assert gradcheck(lambda x: polar(x, method, 4, eps=eps), x.requires_grad_())


def test_strided_input() -> None:
    x = normal(9, 4, 3).permute(1, 0, 2)
    torch.testing.assert_close(polar(x), polar(x.contiguous()), rtol=0, atol=1e-12)


# --- tracing ------------------------------------------------------------------------------------------------------


class Polar(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return polar(x, "newton-schulz", 5) + polar(x)


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiles_whole() -> None:
    compiled = torch.compile(Polar(), backend="eager", fullgraph=True)
    for shape in ((3, 9, 4), (3, 4, 9), (9, 4)):
        found, plain = (normal(*shape).requires_grad_() for _ in range(2))
        ours, eager = compiled(found), Polar()(plain)
        torch.testing.assert_close(ours, eager, rtol=0, atol=1e-12)
        grads = torch.autograd.grad(ours.sum(), found), torch.autograd.grad(eager.sum(), plain)
        torch.testing.assert_close(*grads, rtol=0, atol=1e-11)


def test_exports_for_every_batch() -> None:
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(Polar(), (normal(3, 9, 4),), dynamic_shapes=dynamic, strict=False)
    for batch in (1, 2, 5):
        x = normal(batch, 9, 4, seed=batch)
        torch.testing.assert_close(program.module()(x), Polar()(x), rtol=0, atol=1e-12)


# --- what users are told ------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_one_clear_line() -> None:
    x = normal(5, 3)
    bad = [
        ({"x": x[0]}, r"\(3,\)"),
        ({"x": x.long()}, "floating-point"),
        ({"x": x.to(torch.complex64)}, "floating-point"),
        ({"x": x.to(torch.float8_e5m2)}, "from float16 on"),
        ({"x": x.to_sparse()}, "dense"),
        ({"method": "muon"}, "newton-schulz, polar-express"),
        ({"method": "newton-schulz", "steps": 0}, "None for 12"),
        ({"steps": -3}, "None for 8"),
        ({"steps": 2.0}, "whole number"),
        ({"steps": True}, "whole number"),
        ({"eps": -1e-9}, "eps"),
        ({"eps": math.inf}, "eps"),
        ({"eps": math.nan}, "eps"),
    ]
    for change, words in bad:
        with pytest.raises(UsageError, match=words) as caught:
            polar(**{"x": x, **change})
        assert "\n" not in str(caught.value)


def test_subnormal_input_stays_a_number() -> None:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)) * 1e-39
    assert polar(x, eps=0).isfinite().all()
    assert polar(x).isfinite().all()
