"""Orthogonal attention: exp(S) V for a skew S of low rank, without the tokens x tokens matrix.

Theorem 2.1 of arXiv 2602.05996 writes exp(S) for S = c (Q K^T - K Q^T), c = alpha / sqrt(head_dim), through an
orthonormal basis of the columns of M = [Q, K]. Here no basis is needed: with J = [[0, I], [-I, 0]], S is
c M J M^T, and exp(A B) = I + A phi_1(B A) B (Higham, Functions of Matrices, 2008, theorem 1.35) gives

    exp(S) V = V + M phi_1(Z) U,   Z = c J M^T M,   U = c J M^T V.

Shapes below: w = head_dim, m = 2 w, n = value_dim, and "batch" is every leading dimension flattened.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.errors import UsageError
from zoo.ops._chebyshev import Table, clenshaw, clenshaw_adjoint, coefficients


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
    """q, k: (batch, tokens, w), v: (batch, tokens, n), scale: (batch or 1, 1, 1)."""
    if max_norm is None:
        max_norm = _bound_of(q, k, scale)
    table = coefficients(float(max_norm), torch.finfo(q.dtype).eps)
    inputs = (q, k, v, scale)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs) and not torch.compiler.is_exporting():
        return _GramAction.apply(*inputs, float(max_norm), table)
    return _forward(*inputs, float(max_norm), table)[0]


def _bound_of(q: Tensor, k: Tensor, scale: Tensor) -> float:
    with torch.no_grad():
        m = torch.cat((q, k), -1).double()
        z = _turn(torch.bmm(m.mT, m)) * scale
        square = torch.bmm(z, z)
        norms = (0.5 * (square * square.mT).sum((-2, -1))).clamp_min(0).pow(0.25)
        norms = norms[norms.isfinite()]
        return max(1e-3, 1.01 * float(norms.max())) if norms.numel() else 1.0


def _turn(p: Tensor) -> Tensor:
    """J P for P: (batch, m, any)."""
    half = p.shape[-2] // 2
    return torch.cat((p[..., half:, :], -p[..., :half, :]), -2)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, scale: Tensor, rho: float, table: Table
) -> tuple[Tensor, tuple[Tensor, ...], list[Tensor]]:
    if torch.is_autocast_enabled(q.device.type):
        with torch.autocast(q.device.type, enabled=False):
            return _forward(q, k, v, scale, rho, table)
    w, m = q.shape[-1], 2 * q.shape[-1]
    tokens = torch.cat((q, k, v), -1)
    # Diagonal shear: K <- K - Q diag(r) leaves S as it is and takes away the cancellation in Q K^T - K Q^T.
    # One reduction for both products, so that q = k gives r = 1 and K = 0 exactly.
    dots = (tokens[..., :m].unflatten(-1, (2, w)) * tokens[..., None, :w]).sum(1)
    ratio = (dots[:, 1] / torch.where(dots[:, 0] == 0, 1.0, dots[:, 0]))[:, None, :]
    tokens[..., w:m].addcmul_(tokens[..., :w], ratio, value=-1.0)
    sheared = tokens[..., :m]
    gram = torch.bmm(sheared.mT, tokens)  # M^T [M, V]
    zu = _turn(gram).mul_(scale)  # [Z, U]
    z, u = zu[..., :m], zu[..., m:]
    zzu = torch.bmm(z, zu)  # [Z^2, Z U]
    square = zzu[..., :m]
    fourth = (square * square.mT).sum((-2, -1), keepdim=True)  # tr Z^4 = 2 sum theta^4
    beyond = torch.where(fourth <= 2.0 * rho**4, 0.0, math.nan).to(q.dtype)
    twice_x = square * (-4.0 / rho**2)
    twice_x.diagonal(dim1=-2, dim2=-1).sub_(2.0)
    terms = clenshaw(twice_x, u, zzu[..., m:], table)
    y = terms[0] + beyond
    out = torch.baddbmm(tokens[..., m:], sheared, y)
    return out, (tokens, ratio, gram, scale, twice_x, beyond, y), terms


class _GramAction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: Tensor, rho: float, table: Table) -> Tensor:
        out, saved, terms = _forward(q, k, v, scale, rho, table)
        ctx.save_for_backward(*saved, *terms[1:])
        ctx.rho, ctx.table = rho, table
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_autocast_enabled(grad.device.type):
            with torch.autocast(grad.device.type, enabled=False):
                return (*_backward(ctx, grad), None, None)
        return (*_backward(ctx, grad), None, None)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    tokens, ratio, gram, scale, twice_x, beyond, y, *terms = ctx.saved_tensors
    m = gram.shape[-2]
    w = m // 2
    sheared = tokens[..., :m]
    zu = _turn(gram).mul_(scale)
    grad_y = torch.bmm(sheared.mT, grad).add_(beyond)
    grad_x2, grad_u, grad_z_u = clenshaw_adjoint(twice_x, [y, *terms], ctx.table, grad_y)
    grad_zzu = torch.cat((grad_x2.mul_(-4.0 / ctx.rho**2), grad_z_u), -1)
    grad_zu = torch.bmm(zu[..., :m].mT, grad_zzu)
    grad_zu[..., :m].baddbmm_(grad_zzu, zu.mT)
    grad_zu[..., m:].add_(grad_u)
    grad_gram = _turn(grad_zu).neg_()  # J^T = -J
    grad_scale = None
    if ctx.needs_input_grad[3]:
        grad_scale = (grad_gram * gram).sum((-2, -1), keepdim=True).sum_to_size(scale.shape)
    grad_gram.mul_(scale)
    grad_v = torch.baddbmm(grad, sheared, grad_gram[..., m:])
    inner = grad_gram.mT.contiguous()
    inner[:, :m].add_(grad_gram[..., :m])
    grad_sheared = torch.bmm(tokens, inner).baddbmm_(grad, y.mT)
    grad_q, grad_k = grad_sheared[..., :w], grad_sheared[..., w:]
    # The shear does not change the result, so its ratio has no gradient.
    grad_q.addcmul_(grad_k, ratio, value=-1.0)
    return grad_q, grad_k, grad_v, grad_scale


_FORMS = {"gram": _gram}
