"""The polar factor of a matrix by an odd polynomial iteration, carried out on the small Gram matrix.

A step X <- X (a I + b X^T X + c (X^T X)^2) leaves the singular vectors alone and sends every singular value through
a s + b s^3 + c s^5. So several steps are X Q with Q a polynomial in R = X^T X, and need no tall matrix at all:

    P = a I + b R + c R^2,   Q <- Q P,   R <- P R P      (R, P, Q commute and stay symmetric).

R is known to the rounding unit of its largest eigenvalue, and each step multiplies that error by up to a^2 in the
directions of small singular values; a rank lost in X even gives R negative eigenvalues, which the iteration blows up.
So before the errors have grown by `_GROWTH` the tall X Q is formed and R computed anew (a restart).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.errors import UsageError
from zoo.ops._modes import full_precision, is_dense_float, is_number, shown

Schedule = tuple[tuple[float, float, float], ...]

CUBIC = (1.5, -0.5, 0.0)
# Amsel, Persson, Musco and Gower, arXiv 2505.16932, for singular values from 1e-3 to 1: the best odd quintic of each
# step after the steps before it. What follows the list is the classical quintic.
POLAR_EXPRESS: Schedule = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)
QUINTIC = (1.875, -1.25, 0.375)
DEFAULT_STEPS = {"newton-schulz": 12, "polar-express": 8}
_GROWTH = {torch.float32: 100.0, torch.float64: 1e5}  # of the error, before a restart
# Polar Express needs its singular values a little below one: its polynomials are best there and wild beyond.
MARGIN = {"newton-schulz": 1.0, "polar-express": 1.01}


def polar(x: Tensor, method: str = "polar-express", steps: int | None = None, *, eps: float = 1e-7) -> Tensor:
    """U V^T of the thin singular value decomposition x = U diag(s) V^T, by `steps` steps of an iteration.

    Args:
        x: (..., m, n), any shape; float16 and bfloat16 are computed in wider arithmetic and cast back.
        method: "newton-schulz", the cubic X (3 I - X^T X) / 2, or "polar-express" (arXiv 2505.16932).
        steps: 12 and 8 unless given. A singular value s of x converges when s / ||x||_F is above about 0.01 (12 cubic
            steps) or 0.001 (8 of Polar Express); a smaller one ends between 0 and 1, zero stays zero.
            Before its sixth step Polar Express sends some values far beyond 1, up to 1.99.
        eps: x / (margin (||x||_F + eps)) starts the iteration, as in the source. It dampens a matrix whose norm is no
            more than eps; with 0 the result does not depend on the scale of x.

    Returns:
        (..., m, n) in x's dtype. NaN or infinity in a matrix makes that matrix NaN.

    Raises:
        UsageError: what does not fit.
    """
    if x.dim() < 2 or not is_dense_float(x):
        raise UsageError(f"x must be dense (..., m, n) of a floating-point type from float16 on, not {shown(x)}")
    if not (is_number(eps) and 0.0 <= eps < math.inf):
        raise UsageError(f"eps must be a number from 0 on, not {eps!r}")
    schedule = schedule_of(method, steps)
    if not x.numel():
        return x.clone()
    with full_precision(x.device):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return iterate(wide, schedule, MARGIN[method], eps).to(x.dtype)


def schedule_of(method: str, steps: int | None) -> Schedule:
    """The coefficients (a, b, c) of every step."""
    if not isinstance(method, str) or method not in DEFAULT_STEPS:
        raise UsageError(f"method {method!r} is not known; choose one of: {', '.join(DEFAULT_STEPS)}")
    count = DEFAULT_STEPS[method] if steps is None else steps
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"steps must be a whole number from 1 on, or None for {DEFAULT_STEPS[method]}; not {steps!r}")
    if method == "newton-schulz":
        return (CUBIC,) * count
    return (*POLAR_EXPRESS, *(QUINTIC,) * max(0, count - len(POLAR_EXPRESS)))[:count]


def iterate(x: Tensor, schedule: Schedule, margin: float, eps: float = 0.0) -> Tensor:
    """The last iterate from x / (margin (||x||_F + eps)); x: (..., m, n), float32 or float64."""
    if not (x.shape[-2] and x.shape[-1]):
        return x
    if x.shape[-2] < x.shape[-1]:  # the Gram matrix of the smaller side
        return iterate(x.mT, schedule, margin, eps).mT
    size = x.abs().amax((-2, -1), keepdim=True).detach()  # so that no square overflows; it drops out again
    size = torch.where(size == 0.0, 1.0, size)
    x = x / size
    square = x.square().sum((-2, -1), keepdim=True)
    norm = torch.where(square == 0.0, 0.0, torch.where(square == 0.0, 1.0, square).sqrt())
    if eps:
        norm = norm + eps / size
    x = x / (margin * torch.where(norm == 0.0, 1.0, norm))
    flat = x.flatten(0, -3) if x.dim() > 2 else x[None]
    eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    for stage in _stages(schedule, _GROWTH[x.dtype]):
        r, q = torch.bmm(flat.mT, flat), None
        for i, (a, b, c) in enumerate(stage):
            p = torch.add(a * eye, r, alpha=b)
            if c:
                p = torch.baddbmm(p, r, r, alpha=c)
            q = p if q is None else torch.bmm(q, p)
            if i + 1 < len(stage):
                r = torch.bmm(torch.bmm(r, p), p)
        assert q is not None
        flat = torch.bmm(flat, q)
    return flat.view(x.shape)


def _stages(schedule: Schedule, most: float) -> list[Schedule]:
    """The schedule cut where restarts are due."""
    stages: list[Schedule] = []
    growth = math.inf
    for step in schedule:
        if growth * step[0] ** 2 > most:
            stages.append(())
            growth = 1.0
        stages[-1] += (step,)
        growth *= step[0] ** 2
    return stages
