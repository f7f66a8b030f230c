"""exp of a batch of square matrices: matrix products only, a fixed trip count, exportable."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.errors import UsageError
from zoo.ops._modes import full_precision, is_dense_float, is_number, shown


def matrix_exp(x: Tensor, max_norm: float = 16.0) -> Tensor:
    """exp(x) = I + x + x^2 / 2 + ..., by scaling, a Taylor polynomial and squaring.

    x / 2^s has a 1-norm of at most one; the polynomial of exp - I of it is evaluated by Paterson and Stockmeyer's
    scheme, and F <- 2 F + F^2 squares I + F without rounding a small F away. `torch.linalg.matrix_exp` chooses
    its degree from the data, is wrong in half precision and has no ONNX form; this has none of the three faults.
    Its error is relative to max(1, ||exp(x)||): where exp(x) all but vanishes, its last digits are lost.

    Args:
        x: (..., n, n), any square matrices, not only skew ones. float16 and bfloat16 are computed in float32.
        max_norm: largest 1-norm (maximal column sum of absolute values) that the fixed count covers. A matrix above
            it comes out as NaN, the others of the batch untouched.

    Returns:
        (..., n, n) in x's dtype. NaN in a matrix makes all of it NaN.

    Raises:
        UsageError: x is not square or not of a floating-point type; max_norm is not a number above 0, up to 2^20.
    """
    if x.dim() < 2 or x.shape[-1] != x.shape[-2] or not is_dense_float(x):
        raise UsageError(f"x must be dense (..., n, n) of a floating-point type from float16 on, not {shown(x)}")
    if not (is_number(max_norm) and 0.0 < max_norm <= 2.0**20):
        raise UsageError(f"max_norm must be a positive number up to 2^20, not {max_norm!r}")
    if not x.numel():
        return x.clone()
    with full_precision(x.device):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        squarings = max(0, math.ceil(math.log2(max_norm)))
        f = _taylor(wide * 0.5**squarings, 18 if wide.dtype == torch.float64 else 10)
        for _ in range(squarings):
            f = 2.0 * f + f @ f
        out = f + torch.eye(x.shape[-1], dtype=wide.dtype, device=x.device)
        norm = wide.abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
        return (out * torch.where(norm <= max_norm, 1.0, math.nan)).to(x.dtype)  # so that gradients are NaN too


def _taylor(x: Tensor, degree: int) -> Tensor:
    """x + x^2 / 2 + ... + x^degree / degree!, in blocks of four powers; the rest is below rounding at a norm of 1."""
    x2 = x @ x
    powers = (x, x2, x2 @ x)
    x4 = x2 @ x2
    total: Tensor | None = None
    for start in range(degree // 4 * 4, -1, -4):
        block = None if total is None else x4 @ total
        constant = 1.0 / math.factorial(start) if start else 0.0
        if constant:
            eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) * constant
            block = eye.expand_as(x) if block is None else block + eye
        for offset, power in enumerate(powers, 1):
            if start + offset <= degree:
                term = power / math.factorial(start + offset)
                block = term if block is None else block + term
        total = block
    assert total is not None
    return total
