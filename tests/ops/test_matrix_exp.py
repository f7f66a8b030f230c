"""The matrix exponential of fixed trip count against torch's, which is right in float32 and float64."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from zoo.errors import UsageError
from zoo.ops import matrix_exp, naive

KINDS = ["skew", "symmetric", "nilpotent", "non-normal", "diagonal", "any"]
BOUNDS = [0.3, 1.0, 16.0, 40.0]


def norm_of(x: Tensor) -> Tensor:
    """The 1-norm, the maximal column sum of absolute values."""
    return x.abs().sum(-2).amax(-1)


def build(kind: str, size: int, norm: float, *lead: int, seed: int = 0) -> Tensor:
    """Matrices (*lead, size, size) of a 1-norm of `norm`, float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*lead, size, size, generator=generator, dtype=torch.float64)
    match kind:
        case "skew":
            x = x - x.mT
        case "symmetric":
            x = x + x.mT
        case "nilpotent":
            x = x.triu(1)
        case "non-normal":
            x = x.triu(1) * 30 + x.diagonal(dim1=-2, dim2=-1).diag_embed()
        case "diagonal":
            x = x.diagonal(dim1=-2, dim2=-1).diag_embed()
    if not x.numel():
        return x
    whole = norm_of(x)[..., None, None]
    return x * norm / torch.where(whole == 0.0, 1.0, whole)


# --- accuracy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_norm", BOUNDS)
@pytest.mark.parametrize("norm", [0.0, 1e-9, 1e-3, 0.29, 0.5, 1.0, 5.0, 15.9])
@pytest.mark.parametrize("size", [1, 2, 3, 17, 33])
@pytest.mark.parametrize("kind", KINDS)
def test_float64_is_exact(kind: str, size: int, norm: float, max_norm: float) -> None:
    """Rounding grows with the norm of exp, one at least, and with x's own. Beyond the bound all is NaN."""
    x = build(kind, size, norm, 3)
    out = matrix_exp(x, max_norm=max_norm)
    inside = norm_of(x) <= max_norm
    truth = torch.linalg.matrix_exp(x)
    assert out[~inside].isnan().all()
    hump = torch.linalg.matrix_exp(x.abs()).norm(dim=(-2, -1)) if kind in ("nilpotent", "non-normal") else 0.0
    scale = truth.norm(dim=(-2, -1)).clamp_min(1.0) * (1 + norm) + hump
    assert ((out - truth).norm(dim=(-2, -1)) <= 1e-14 * scale)[inside].all()
    if norm < max_norm:
        assert inside.all()


@pytest.mark.parametrize("lead", [(), (1,), (0,), (3,), (2, 0), (2, 3)], ids=str)
@pytest.mark.parametrize("size", [0, 1, 2, 17])
def test_any_batch_and_size(size: int, lead: tuple[int, ...]) -> None:
    x = build("any", size, 2.0, *lead)
    out = matrix_exp(x)
    assert out.shape == x.shape
    torch.testing.assert_close(out, torch.linalg.matrix_exp(x), rtol=0, atol=1e-13)


@pytest.mark.parametrize("norm", [1e-9, 1e-3, 0.5, 1.0, 5.0, 15.9])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_norm", [16.0, 40.0])
def test_float32_costs_no_more_than_twice_the_naive_error(max_norm: float, kind: str, norm: float) -> None:
    """On average over fifty matrices: the largest error of a few is a matter of luck."""
    x = build(kind, 16, norm, 50).float()
    truth = torch.linalg.matrix_exp(x.double())
    size = truth.norm(dim=(-2, -1))
    found, plain = (
        ((out.double() - truth).norm(dim=(-2, -1)) / size).mean()
        for out in (matrix_exp(x, max_norm), naive.matrix_exp(x))
    )
    assert found <= 2 * plain + 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm", [1e-3, 0.5, 5.0])
def test_half_precision_rounds_once(norm: float, dtype: torch.dtype) -> None:
    """torch's own is no measure here: in half precision it returns infinity, NaN or numbers that are simply wrong."""
    x = build("skew", 17, norm, 3).to(dtype)
    out = matrix_exp(x)
    assert out.dtype == dtype
    truth = torch.linalg.matrix_exp(x.double())
    assert (out.double() - truth).norm() <= torch.finfo(dtype).eps * truth.norm()
    torch.testing.assert_close(out, naive.matrix_exp(x), rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_does_not_reach_it(dtype: torch.dtype) -> None:
    x = build("any", 17, 3.0, 2).float()
    with torch.autocast("cpu", dtype):
        cast = matrix_exp(x)
    assert torch.equal(cast, matrix_exp(x))


@pytest.mark.parametrize("max_norm", BOUNDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_zero_gives_the_identity_bit_for_bit(dtype: torch.dtype, max_norm: float) -> None:
    x = torch.zeros(2, 5, 5, dtype=dtype)
    assert torch.equal(matrix_exp(x, max_norm), torch.eye(5, dtype=dtype).expand(2, 5, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_batch_of_wildly_different_norms(dtype: torch.dtype) -> None:
    """The squarings that the largest needs cost the smallest nothing: exp - I is squared, not exp."""
    sizes = torch.tensor([1e-20, 1e-12, 1e-6, 1e-2, 1.0, 30.0], dtype=torch.float64)[:, None, None]
    x = (build("skew", 9, 1.0, 6) * sizes).to(dtype)
    out = matrix_exp(x, max_norm=1000.0).double()
    errors = (out - torch.linalg.matrix_exp(x.double())).norm(dim=(-2, -1))
    assert (errors <= 20 * torch.finfo(dtype).eps * (1 + sizes.flatten())).all()


# --- what must not leak -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_norm", BOUNDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("factor", [1.1, 3.0, 1e4, 1e30])
def test_beyond_max_norm_is_nan_for_that_matrix_alone(factor: float, dtype: torch.dtype, max_norm: float) -> None:
    x = build("any", 5, 0.9 * max_norm, 3).to(dtype)
    larger = x.clone()
    larger[1] = build("skew", 5, factor * max_norm).to(dtype)
    out = matrix_exp(larger, max_norm)
    assert out[1].isnan().all()
    assert out[::2].isfinite().all()
    assert torch.equal(out[::2], matrix_exp(x, max_norm)[::2])


def test_the_bound_itself_is_inside() -> None:
    x = torch.tensor([[0.0, 16.0], [-16.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(matrix_exp(x), torch.linalg.matrix_exp(x), rtol=0, atol=1e-12)
    assert matrix_exp(x * (1 + 1e-15)).isnan().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("max_norm", BOUNDS)
def test_nan_in_gives_nan_out(max_norm: float, bad: float) -> None:
    x = build("any", 4, 0.2, 3).float()
    plain = matrix_exp(x, max_norm)
    x[1, 3, 0] = bad
    out = matrix_exp(x, max_norm)
    assert out[1].isnan().all()
    assert torch.equal(out[::2], plain[::2])


# --- gradients ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, "zero"])
@pytest.mark.parametrize("max_norm", [1.0, 16.0])
def test_gradients_of_first_and_second_order(max_norm: float, kind: str) -> None:
    x = build(kind, 3, 0.0 if kind == "zero" else 0.9, 2).requires_grad_()
    assert gradcheck(lambda x: matrix_exp(x, max_norm), x)
    assert gradgradcheck(lambda x: matrix_exp(x, max_norm), x)


@pytest.mark.parametrize("norm", [1e-9, 0.5, 5.0, 15.9])
@pytest.mark.parametrize("size", [1, 2, 17])
def test_gradients_are_torchs(size: int, norm: float) -> None:
    x, weight = build("skew", size, norm, 2).requires_grad_(), build("any", size, 1.0, 2, seed=1)
    grads = [torch.autograd.grad((f(x) * weight).sum(), x)[0] for f in (matrix_exp, torch.linalg.matrix_exp)]
    assert (grads[0] - grads[1]).norm() <= 1e-12 * grads[1].norm()


# --- tracing ------------------------------------------------------------------------------------------------------


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return matrix_exp(x, max_norm=10.0)


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiles_whole() -> None:
    compiled = torch.compile(Exponential(), backend="eager", fullgraph=True)
    for lead in ((), (3,), (2, 3)):
        found, plain = (build("any", 5, 3.0, *lead).requires_grad_() for _ in range(2))
        ours, eager = compiled(found), Exponential()(plain)
        torch.testing.assert_close(ours, eager, rtol=0, atol=1e-13)
        grads = torch.autograd.grad(ours.sum(), found), torch.autograd.grad(eager.sum(), plain)
        torch.testing.assert_close(*grads, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_onnx_agrees_at_every_batch(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "exponential.onnx"
    sample = build("any", 5, 3.0, 3).float()
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    torch.onnx.export(Exponential(), (sample,), path, dynamo=True, dynamic_shapes=dynamic, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in (1, 2, 3, 17):
        x = build("any", 5, 3.0, batch, seed=batch).float()
        x[0] *= 10.0  # beyond max_norm: NaN there too, and there alone
        (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert torch.from_numpy(out[0]).isnan().all()
        torch.testing.assert_close(torch.from_numpy(out), Exponential()(x), rtol=0, atol=1e-5, equal_nan=True)


# --- what users are told ------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_one_clear_line() -> None:
    x = build("any", 3, 1.0)
    bad = [
        ({"x": x[0]}, r"\(3,\)"),
        ({"x": x[:2]}, r"\(2, 3\)"),
        ({"x": x.long()}, "floating-point"),
        ({"x": x.to(torch.complex64)}, "floating-point"),
        ({"x": x.to(torch.float8_e5m2)}, "from float16 on"),
        ({"max_norm": 0.0}, "max_norm"),
        ({"max_norm": -1.0}, "max_norm"),
        ({"max_norm": math.inf}, "max_norm"),
        ({"max_norm": math.nan}, "max_norm"),
    ]
    for change, words in bad:
        with pytest.raises(UsageError, match=words) as caught:
            matrix_exp(**{"x": x, **change})
        assert "\n" not in str(caught.value)


def test_gradients_beyond_max_norm_are_nan_too() -> None:
    x = torch.stack((torch.eye(3), 9.0 * torch.eye(3))).requires_grad_()
    (grad,) = torch.autograd.grad(matrix_exp(x, max_norm=4.0).sum(), x)
    assert grad[0].isfinite().all()
    assert grad[1].isnan().all()
