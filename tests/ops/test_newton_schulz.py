"""The Newton-Schulz transformation against Algorithm 1 as it is written, and what it keeps of a matrix."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import grad

from zoo.errors import UsageError
from zoo.ops import naive, newton_schulz

MUON = (3.4445, -4.7750, 2.0315)
COEFFICIENTS = [MUON, (1.5, -0.5, 0.0), (1.875, -1.25, 0.375)]
DTYPES = [torch.float32, torch.float64]
WITHIN = {torch.float32: 2e-6, torch.float64: 1e-12}
SHAPES = [(1, 1), (1, 16), (2, 5), (3, 3), (16, 16), (16, 32), (17, 5), (17, 32), (65, 16)]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_step = pytest.mark.parametrize("steps", [1, 2, 3, 5])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def both(function: Callable[..., Tensor], x: Tensor, weight: Tensor, **how: object) -> tuple[Tensor, Tensor]:
    """What the function gives at x, and the gradient of its inner product with `weight`."""
    x = x.detach().requires_grad_()
    out = function(x, **how)
    return out.detach(), grad(out, x, weight.to(out.dtype))[0]


def error(found: Tensor, truth: Tensor) -> Tensor:
    """Of every matrix, the largest difference over its largest entry; infinite where something is not finite."""
    size, off = truth.abs().amax((-2, -1)), (found.double() - truth).abs().amax((-2, -1))
    return torch.where(off == 0.0, 0.0, off / size).nan_to_num(torch.inf)


def compare(x: Tensor, **how: object) -> None:
    """Output and gradient at x against Algorithm 1 in float64.

    More than two steps multiply the rounding of Algorithm 1 itself beyond the tolerance in float32: there twice its
    error is allowed, on average over the matrices, because the largest of a few is a matter of luck.
    """
    weight = normal(*x.shape, seed=1).to(x.dtype)
    truth = both(naive.newton_schulz, x.double(), weight.double(), **how)
    plain = both(naive.newton_schulz, x, weight, **how)
    followed = both(newton_schulz, x, weight, **how)
    for found, true, other in zip(followed, truth, plain, strict=True):
        assert found.dtype == x.dtype and found.shape == x.shape
        if x.dtype == torch.float32 and how.get("steps", 1) > 2:
            assert error(found, true).mean() <= max(2e-6, 2 * float(error(other, true).mean()))
        else:
            assert error(found, true).max() <= WITHIN[x.dtype]
    with torch.no_grad():
        assert torch.equal(newton_schulz(x, **how), followed[0])


# --- Algorithm 1 --------------------------------------------------------------------------------------------------


@every_dtype
@every_step
@every_shape
def test_it_is_algorithm_1(shape: tuple[int, int], steps: int, dtype: torch.dtype) -> None:
    for coefficients in COEFFICIENTS:
        compare(normal(8, *shape).to(dtype), steps=steps, coefficients=coefficients)


@every_dtype
def test_the_defaults_are_the_papers(dtype: torch.dtype) -> None:
    x = normal(2, 3, 65, 16).to(dtype)
    compare(x)
    assert torch.equal(newton_schulz(x), newton_schulz(x, steps=1, coefficients=MUON, eps=1e-6))
    assert not torch.equal(newton_schulz(x), newton_schulz(x, steps=2))


@pytest.mark.parametrize("lead", [(), (1,), (0,), (3,), (2, 0, 3), (2, 1, 3)], ids=str)
def test_every_leading_index_is_a_matrix(lead: tuple[int, ...]) -> None:
    for shape in ((17, 5), (5, 17)):
        x, weight = normal(*lead, *shape), normal(*lead, *shape, seed=1)
        out, gradient = both(newton_schulz, x, weight, steps=2)
        assert out.shape == gradient.shape == x.shape
        flat = zip(*(y.reshape(-1, *shape) for y in (x, weight, out, gradient)), strict=True)
        for one, along, transformed, pulled in flat:
            found = both(naive.newton_schulz, one, along, steps=2)
            torch.testing.assert_close((transformed, pulled), found, rtol=0, atol=1e-13)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 0)], ids=str)
def test_nothing_in_nothing_out(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, requires_grad=True)
    out = newton_schulz(x)
    assert out.shape == grad(out.sum(), x)[0].shape == x.shape


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", ["merged heads", "features first", "every other", "expanded", "backwards"])
def test_strides_do_not_count(kind: str, steps: int) -> None:
    x = normal(2, 6, 4, 10)
    view = {
        "merged heads": lambda x: x.transpose(1, 2),
        "features first": lambda x: x.mT,
        "every other": lambda x: x[:, ::2, 1:, ::3],
        "expanded": lambda x: x[:1, :, :, :1].expand(3, 6, 4, 7),
        "backwards": lambda x: x.flip(-1)[..., :3],
    }[kind]
    weight = normal(*view(x).shape, seed=1)

    def of_view(function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: function(view(x), steps=steps)

    found, truth = (both(of_view(function), x, weight) for function in (newton_schulz, naive.newton_schulz))
    torch.testing.assert_close(found, truth, rtol=0, atol=1e-12)


def spectrum(kind: str, tokens: int, width: int) -> Tensor:
    """(8, tokens, width) of a kind that is hard on a Gram matrix."""
    x, along, across = normal(8, tokens, width), normal(8, tokens, 1, seed=2), normal(8, 1, width, seed=3)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    match kind:
        case "rank one":
            return along * across
        case "nearly rank one":
            return along * across + 0.01 * x
        case "very nearly rank one":
            return along * across + 1e-4 * x
        case "equal":
            return u @ vh
        case "two values":
            return (u * torch.where(torch.arange(s.shape[-1]) < 2, 1.0, 0.1)) @ vh
        case "graded":
            return (u * 10.0 ** -torch.linspace(0, 6, s.shape[-1], dtype=s.dtype)) @ vh
        case "large column":
            return x * torch.where(torch.arange(width) == 0, 100.0, 1.0)
        case "large row":
            return x * torch.where(torch.arange(tokens) == 0, 100.0, 1.0)[:, None]
        case "sparse":
            return torch.where(normal(8, tokens, width, seed=4) > 1.0, x, 0.0)
        case "equal tokens":
            return across.expand(8, tokens, width)
        case "equal features":
            return along.expand(8, tokens, width)
    raise ValueError(kind)


KINDS = ["rank one", "nearly rank one", "very nearly rank one", "equal", "two values", "graded"]
KINDS += ["large column", "large row", "sparse", "equal tokens", "equal features"]


@every_dtype
@every_step
@pytest.mark.parametrize("kind", KINDS)
def test_hard_spectra(kind: str, steps: int, dtype: torch.dtype) -> None:
    """A near rank one is where a norm or a second step from the first Gram matrix alone lost a digit in float32."""
    for shape in ((65, 16), (16, 64), (16, 16)):
        compare(spectrum(kind, *shape).to(dtype), steps=steps)


@every_dtype
@pytest.mark.parametrize("eps", [1e-6, 0.0])
def test_a_batch_of_all_sizes(eps: float, dtype: torch.dtype) -> None:
    x = normal(5, 17, 6) * torch.tensor([1e12, 1.0, 1e-5, 1e-9, 1e-12], dtype=torch.float64)[:, None, None]
    compare(x.to(dtype), eps=eps)


# --- what it keeps ------------------------------------------------------------------------------------------------


@every_step
@every_shape
def test_the_frobenius_norm_and_the_singular_vectors_stay(shape: tuple[int, int], steps: int) -> None:
    """M_hat = U f(S) V^T, f the polynomial step after step on S / ||S||, scaled to the norm of S."""
    x = 3.0 * normal(4, *shape)
    out = newton_schulz(x, steps=steps)
    norm = torch.linalg.matrix_norm(x)
    torch.testing.assert_close(torch.linalg.matrix_norm(out), norm, rtol=1e-12, atol=0)
    u, values, vh = torch.linalg.svd(x, full_matrices=False)
    a, b, c = MUON
    s = values / norm[:, None]
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    s = s * (norm / s.norm(dim=-1))[:, None]
    torch.testing.assert_close(u.mT @ out @ vh.mT, torch.diag_embed(s), rtol=0, atol=1e-11)


def test_a_middle_singular_value_can_overtake_the_largest() -> None:
    values = torch.tensor([0.9, 0.4, math.sqrt(1 - 0.81 - 0.16)], dtype=torch.float64)
    found = newton_schulz(values.diag()).diagonal()
    assert found[1] > found[0] > found[2] > 0.0
    torch.testing.assert_close(found.norm(), values.norm())


def test_the_first_step_by_hand() -> None:
    """Singular values 3 and 4, norm 5: 0.6 and 0.8 through the cubic give 0.792 and 0.944."""
    found = newton_schulz(torch.tensor([[3.0, 0.0], [0.0, 4.0]]).double(), coefficients=(1.5, -0.5, 0.0)).diagonal()
    wanted = torch.tensor([0.792, 0.944], dtype=torch.float64)
    torch.testing.assert_close(found, 5.0 * wanted / wanted.norm())


# --- scale --------------------------------------------------------------------------------------------------------


@every_dtype
@pytest.mark.parametrize("eps", [1e-6, 0.0])
@pytest.mark.parametrize("steps", [1, 3])
def test_every_scale(steps: int, eps: float, dtype: torch.dtype) -> None:
    """Algorithm 1 at 10^k, k from -15 to 15: above eps, or without it, the result scales along and gradients stay."""
    x = normal(2, 33, 8)
    x = x / torch.linalg.matrix_norm(x, keepdim=True)
    weight = normal(2, 33, 8, seed=1)
    still = both(naive.newton_schulz, x, weight, steps=steps)
    for k in range(-15, 16):
        scaled = (x * 10.0**k).to(dtype)
        compare(scaled, steps=steps, eps=eps)
        out, gradient = both(newton_schulz, scaled, weight, steps=steps, eps=eps)
        assert out.isfinite().all() and gradient.isfinite().all()
        assert (out != 0.0).all() and (gradient != 0.0).all()
        if k > -6 or not eps:
            assert error(out.double() / 10.0**k, still[0]).max() <= 2 * WITHIN[dtype]
            assert error(gradient, still[1]).max() <= 2 * WITHIN[dtype]


def test_what_the_clamp_does_below_it() -> None:
    """As documented: nearly linear, of the same norm down to eps^2 / a^K, and shrinking with the square below it."""
    x = normal(2, 33, 8)
    x = x / torch.linalg.matrix_norm(x, keepdim=True)
    for steps in (1, 2):
        small = newton_schulz(1e-9 * x, steps=steps)
        assert error(small, 1e-9 * x).max() <= 1e-3
        torch.testing.assert_close(small.norm(dim=(-2, -1)) / 1e-9, torch.ones(2).double(), rtol=1e-9, atol=0)
        tiny = newton_schulz(1e-15 * x, steps=steps)
        gain = 3.4445**steps * 1e-15 / 1e-12
        assert gain < 1.0
        torch.testing.assert_close(tiny / 1e-15, gain * x, rtol=1e-6, atol=1e-15)


@every_dtype
def test_no_clamp_has_no_range(dtype: torch.dtype) -> None:
    x = normal(2, 9, 4)
    for k in (-30, 30):
        found = newton_schulz((x * 10.0**k).to(dtype), eps=0.0).double() / 10.0**k
        assert error(found, newton_schulz(x)).max() <= 2 * WITHIN[dtype]


def test_beyond_the_range_of_the_squares_it_is_nan() -> None:
    """Never silently zero: between what the squares of X and those of Y_K hold, too."""
    for size in torch.logspace(17, 22, 41):
        for x in (size * torch.eye(16), (size * torch.eye(16)).requires_grad_()):
            found = newton_schulz(x).diagonal()
            assert found.isnan().all() or torch.allclose(found, size.expand(16), rtol=1e-5)


# --- zero, NaN and infinity ---------------------------------------------------------------------------------------


@every_dtype
@pytest.mark.parametrize("eps", [1e-6, 1e-25, 0.0])
@pytest.mark.parametrize("shape", [(9, 4), (4, 9)], ids=str)
def test_zero_matrices_stay_zero(shape: tuple[int, int], eps: float, dtype: torch.dtype) -> None:
    """With zero gradients, and they leave the others alone, even under an eps whose square is none."""
    x, weight = normal(2, 3, *shape).to(dtype), normal(2, 3, *shape, seed=1)
    for steps in (1, 2):
        full = both(newton_schulz, x, weight, steps=steps, eps=eps)
        holed = x.clone()
        holed[0, 1] = holed[1, 2] = 0.0
        for found, whole in zip(both(newton_schulz, holed, weight, steps=steps, eps=eps), full, strict=True):
            keep = torch.ones(2, 3, dtype=torch.bool)
            keep[0, 1] = keep[1, 2] = False
            assert (found[~keep] == 0.0).all()
            torch.testing.assert_close(found[keep], whole[keep], rtol=0, atol=1e-6)


@pytest.mark.parametrize("eps", [1e-6, 0.0])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [(9, 4), (4, 9)], ids=str)
def test_nan_and_infinity_stay_in_their_matrix(shape: tuple[int, int], value: float, eps: float) -> None:
    x, weight = normal(3, *shape), normal(3, *shape, seed=1)
    for steps in (1, 2):
        whole = both(newton_schulz, x, weight, steps=steps, eps=eps)
        bad = x.clone()
        bad[1, 2, 3] = value
        for found, good in zip(both(newton_schulz, bad, weight, steps=steps, eps=eps), whole, strict=True):
            assert found[1].isnan().all()
            torch.testing.assert_close(found[[0, 2]], good[[0, 2]], rtol=0, atol=1e-14)


# --- half precision -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("kind", ["generic", "rank one", "large column", "sparse"])
def test_half_precision_has_at_most_twice_the_naive_error(kind: str, steps: int, dtype: torch.dtype) -> None:
    for shape in ((65, 16), (16, 32)):
        x = (normal(8, *shape) if kind == "generic" else spectrum(kind, *shape)).to(dtype)
        weight = normal(*x.shape, seed=1).to(dtype)
        truth = both(naive.newton_schulz, x.double(), weight.double(), steps=steps)
        plain = both(naive.newton_schulz, x, weight, steps=steps)
        for found, true, other in zip(both(newton_schulz, x, weight, steps=steps), truth, plain, strict=True):
            assert found.dtype == dtype
            assert error(found, true).max() <= 2 * error(other, true).max()
            assert error(found, true).max() <= torch.finfo(dtype).eps  # rounded once


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_does_not_reach_it(dtype: torch.dtype) -> None:
    x, weight = normal(3, 33, 8).to(dtype), normal(3, 33, 8, seed=1)
    for steps in (1, 2):
        plain = both(newton_schulz, x, weight, steps=steps)
        with torch.autocast("cpu", torch.bfloat16):
            inside = both(newton_schulz, x, weight, steps=steps)
            with torch.no_grad():
                assert torch.equal(newton_schulz(x, steps=steps), plain[0])
        for found, wanted in zip(inside, plain, strict=True):
            assert found.dtype == dtype and torch.equal(found, wanted)


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.ones(3, 4, dtype=torch.int64), "int64"),
        (torch.ones(3, 4, dtype=torch.complex64), "complex64"),
        (torch.ones(3, 4, dtype=torch.bool), "bool"),
        (torch.ones(3, 4).to(torch.float8_e4m3fn), "float8"),
        (torch.ones(3, 4).to_sparse(), "sparse"),
        (torch.ones(3), r"\(3,\)"),
        (torch.tensor(1.0), r"\(\)"),
        ([[1.0, 2.0]], "list"),
        (None, "NoneType"),
    ],
    ids=str,
)
def test_what_is_no_matrix(x: object, said: str) -> None:
    with pytest.raises(UsageError, match=rf"x must be dense \(\.\.\., tokens, head_dim\) .*{said}") as caught:
        newton_schulz(x)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "how",
    [
        *({"steps": value} for value in (0, -1, True, 1.5, "2", None)),
        *({"coefficients": value} for value in ((1.5, -0.5), (1.0, 2.0, math.nan), (1.0, 2.0, "3"), 3.0, None)),
        *({"eps": value} for value in (-1e-6, math.nan, math.inf, "0", None, True)),
    ],
    ids=str,
)
def test_bad_arguments(how: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(how))} must be ") as caught:
        newton_schulz(torch.ones(3, 2), **how)
    assert "\n" not in str(caught.value)
