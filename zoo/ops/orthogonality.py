"""How far the computed attention matrix is from a rotation, without forming it.

Every form of `zoo.ops.orthogonal_attention` applies A = I + T C T^T with a tall T and a small C, so

    A^T A - I = T E T^T,   E = C + C^T + C^T (T^T T) C,

which has the non-zero eigenvalues of the small R E R^T, R the triangular factor of T = Q R.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.errors import UsageError
from zoo.ops._basis import basis_of, exp_minus_one, reduced
from zoo.ops._gram import rotation_factors, scale
from zoo.ops._modes import full_precision
from zoo.ops.orthogonal import check_basis, check_inputs


def skew_norm(q: Tensor, k: Tensor, alpha: float | Tensor) -> Tensor:
    """||S||_2 of S = (alpha / sqrt(head_dim)) (Q K^T - K Q^T), in radians: the largest angle by which exp(S) turns.

    q, k: (..., heads, tokens, head_dim), alpha: a number, () or (heads,). Returns (..., heads), float64 (float32 where
    the device has no float64); NaN where q or k holds no number. This is what a layer's `max_norm` has to cover.
    """
    check_inputs(q, k, q, alpha, None)
    with full_precision(q.device):
        q, k = _wide(q), _wide(k)
        left, right = _triangle(torch.cat((q, k), -1)).chunk(2, -1)
        return _largest(scale(alpha, q) * (left @ right.mT - right @ left.mT))


def orthogonality_error(
    q: Tensor,
    k: Tensor,
    alpha: float | Tensor,
    *,
    basis: str = "gram",
    steps: int | None = None,
    max_norm: float | None = None,
) -> Tensor:
    """||A^T A - I||_2 of the matrix A that `zoo.ops.orthogonal_attention` with these arguments applies to v.

    q, k: (..., heads, tokens, head_dim), alpha: a number, () or (heads,). Returns (..., heads) in the type of
    `skew_norm`. The small matrices are computed in the inputs' precision as in the operation itself, the error of
    them in float64: an exact basis shows rounding, an iteration that has not converged its distance from a rotation.
    NaN where the operation gives NaN.
    """
    check_basis(basis, steps, max_norm)
    check_inputs(q, k, q, alpha, None)
    with full_precision(q.device):
        max_norm = None if max_norm is None else float(max_norm)
        dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)
        q, k = q.to(dtype), k.to(dtype)
        if basis == "gram":
            tall, core = rotation_factors(q, k, alpha, max_norm)
        else:
            tall = basis_of(q, k, basis, steps)
            small = reduced(tall, q, k, alpha)
            eye = torch.eye(small.shape[-1], dtype=dtype, device=q.device) + torch.zeros_like(small)
            core = exp_minus_one(small, eye, max_norm).view(*q.shape[:-2], *small.shape[-2:])
        tall, core = _wide(tall), _wide(core)
        r = _triangle(tall)
        inner = core + core.mT + core.mT @ (tall.mT @ tall) @ core
        return _largest(r @ inner @ r.mT)


def orthogonality_bound(
    q: Tensor, k: Tensor, alpha: float | Tensor, *, basis: str = "newton-schulz", steps: int | None = None
) -> Tensor:
    """Theorem 3.1 of arXiv 2602.05996: ||A^T A - I||_2 <= (e^||S||_2 - 1)^2 max_i |s_i^2 (s_i^2 - 1)|, s_i of B.

    The source's iteration keeps every singular value s_i of B at one or below. Polar Express exceeds one, by 0.99 after
    its first step and 0.12 after its fifth, and ||B^T S B||_2 <= s_max^2 ||S||_2: so the exponent carries
    max(1, s_max^2). Arguments and result as of `orthogonality_error`; "gram" has no basis, and no bound is needed.
    """
    check_basis(basis, steps)
    if basis == "gram":
        raise UsageError("basis 'gram' has no basis that could fail to be orthonormal; the bound is one for the others")
    check_inputs(q, k, q, alpha, None)
    with full_precision(q.device):
        q, k = _wide(q), _wide(k)
        b = basis_of(q, k, basis, steps)
        gram = b.mT @ b
        squared = _largest(gram).clamp_min(1.0)
        defect = _largest(gram @ gram - gram)
        return torch.expm1(skew_norm(q, k, alpha) * squared).square() * defect


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.device.type == "mps" else x.double()


def _triangle(x: Tensor) -> Tensor:
    """R of x = Q R: (..., min(tokens, m), m)."""
    return torch.linalg.qr(x, mode="r").R


def _largest(x: Tensor) -> Tensor:
    """The largest singular value of every matrix; NaN where a matrix holds no number, 0 where it holds nothing."""
    if not x.shape[-1]:
        return x.new_zeros(x.shape[:-2])
    lost = ~x.isfinite().all(-1).all(-1)
    values = torch.linalg.svdvals(torch.where(lost[..., None, None], 0.0, x)).amax(-1)
    return torch.where(lost, math.nan, values)
