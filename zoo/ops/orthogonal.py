"""Orthogonal attention: exp(S) V for a skew S of low rank, without the tokens x tokens matrix.

The source (arXiv 2602.05996, theorem 2.1) reduces S = (alpha / sqrt(head_dim)) (Q K^T - K Q^T) to small matrices by an
orthonormal basis of the columns of [Q, K]. How that is done here, and why no basis is needed, is said by `_gram`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.errors import UsageError
from zoo.ops._basis import iterated_attention, qr_attention
from zoo.ops._gram import gram_attention
from zoo.ops._modes import full_precision, is_dense_float, is_number
from zoo.ops.polar import DEFAULT_STEPS, schedule_of

BASES = ("gram", "qr", *DEFAULT_STEPS)


def orthogonal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float | Tensor,
    *,
    basis: str = "gram",
    steps: int | None = None,
    max_norm: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """exp((alpha / sqrt(head_dim)) (Q K^T - K Q^T)) V, head by head (arXiv 2602.05996, section 2 and theorem 2.1).

    Args:
        q, k: (..., heads, tokens, head_dim).
        v: (..., heads, tokens, value_dim).
        alpha: a number, a 0-d tensor, or a tensor (heads,).
        basis: how the exponential is reduced to small matrices. "gram" needs no basis at all and is the fastest; "qr",
            "newton-schulz" and "polar-express" are the source's forms. All four are the same function once the
            iteration has converged; before, the last two are functions of their own (`orthogonality_error`).
        steps: of "newton-schulz" (12 unless given) and "polar-express" (8), see `zoo.ops.polar`.
        max_norm: bound on the spectral norm of S, in radians. It fixes the graph, whose length depends on it alone,
            and nothing asks a tensor for a number. A matrix with (tr S^4 / 2)^(1/4) > max_norm, an upper bound of
            its spectral norm, comes out as NaN, the others of the batch untouched. None chooses from the data.
        key_mask: (..., tokens), q's shape without heads and head_dim; bool, True = keep. A masked token keeps its v
            and has no influence, whatever it holds.

    Returns:
        (..., heads, tokens, value_dim) in v's dtype. The arithmetic is float64 where an input is, else float32, also
        under autocast. NaN in q or k makes its whole matrix NaN. S = 0 gives v.

    Raises:
        UsageError: basis, shapes, mask or bound that do not fit.
    """
    check_basis(basis, steps, max_norm)
    max_norm = None if max_norm is None else float(max_norm)
    check_inputs(q, k, v, alpha, key_mask)
    with full_precision(q.device):
        dtype = torch.float64 if torch.float64 in (q.dtype, k.dtype, v.dtype) else torch.float32
        wide_q, wide_k, wide_v = (x if x.dtype == dtype else x.to(dtype) for x in (q, k, v))
        if key_mask is not None:
            keep = key_mask[..., None, :, None]
            wide_q, wide_k, wide_v = (torch.where(keep, x, 0.0) for x in (wide_q, wide_k, wide_v))
        if q.shape[-2] == 1:  # one token's skew matrix is zero, and only NaN or infinity in it can be told
            zero = (wide_q - wide_q).sum(-1, keepdim=True) + (wide_k - wide_k).sum(-1, keepdim=True)
            rows = alpha[:, None, None] if isinstance(alpha, Tensor) and alpha.dim() else alpha
            out = wide_v + (zero * rows).to(dtype)
        elif basis == "gram":
            out = gram_attention(wide_q, wide_k, wide_v, alpha, max_norm)
        elif basis == "qr":
            out = qr_attention(wide_q, wide_k, wide_v, alpha, max_norm)
        else:
            out = iterated_attention(wide_q, wide_k, wide_v, alpha, max_norm, basis, steps)
        out = out if out.dtype == v.dtype else out.to(v.dtype)
        return out if key_mask is None else torch.where(keep, out, v)


def check_basis(basis: str, steps: int | None = None, max_norm: float | None = None) -> None:
    """UsageError unless there is such a basis, it takes such steps, and the bound is one."""
    if basis not in BASES:
        raise UsageError(f"basis {basis!r} is not known; choose one of: {', '.join(BASES)}")
    if basis in DEFAULT_STEPS:
        schedule_of(basis, steps)
    elif steps is not None:
        raise UsageError(f"basis {basis!r} takes no steps; {' and '.join(DEFAULT_STEPS)} do")
    if max_norm is not None and not (is_number(max_norm) and 1e-3 <= max_norm < math.inf):
        raise UsageError(f"max_norm must be a finite number of radians from 0.001 on, or None; not {max_norm!r}")


def check_inputs(q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, key_mask: Tensor | None) -> None:
    """UsageError unless shapes and types are as `orthogonal_attention` says."""
    if q.dim() < 3 or q.shape != k.shape or v.dim() != q.dim() or v.shape[:-1] != q.shape[:-1] or not q.shape[-1]:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise UsageError(
            f"q and k must be (..., heads, tokens, head_dim), v (..., heads, tokens, value_dim); these are {shapes}"
        )
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not is_dense_float(x):
            raise UsageError(f"{name} must be of a floating-point type from float16 on, and dense, not {x.dtype}")
    heads = q.shape[-3]
    if not is_number(alpha) and not (isinstance(alpha, Tensor) and not alpha.is_complex()):
        raise UsageError(f"alpha must be a real number or a tensor of them, not {alpha!r}")
    if isinstance(alpha, Tensor) and alpha.dim() and alpha.shape != (heads,):
        raise UsageError(f"alpha must be a number or of shape (heads,) = ({heads},), not {tuple(alpha.shape)}")
    if key_mask is not None:
        wanted = (*q.shape[:-3], q.shape[-2])
        if key_mask.dtype != torch.bool or key_mask.shape != wanted:
            shape = tuple(key_mask.shape)
            raise UsageError(f"key_mask must be bool of shape {wanted}; this is {key_mask.dtype} {shape}")
