"""phi_1(Z) U at any norm: one Chebyshev action up to 16, doublings in float64 beyond.

Its rounding error grows with the square of the norm (theta^2 is known to eps rho^2). Beyond 16, F = phi_1(Z / 2^s) /
2^s is formed and doubled, F <- 2 F + F Z F, whose error grows with the norm alone and which leaves a matrix of small
norm in the same batch as exact as it was; and since S itself is known to the rounding unit times its norm, this is
done in float64 where the device has it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.errors import UsageError
from zoo.ops._chebyshev import Series, action, series
from zoo.ops._modes import transformed


def plan(bound: float) -> tuple[float, int]:
    """The rho of the Chebyshev action, and the doublings after it: none up to 16, else from 8 or less."""
    if torch.compiler.is_dynamo_compiling():  # the length of the graph depends on it: it must not become symbolic
        from torch.fx.experimental.symbolic_shapes import guard_scalar

        bound = guard_scalar(bound)
    doublings = math.ceil(math.log2(bound / 8.0)) if bound > 16.0 else 0
    return bound / 2.0**doublings, doublings


def needs_double(doublings: int, like: Tensor) -> bool:
    """Whether the doublings ask for a wider type than `like` has, on a device that has it."""
    return doublings > 0 and like.dtype == torch.float32 and like.device.type != "mps"


def table_of(rho: float, doublings: int, dtype: torch.dtype) -> Series:
    """The coefficients to the accuracy of `dtype`, better where doublings follow."""
    return series(rho, torch.finfo(dtype).eps * (0.05 if doublings else 1.0))


def phi1(z: Tensor, u: Tensor, rho: float, table: Series, doublings: int) -> Tensor:
    """phi_1(Z) U for a norm up to 2^doublings rho; z: (batch, m, m), u: (batch, m, n). NaN beyond."""
    if not doublings:
        return action(z, u, rho, table)[0]
    shrunk = 0.5**doublings
    eye = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device).expand(z.shape)
    if transformed() or torch.compiler.is_dynamo_compiling():
        eye = eye + torch.zeros_like(z)  # what is written in place needs z's batch under vmap
    f = action(z * shrunk, eye * shrunk, rho, table)[0]
    for _ in range(doublings - 1):
        f = torch.baddbmm(f, f, torch.bmm(z, f), beta=2.0)
    y = torch.bmm(f, u)  # the last doubling acts on U alone
    return torch.baddbmm(y, f, torch.bmm(z, y), beta=2.0)


@torch.no_grad()
def bound_of(z: Tensor, size: Tensor | float = 1.0) -> float:
    """A bound on the spectral radius of size Z that covers the batch, from (tr Z^4 / 2)^(1/4): a power of sqrt(2).

    At least 1; 2^40 at most: beyond, the angles are lost even in float64, and the result is NaN. NaN counts for
    nothing.
    """
    if torch.compiler.is_exporting():
        raise UsageError("max_norm=None chooses from the data and cannot be exported; give max_norm a number")
    if not z.numel():
        return 1.0
    square = torch.bmm(z, z)
    norms = size * (0.5 * (square * square.mT).sum((-2, -1))).clamp_min(0.0) ** 0.25
    most = norms.nan_to_num(0.0).max()
    try:
        largest = float(most)
    except RuntimeError as error:
        if not transformed():
            raise
        raise UsageError(
            "max_norm=None chooses from the data, which torch.func.vmap cannot; give max_norm a number"
        ) from error
    return 2.0 ** (0.5 * math.ceil(2.0 * math.log2(min(max(1.0, 1.01 * largest), 2.0**40))))
