"""The update of the Manifold-Geometric Transformer against its equations, and what each part does alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import grad
from torch.nn import functional

from zoo.ops import delta_controller, delta_update, naive, soft_projection

SHAPES = [(1,), (0, 4), (1, 1, 3), (2, 2, 3), (2, 17, 17), (3, 5, 8), (2, 3, 2, 16)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sample(shape: tuple[int, ...]) -> list[Tensor]:
    """x, v, W_gate, W_beta, b_beta, alpha."""
    dim = shape[-1]
    return [
        *(normal(*shape, seed=seed) for seed in (0, 1)),
        *(normal(dim, dim, seed=seed) for seed in (2, 3)),
        normal(dim, seed=4),
        torch.tensor(0.3, dtype=torch.float64),
    ]


def fast(
    x: Tensor,
    v: Tensor,
    w_gate: Tensor,
    w_beta: Tensor,
    b_beta: Tensor,
    alpha: Tensor,
    scale: float = 1.0,
    shift: float = 0.0,
) -> Tensor:
    beta = delta_controller(x @ w_beta, b_beta, scale=scale, shift=shift)
    return delta_update(x, soft_projection(v, normed(x @ w_gate)), beta, alpha)


def normed(scores: Tensor) -> Tensor:
    return functional.layer_norm(scores, scores.shape[-1:])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1.0, 1.0), (0.5, -0.25)])
def test_it_is_the_equations(shape: tuple[int, ...], scale: float, shift: float) -> None:
    tensors = [tensor.requires_grad_() for tensor in sample(shape)]
    weight = normal(*shape, seed=5)
    found, true = (function(*tensors, scale=scale, shift=shift) for function in (fast, naive.manifold_update))
    torch.testing.assert_close(found, true, rtol=1e-12, atol=1e-12)
    for one, other in zip(grad(found, tensors, weight), grad(true, tensors, weight), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_half_precision_the_error_is_at_most_twice_that_of_the_equations(dtype: torch.dtype) -> None:
    tensors = sample((64, 32))
    low = [tensor.to(dtype) for tensor in tensors]
    truth = naive.manifold_update(*(tensor.double() for tensor in low))
    ours, theirs = ((function(*low).double() - truth).norm() for function in (fast, naive.manifold_update))
    assert fast(*low).dtype == dtype
    assert ours <= 2 * theirs


def test_gradients_hold_against_differences() -> None:
    assert torch.autograd.gradcheck(fast, [tensor.requires_grad_() for tensor in sample((2, 3, 5))])


def test_the_controller_stays_in_its_range_and_is_ddls_gate() -> None:
    z = torch.linspace(-20, 20, 101, dtype=torch.float64)
    for scale, shift in ((1.0, 0.0), (1.0, 1.0), (0.5, 0.5)):
        beta = delta_controller(z, scale=scale, shift=shift)
        assert beta.min() >= shift - scale and beta.max() <= shift + scale
    torch.testing.assert_close(delta_controller(z, shift=1.0), 2 * torch.sigmoid(2 * z))


def test_the_gate_has_the_mean_and_the_spread_that_the_norm_gives_it() -> None:
    scores = normal(10_000, 64)
    gate = soft_projection(torch.ones_like(scores), normed(7.3 * scores))
    assert math.isclose(gate.mean(), 0.5, abs_tol=0.01) and math.isclose(gate.std(), 0.21, abs_tol=0.01)
    doubled = soft_projection(torch.ones_like(scores), normed(scores), scale=2.0)
    torch.testing.assert_close(doubled, 2 * gate, atol=1e-4, rtol=0)


def test_what_beta_and_alpha_mean() -> None:
    x, v = normal(3, 4), normal(3, 4, seed=1)
    assert torch.equal(delta_update(x, v, 0.0, 0.3), x)
    torch.testing.assert_close(delta_update(x, v, 1.0, 0.0), x + v)
    torch.testing.assert_close(delta_update(x, v, 1.0, 1.0), v)
    torch.testing.assert_close(delta_update(x, torch.zeros_like(x), 2.0, 1.0), -x)
    beta = torch.full_like(x, 0.5)
    torch.testing.assert_close(delta_update(x, v, beta, torch.tensor(0.1)), delta_update(x, v, 0.5, 0.1))


def test_the_stream_keeps_its_precision_under_a_narrower_branch() -> None:
    x, v, beta = normal(3, 4).float(), normal(3, 4, seed=1).bfloat16(), normal(3, 4, seed=2).bfloat16()
    out = delta_update(x, v, beta, torch.tensor(0.1))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, delta_update(x, v.float(), beta.float(), torch.tensor(0.1)))
