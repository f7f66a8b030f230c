"""Rotary position embedding (RoPE, arXiv 2104.09864) in the half-split order of Llama."""

from __future__ import annotations

import torch
from torch import Tensor


def signed_sine(sin: Tensor) -> Tensor:
    """`sin` with its first half negated, as `apply_rotary` takes it. sin: (..., head_dim) -> the same shape."""
    first, second = sin.chunk(2, -1)
    return torch.cat((-first, second), -1)


def apply_rotary(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Feature i and feature i + head_dim / 2 of every token turned by its position's angle.

    x: (..., tokens, head_dim), head_dim even; cos, signed_sin: broadcast to x, the latter from `signed_sine`, both in
    float32 or better. Returns x's shape and dtype, rounded once. The halves change places by a roll, and the sign is
    in the sine: three passes instead of six.
    """
    swapped = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * cos, swapped, signed_sin).to(x.dtype)
