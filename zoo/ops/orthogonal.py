"""Orthogonal attention: exp(S) V for a skew S of low rank, without the tokens x tokens matrix.

Theorem 2.1 of arXiv 2602.05996 writes exp(S) for S = c (Q K^T - K Q^T), c = alpha / sqrt(head_dim), through an
orthonormal basis of the columns of M = [Q, K]. Here no basis is needed: with J = [[0, I], [-I, 0]], S is
c M J M^T, and exp(A B) = I + A phi_1(B A) B (Higham, Functions of Matrices, 2008, theorem 1.35) gives

    exp(S) V = V + M phi_1(Z) U,   Z = c J M^T M,   U = c J M^T V.

Shapes below: w = head_dim, m = 2 w, n = value_dim, and "batch" is every leading dimension flattened.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.errors import UsageError
from zoo.ops._gram import gram_attention


def orthogonal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float | Tensor,
    *,
    basis: str = "gram",
    max_norm: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """exp((alpha / sqrt(head_dim)) (Q K^T - K Q^T)) V, head by head (arXiv 2602.05996, theorem 2.1).

    Args:
        q, k: (..., heads, tokens, head_dim).
        v: (..., heads, tokens, value_dim).
        alpha: a number, a 0-d tensor, or a tensor (heads,).
        basis: how the exponential is reduced to small matrices; "gram" needs no basis at all.
        max_norm: bound rho on the spectral norm of S, in radians. It fixes the graph: a polynomial whose
            degree depends on rho alone. A matrix with (tr S^4 / 2)^(1/4) > rho, an upper bound of its
            spectral norm, comes out as NaN, the others untouched. None chooses from the data.
        key_mask: (..., tokens) without the heads, bool, True = keep. A masked token keeps its v and has no
            influence, whatever it holds.

    Returns:
        (..., heads, tokens, value_dim) in v's dtype. Computed in float32, or float64 where an input is.

    Raises:
        UsageError: shapes, basis, mask or bound that do not fit.
    """
    if basis not in _FORMS:
        raise UsageError(f"basis {basis!r} is not known; choose one of: {', '.join(_FORMS)}")
    form = _FORMS[basis]
    lead = _check(q, k, v, alpha, key_mask)
    if max_norm is not None and not 0.0 < max_norm < math.inf:
        raise UsageError(f"max_norm must be a positive, finite number of radians or None, not {max_norm!r}")
    dtype = torch.promote_types(
        torch.promote_types(q.dtype, k.dtype), torch.promote_types(v.dtype, torch.float32)
    )
    kept_q, kept_k, kept_v = q, k, v
    if key_mask is not None:
        keep = key_mask[..., None, :, None]
        kept_q, kept_k, kept_v = (torch.where(keep, x, 0.0) for x in (q, k, v))
    scale = _scale(alpha, q, dtype)
    if q.shape[-2] == 1:  # a skew matrix of one token is zero; NaN stays NaN
        out = v + ((kept_q - kept_q).sum(-1, keepdim=True) + (kept_k - kept_k).sum(-1, keepdim=True)) * scale
        out = out.to(v.dtype)
    else:
        scale = scale.expand(*lead, 1, 1).reshape(-1, 1, 1) if scale.dim() else scale.reshape(1, 1, 1)
        flat = (x.to(dtype).flatten(0, -3) for x in (kept_q, kept_k, kept_v))
        out = form(*flat, scale, max_norm).unflatten(0, lead).to(v.dtype)
    return out if key_mask is None else torch.where(keep, out, v)


def _check(q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, key_mask: Tensor | None) -> torch.Size:
    lead = q.shape[:-2]
    if (
        q.dim() < 3
        or q.shape != k.shape
        or v.dim() != q.dim()
        or v.shape[:-1] != q.shape[:-1]
        or not q.shape[-1]
    ):
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise UsageError(
            f"q and k must be (..., heads, tokens, head_dim) and v (..., heads, tokens, value_dim): {shapes}"
        )
    if isinstance(alpha, Tensor) and alpha.dim() and alpha.shape != lead[-1:]:
        raise UsageError(
            f"alpha must be a number or of shape (heads,) = ({lead[-1]},), not {tuple(alpha.shape)}"
        )
    if key_mask is not None:
        wanted = (*lead[:-1], q.shape[-2])
        if key_mask.dtype != torch.bool or key_mask.shape != wanted:
            raise UsageError(f"key_mask must be bool {wanted}, not {key_mask.dtype} {tuple(key_mask.shape)}")
    return lead


def _scale(alpha: float | Tensor, q: Tensor, dtype: torch.dtype) -> Tensor:
    """c = alpha / sqrt(head_dim): () or (heads, 1, 1)."""
    if not isinstance(alpha, Tensor):
        return torch.full((), alpha / math.sqrt(q.shape[-1]), dtype=dtype, device=q.device)
    scale = alpha.to(dtype) * (1.0 / math.sqrt(q.shape[-1]))
    return scale[:, None, None] if scale.dim() else scale


def _gram(q: Tensor, k: Tensor, v: Tensor, scale: Tensor, max_norm: float | None) -> Tensor:
    if max_norm is None:
        max_norm = _bound_of(q, k, scale)
    return gram_attention(q, k, v, scale, float(max_norm))


def _bound_of(q: Tensor, k: Tensor, scale: Tensor) -> float:
    with torch.no_grad():
        m = torch.cat((q, k), -1).double()
        half = q.shape[-1]
        g = torch.bmm(m.mT, m)
        z = torch.cat((g[:, half:], -g[:, :half]), 1) * scale
        square = torch.bmm(z, z)
        norms = (0.5 * (square * square.mT).sum((-2, -1))).clamp_min(0).pow(0.25)
        norms = norms[norms.isfinite()]
        return max(1e-3, 1.01 * float(norms.max())) if norms.numel() else 1.0


_FORMS = {"gram": _gram}
