"""Initialisations that keep a network without skips and norms well conditioned."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from zoo.errors import UsageError


@torch.no_grad()
def stiefel_(weight: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill `weight` with one uniform sample of the Stiefel manifold: its rows become orthonormal.

    `weight`: (rows, columns) of an `nn.Linear`, rows <= columns, so that its transpose is a point of V_rows(R^columns).
    Uniform by the sign-corrected QR of a Gaussian (Mezzadri, arXiv math-ph/0609050), as arXiv 2602.05996
    section 4 asks.

    Raises
    ------
    UsageError
        More rows than columns: there are no orthonormal rows then.
    """
    if weight.ndim != 2 or weight.shape[0] > weight.shape[1]:
        raise UsageError(
            f"orthonormal rows need a (rows, columns) matrix with rows <= columns, got {tuple(weight.shape)}"
        )
    return _orthogonal_(weight, 1.0, generator)


@torch.no_grad()
def scaled_uniform_orthogonal_(weight: Tensor, gain: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
    """Scaled uniform orthogonal initialisation (SUO; Martens et al., arXiv 2110.01765).

    `weight`: (out, in, ...) of an `nn.Linear` or a patch embedding; what follows the first axis counts as input,
    which is right for a convolution whose kernel equals its stride. W = gain · s · (Haar orthogonal) with
    s = max(sqrt(out / in), 1): the mean square of the features is kept, exactly when out >= in and on average
    otherwise. The biases that belong to it are zero.
    """
    fan_out, fan_in = weight.shape[0], weight[0].numel()
    return _orthogonal_(weight, gain * max(math.sqrt(fan_out / fan_in), 1.0), generator)


def _orthogonal_(weight: Tensor, gain: float, generator: torch.Generator | None) -> Tensor:
    """torch's `orthogonal_`, drawn in float32 where `weight` is narrower: there is no QR in half precision."""
    if weight.dtype in (torch.float32, torch.float64):
        return nn.init.orthogonal_(weight, gain, generator)
    wide = torch.empty_like(weight, dtype=torch.float32)
    return weight.copy_(nn.init.orthogonal_(wide, gain, generator))
