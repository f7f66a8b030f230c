"""The distance from a rotation, measured without the matrix, against the matrix."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from zoo.errors import UsageError
from zoo.ops import naive, orthogonal_attention, orthogonality_bound, orthogonality_error, skew_norm

FORMS = [
    ("gram", None),
    ("qr", None),
    ("newton-schulz", None),
    ("newton-schulz", 3),
    ("newton-schulz", 5),
    ("polar-express", None),
    ("polar-express", 3),
    ("polar-express", 5),
]
ITERATED = FORMS[2:]
every_form = pytest.mark.parametrize(("basis", "steps"), FORMS, ids=lambda x: str(x))


def sample(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2)]


def literal(q: Tensor, k: Tensor, alpha: float | Tensor, **options: object) -> Tensor:
    """||A^T A - I||_2 of the matrix that the op applies to the identity."""
    eye = torch.eye(q.shape[-2], dtype=q.dtype)
    matrix = orthogonal_attention(q, k, eye.expand(*q.shape[:-1], -1), alpha, **options).double()
    return torch.linalg.matrix_norm(matrix.mT @ matrix - eye.double(), 2)


def skew(q: Tensor, k: Tensor, alpha: float | Tensor) -> Tensor:
    scale = torch.as_tensor(alpha, dtype=q.dtype) / math.sqrt(q.shape[-1])
    scale = scale[:, None, None] if scale.dim() else scale
    return scale * (q @ k.mT - k @ q.mT)


# --- the error ----------------------------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("max_norm", [None, 14.0, 50.0])
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 17, 40])
@pytest.mark.parametrize("lead", [(2, 3), (0, 3), (3,)], ids=str)
def test_it_is_the_matrices_own(
    lead: tuple[int, ...], tokens: int, max_norm: float | None, basis: str, steps: int | None
) -> None:
    q, k = sample(*lead, tokens, 4)
    alpha = torch.tensor([0.05, -0.1, 0.2], dtype=torch.float64)
    options = {"basis": basis, "steps": steps, "max_norm": max_norm}
    found = orthogonality_error(q, k, alpha, **options)
    assert found.shape == lead
    assert found.dtype == torch.float64
    truth = literal(q, k, alpha, **options)
    assert truth.isfinite().all()
    torch.testing.assert_close(found, truth, rtol=1e-11, atol=1e-13)


@every_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["generic 0.3", "generic 8", "near q", "duplicated columns", "equal tokens"])
def test_in_float32_it_is_the_matrices_own_within_rounding(
    name: str,
    dtype: torch.dtype,
    basis: str,
    steps: int | None,
    build: Callable[..., tuple[Tensor, Tensor, Tensor, float]],
) -> None:
    """Half precision is widened first, so it is float32's from rounded inputs."""
    q, k, _, alpha = build(name)
    q, k = q.to(dtype), k.to(dtype)
    found = orthogonality_error(q, k, alpha, basis=basis, steps=steps)
    truth = literal(q.float(), k.float(), alpha, basis=basis, steps=steps)
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=16 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("basis", ["gram", "qr"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["generic 0.01", "generic 3", "generic 8", "near q", "rank one", "repeated token"])
def test_an_exact_form_is_a_rotation_to_rounding(
    name: str, dtype: torch.dtype, basis: str, build: Callable[..., tuple[Tensor, Tensor, Tensor, float]]
) -> None:
    q, k, _, alpha = build(name)
    q, k = q.to(dtype), k.to(dtype)
    turn = float(skew_norm(q, k, alpha).max())
    assert (orthogonality_error(q, k, alpha, basis=basis) <= 16 * torch.finfo(dtype).eps * (1 + turn)).all()


@pytest.mark.parametrize(
    ("basis", "steps", "least"), [("newton-schulz", 3, 1e-2), ("newton-schulz", 5, 1e-2), ("polar-express", 3, 1e-2)]
)
def test_an_iteration_that_has_not_converged_is_no_rotation(
    basis: str, steps: int, least: float, build: Callable[..., tuple[Tensor, Tensor, Tensor, float]]
) -> None:
    q, k, _, alpha = build("generic 3")
    assert (orthogonality_error(q, k, alpha, basis=basis, steps=steps) > least).all()
    assert (orthogonality_error(q, k, alpha, basis=basis, steps=40) < 1e-12).all()


# --- the bound ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("basis", "steps"), [("qr", None), *ITERATED, ("newton-schulz", 1), ("newton-schulz", 8)])
@pytest.mark.parametrize("size", [1e-3, 0.1, 0.5, 1.0, 3.0, 8.0])
def test_the_bound_holds(basis: str, steps: int | None, size: float) -> None:
    """Over random draws: tokens fewer and more than columns, independent, aligned and graded columns."""
    for seed in range(4):
        for tokens in (3, 8, 30):
            q, k = sample(3, 4, tokens, 4, seed=seed)
            k[1] = q[1] + 0.1 * k[1]
            q[2] *= 10.0 ** -torch.arange(4.0, dtype=torch.float64)
            alpha = size / float(skew_norm(q, k, 1.0).max())
            error = orthogonality_error(q, k, alpha, basis=basis, steps=steps)
            bound = orthogonality_bound(q, k, alpha, basis=basis, steps=steps)
            assert bound.shape == (3, 4)
            assert error.isfinite().all()
            assert (error <= bound * (1 + 1e-9) + 1e-13 * (1 + size)).all()


@pytest.mark.parametrize("steps", [1, 3, 5, 8, None])
def test_the_bound_is_theorem_3_1(steps: int | None) -> None:
    """(e^||S|| - 1)^2 max |s^2 (s^2 - 1)|, s the singular values of the literal iterate: none exceeds one."""
    q, k = sample(2, 3, 33, 4)
    alpha = torch.tensor([0.01, -0.05, 0.1], dtype=torch.float64)
    found = orthogonality_bound(q, k, alpha, steps=steps)
    s = torch.linalg.svdvals(naive.polar(torch.cat((q, k), -1), "newton-schulz", steps or 12, eps=0.0)).square()
    assert s.max() <= 1 + 1e-12
    norm = torch.linalg.matrix_norm(skew(q, k, alpha), 2)
    truth = torch.expm1(norm).square() * (s * (s - 1)).abs().amax(-1)
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-12)


def test_the_bound_of_an_orthonormal_basis_is_rounding() -> None:
    q, k = sample(2, 3, 33, 4)
    assert (orthogonality_bound(q, k, 0.1, basis="qr") <= 1e-12).all()
    assert (orthogonality_bound(q, k, 0.1, basis="newton-schulz", steps=5) > 1e-3).all()


# --- the norm -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 17, 40])
@pytest.mark.parametrize("lead", [(2, 3), (0, 3), (3,), (2, 2, 3)], ids=str)
@pytest.mark.parametrize("alpha", [0.3, -2, torch.tensor(-0.3), torch.tensor([0.1, -0.2, 0.0])], ids=str)
def test_the_norm_is_the_matrices_own(alpha: float | Tensor, lead: tuple[int, ...], tokens: int) -> None:
    q, k = sample(*lead, tokens, 4)
    found = skew_norm(q, k, alpha)
    assert found.shape == lead
    assert found.dtype == torch.float64
    truth = torch.linalg.matrix_norm(skew(q, k, alpha), 2)
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("exponent", [-4, 0, 2])
def test_the_norm_is_computed_in_float64(exponent: int, dtype: torch.dtype) -> None:
    q, k = (x * 10.0**exponent for x in sample(2, 3, 17, 4, dtype=dtype))
    with torch.autocast("cpu", torch.bfloat16):
        found = skew_norm(q, k, 0.3)
    truth = torch.linalg.matrix_norm(skew(q.double(), k.double(), 0.3), 2)
    assert ((found - truth).abs() <= 1e-12 * truth).all()


def test_the_norm_is_what_max_norm_has_to_cover() -> None:
    q, k = sample(4, 1, 20, 4)
    turn = skew_norm(q, k, 0.3)
    plane = torch.zeros(1, 1, 20, 4, dtype=torch.float64)
    plane[0, 0, 0, 0] = 2.0
    across = plane.roll(1, -2)  # S turns the first two tokens alone: its norm and its bound from the trace are one
    alone = skew_norm(plane, across, 1.0)
    torch.testing.assert_close(alone, torch.full((1, 1), 2.0, dtype=torch.float64))
    v = torch.ones(4, 1, 20, 2, dtype=torch.float64)
    assert orthogonal_attention(q, k, v, 0.3, max_norm=0.99 * float(turn.min())).isnan().all()
    assert orthogonal_attention(plane, across, v[:1], 1.0, max_norm=2.01).isfinite().all()
    assert orthogonal_attention(plane, across, v[:1], 1.0, max_norm=1.99).isnan().all()


# --- what must not leak -------------------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("tokens", [1, 3, 20])
@pytest.mark.parametrize("which", [0, 1])
def test_nan_is_nan_of_that_matrix_alone(which: int, tokens: int, bad: float, basis: str, steps: int | None) -> None:
    inputs = sample(2, 3, tokens, 4)
    inputs[which][1, 2, tokens // 2, 1] = bad
    lost = torch.zeros(2, 3, dtype=torch.bool)
    lost[1, 2] = True
    found = [skew_norm(*inputs, 0.1)]
    found += [orthogonality_error(*inputs, 0.1, basis=basis, steps=steps, max_norm=m) for m in (None, 14.0, 40.0)]
    if basis != "gram":
        found.append(orthogonality_bound(*inputs, 0.1, basis=basis, steps=steps))
    for x in found:
        assert torch.equal(x.isnan(), lost)


@every_form
@pytest.mark.parametrize("max_norm", [2.0, 20.0])
def test_beyond_max_norm_is_nan_for_that_matrix_alone(max_norm: float, basis: str, steps: int | None) -> None:
    q, k = sample(3, 2, 20, 4)
    alpha = 0.4 * max_norm / float(skew_norm(q, k, 1.0).max())
    q[1, 0] *= 8.0
    lost = torch.zeros(3, 2, dtype=torch.bool)
    lost[1, 0] = True
    assert torch.equal(orthogonality_error(q, k, alpha, basis=basis, steps=steps, max_norm=max_norm).isnan(), lost)


@every_form
@pytest.mark.parametrize("shape", [(2, 3, 0, 4), (2, 3, 1, 4), (0, 3, 5, 4), (2, 0, 5, 4), (3, 0, 4)], ids=str)
def test_no_token_and_one_token_do_not_turn(shape: tuple[int, ...], basis: str, steps: int | None) -> None:
    q, k = sample(*shape)
    results = [skew_norm(q, k, 0.3)]
    results += [orthogonality_error(q, k, 0.3, basis=basis, steps=steps, max_norm=m) for m in (None, 8.0, 40.0)]
    if basis != "gram":
        results.append(orthogonality_bound(q, k, 0.3, basis=basis, steps=steps))
    for x in results:
        assert x.shape == shape[:-2]
        assert (x.abs() <= 1e-13).all()


@every_form
@pytest.mark.parametrize("alpha", [0.1, torch.tensor(0.1), torch.tensor([0.1, 0.1, 0.1])], ids=str)
def test_alpha_may_be_a_number_or_a_tensor(alpha: float | Tensor, basis: str, steps: int | None) -> None:
    q, k = sample(2, 3, 17, 4)
    plain = orthogonality_error(q, k, 0.1, basis=basis, steps=steps)
    found = orthogonality_error(q, k, alpha, basis=basis, steps=steps)
    torch.testing.assert_close(found, plain, rtol=1e-6, atol=1e-13)
    if basis != "gram":
        bounds = [orthogonality_bound(q, k, a, basis=basis, steps=steps) for a in (alpha, 0.1)]
        torch.testing.assert_close(*bounds, rtol=1e-6, atol=1e-13)


# --- how it computes ----------------------------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    """The largest tensor that any operator makes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            self.largest = max(self.largest, x.numel() if isinstance(x, Tensor) else 0)
        return result


@every_form
def test_never_tokens_by_tokens(basis: str, steps: int | None) -> None:
    q, k = sample(1, 1, 1000, 4)
    with Watch() as watch:
        orthogonality_error(q, k, 0.01, basis=basis, steps=steps)
        skew_norm(q, k, 0.01)
        if basis != "gram":
            orthogonality_bound(q, k, 0.01, basis=basis, steps=steps)
    assert 1000 * 8 <= watch.largest <= 1000 * 16


# --- what users are told ------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_one_clear_line() -> None:
    q, k = sample(2, 3, 17, 4)
    bad = [
        (orthogonality_bound, {"basis": "gram"}, "gram"),
        (orthogonality_bound, {"basis": "muon"}, "gram, qr, newton-schulz, polar-express"),
        (orthogonality_bound, {"basis": "qr", "steps": 3}, "takes no steps"),
        (orthogonality_bound, {"alpha": torch.ones(2)}, r"\(heads,\) = \(3,\)"),
        (orthogonality_error, {"basis": "muon"}, "gram, qr, newton-schulz, polar-express"),
        (orthogonality_error, {"steps": 3}, "takes no steps"),
        (orthogonality_error, {"basis": "newton-schulz", "steps": 0}, "None for 12"),
        (orthogonality_error, {"k": k[..., :3]}, r"k \(2, 3, 17, 3\)"),
        (orthogonality_error, {"k": k.long()}, "k must be of a floating-point type"),
        (orthogonality_error, {"max_norm": 0.0}, "max_norm"),
        (orthogonality_error, {"max_norm": math.nan}, "max_norm"),
        (orthogonality_error, {"max_norm": math.inf, "basis": "qr"}, "max_norm"),
        (skew_norm, {"alpha": torch.ones(2)}, r"\(heads,\) = \(3,\)"),
        (skew_norm, {"q": q[0, 0], "k": k[0, 0]}, "tokens"),
    ]
    for function, change, words in bad:
        with pytest.raises(UsageError, match=words) as caught:
            function(**{"q": q, "k": k, "alpha": 0.1, **change})
        assert "\n" not in str(caught.value)
