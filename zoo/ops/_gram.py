"""exp(S) V from the Gram matrix of [Q, K]: two passes over the tokens, small matrices between them.

S = c (Q K^T - K Q^T) = M J M^T with M = [c Q, K] and J = [[0, I], [-I, 0]], and
exp(A B) = I + A phi_1(B A) B (Higham, Functions of Matrices, 2008, theorem 1.35), so that without any basis of
M's columns

    exp(S) V = V + M phi_1(Z) U,   Z = J M^T M,   U = J M^T V.

How phi_1(Z) U is computed at any norm is said by `_skew`; up to a norm of 16 its adjoint is written by hand.

Shapes as in `_tokens`; "batch" is all that comes before tokens, in one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from zoo.ops._chebyshev import Series, action, action_adjoint
from zoo.ops._modes import full_precision, recorded, transformed, watched
from zoo.ops._skew import bound_of, needs_double, phi1, plan, table_of
from zoo.ops._tokens import both, passes, sheared, small, turned


def gram_attention(q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, max_norm: float | None) -> Tensor:
    """exp(S) V of one dtype, float32 or float64; q, k, v: (..., heads, tokens, .); alpha a number, () or (heads,)."""
    c = scale(alpha, q)
    by_hand = watched(q, k, v, c) and not recorded() and not transformed()
    if by_hand and max_norm is None:
        max_norm = _choose(q, k, c)
    if max_norm is None:
        z, u, back = passes(q, k, v, c)
        rho, doublings = plan(_bound(z))
    else:
        rho, doublings = plan(max_norm)
        if by_hand and not doublings:
            return _GramAttention.apply(q, k, v, c, rho, table_of(rho, doublings, q.dtype))
    if needs_double(doublings, q):
        return gram_attention(q.double(), k.double(), v.double(), alpha, max_norm).to(q.dtype)
    if max_norm is not None:
        z, u, back = passes(q, k, v, c)
    return back(phi1(z, u, rho, table_of(rho, doublings, q.dtype), doublings))


def rotation_factors(q: Tensor, k: Tensor, alpha: float | Tensor, max_norm: float | None) -> tuple[Tensor, Tensor]:
    """M and C with exp(S) = I + M C M^T, as `gram_attention` computes them: (..., tokens, m), (..., m, m)."""
    c = scale(alpha, q)
    rho, doublings = plan(_choose(q, k, c) if max_norm is None else max_norm)
    if needs_double(doublings, q):
        return rotation_factors(q.double(), k.double(), alpha, max_norm)
    tokens, width = sheared(q, k, c)[0], q.shape[-1]
    z = torch.bmm(turned(tokens).mT, both(tokens))
    eye = torch.eye(2 * width, dtype=q.dtype, device=q.device)
    j = torch.cat((eye[width:], -eye[:width])) + torch.zeros_like(z)
    core = phi1(z, j, rho, table_of(rho, doublings, q.dtype), doublings)
    return both(tokens).unflatten(0, q.shape[:-2]), core.unflatten(0, q.shape[:-2])


def scale(alpha: float | Tensor, q: Tensor) -> Tensor:
    """c = alpha / sqrt(w) in q's dtype."""
    root = math.sqrt(q.shape[-1])
    if isinstance(alpha, Tensor):
        c = (alpha if alpha.dtype == q.dtype else alpha.to(q.dtype)) / root
        return c[:, None, None] if c.dim() else c
    return torch.full((), alpha / root, dtype=q.dtype, device=q.device)


class _GramAttention(torch.autograd.Function):
    """Norms up to 16, forward and backward each in two passes over the tokens."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, c: Tensor, rho: float, table: Series) -> Tensor:
        tokens, ratio = sheared(q, k, c)
        z, u = small(tokens, v)
        saved = action(z, u, rho, table)
        ctx.save_for_backward(q, k, v, c, tokens, ratio, z, u, *saved)
        ctx.rho, ctx.table = rho, table
        return v + torch.bmm(both(tokens), saved[0]).view(v.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        adjoint = _again if torch.is_grad_enabled() else _backward
        with full_precision(grad.device):
            return (*adjoint(ctx, grad), None, None)


def _again(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients under create_graph: the adjoint by hand is not itself differentiable."""
    q, k, v, c = inputs = ctx.saved_tensors[:4]
    wanted = [x for x, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
    z, u, back = passes(q, k, v, c)
    again = back(action(z, u, ctx.rho, ctx.table)[0])
    found = iter(torch.autograd.grad(again, wanted, grad, create_graph=True))
    return tuple(next(found) if needed else None for needed in ctx.needs_input_grad[:4])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    q, _, v, c, tokens, ratio, z, u, y, *saved = ctx.saved_tensors
    values = v.flatten(0, -3)
    m, flat = both(tokens), grad.flatten(0, -3)
    grad_y = torch.bmm(turned(tokens).mT, flat)  # in turned coordinates, J times it
    gamma, grad_u = action_adjoint(z, u, ctx.rho, ctx.table, tuple(saved), grad_y)
    grad_both = torch.bmm(m, gamma + gamma.mT)
    grad_both.baddbmm_(values, grad_u.mT, alpha=-1.0).baddbmm_(flat, y.mT)
    grad_v = grad - torch.bmm(m, grad_u).view(grad.shape)
    grad_q, grad_k = grad_both.view(*q.shape[:-1], m.shape[-1]).split(q.shape[-1], -1)
    grad_c = (grad_q * q).sum((-2, -1), keepdim=True).sum_to_size(c.shape) if ctx.needs_input_grad[3] else None
    # The shear does not change the result, so its ratio has no gradient.
    return torch.addcmul(grad_q * c, grad_k, ratio, value=-1.0), grad_k, grad_v, grad_c


@torch.no_grad()
def _choose(q: Tensor, k: Tensor, c: Tensor) -> float:
    """A bound on ||S||_2 that covers the batch, see `bound_of`."""
    tokens, _ = sheared(q, k, c)
    return _bound(torch.bmm(turned(tokens).mT, both(tokens)))


@torch.no_grad()
def _bound(z: Tensor) -> float:
    """`bound_of` Z = [[K^T Q, K^T K], [-Q^T Q, -Q^T K]], with Q and K scaled so that no fourth power overflows."""
    width = z.shape[-1] // 2
    left, right = z[:, width:, :width], z[:, :width, width:]
    sizes = [block.diagonal(dim1=-2, dim2=-1).abs().amax(-1) for block in (left, right)]
    size_q, size_k = (torch.where(x == 0.0, 1.0, x).sqrt()[:, None, None] for x in sizes)
    spread = torch.cat((size_k.expand(-1, width, 1), size_q.expand(-1, width, 1)), 1)
    return bound_of(z / spread / spread.flip(1).mT, (size_q * size_k).flatten())
