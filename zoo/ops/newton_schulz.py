"""The Newton-Schulz transformation of a head's output (arXiv 2609.27735)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.errors import UsageError
from zoo.ops._modes import (
    full_precision,
    is_dense_float,
    is_number,
    only_numbers,
    recorded,
    shown,
    transformed,
    watched,
)
from zoo.ops._ns_gram import Coefficients, Iteration, transform, transform_by_hand

MUON: Coefficients = (3.4445, -4.7750, 2.0315)


def newton_schulz(
    x: Tensor, *, steps: int = 1, coefficients: tuple[float, float, float] = MUON, eps: float = 1e-6
) -> Tensor:
    """Pull the singular values of every (tokens, head_dim) matrix of x towards each other, its Frobenius norm kept.

    Equations 2 to 5 of the source, with M = x^T for every leading index and r = ||M||_F:

        Z_0 = M / max(r, eps),   Z <- a Z + (b Z Z^T + c (Z Z^T)^2) Z  `steps` times,   M_hat = r Z / max(||Z||_F, eps)

    The singular vectors stay what they are. The default coefficients are not monotone: a middle singular value can
    come out above the largest.

    Args:
        x: (..., tokens, head_dim): what attention gives before the heads are merged.
        steps: K, the number of iterations.
        coefficients: (a, b, c) of the polynomial a s + b s^3 + c s^5 on the singular values.
        eps: the source's clamp. Above a norm of eps the result scales along with x. Below it Z_0 is smaller than one,
            where the polynomial is nearly linear: the matrix is then transformed less and less, keeping its norm down
            to about eps^2 / a^K and shrinking below it. With 0 nothing is clamped: the result scales along everywhere.

    Returns:
        x's shape and dtype. The arithmetic is float64 where x is, else float32, also under autocast. A zero matrix
        gives zero, with zero gradients. NaN or infinity in a matrix makes that matrix NaN. Norms are squared: in
        float32 one beyond 1e18 may give NaN and one below 1e-22 counts as zero, unless eps is 0, where each matrix
        is scaled by its largest entry first.

    Raises:
        UsageError: what does not fit.
    """
    if not isinstance(x, Tensor) or x.dim() < 2 or not is_dense_float(x):
        raise UsageError(
            f"x must be dense (..., tokens, head_dim) of a floating-point type from float16 on, not {shown(x)}"
        )
    check_iteration(steps, coefficients, eps)
    if not x.numel():
        return x.clone()
    a, b, c = (float(value) for value in coefficients)
    how = Iteration(steps, (a, b, c), float(eps))
    with full_precision(x.device):
        flat = x.reshape(-1, *x.shape[-2:])
        if how.eps and (only_numbers(x) or (watched(x) and not recorded() and not transformed())):
            return transform_by_hand(flat, how).view(x.shape)
        wide = flat.to(torch.promote_types(x.dtype, torch.float32))
        return transform(wide, how, recorded=recorded()).to(x.dtype).view(x.shape)


def check_iteration(steps: int, coefficients: tuple[float, float, float] = MUON, eps: float = 0.0) -> None:
    """UsageError unless these are a number of steps, the coefficients of one, and a clamp."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise UsageError(f"steps must be a whole number from 1 on, not {steps!r}")
    if not isinstance(coefficients, tuple | list) or len(coefficients) != 3 or not all(map(_finite, coefficients)):
        raise UsageError(f"coefficients must be three finite numbers (a, b, c), not {coefficients!r}")
    if not (_finite(eps) and 0.0 <= eps <= 1e18):
        raise UsageError(f"eps must be a number from 0 to 1e18, not {eps!r}")


def _finite(value: object) -> bool:
    """By comparison: a compiler that follows the number knows no `math.isfinite`."""
    return is_number(value) and not isinstance(value, bool) and -math.inf < value < math.inf  # type: ignore[operator]
