"""exp(S) V from the Gram matrix of [Q, K]: two passes over the tokens, small matrices between them.

S = c (Q K^T - K Q^T) = M J M^T with M = [c Q, K] and J = [[0, I], [-I, 0]], and
exp(A B) = I + A phi_1(B A) B (Higham, Functions of Matrices, 2008, theorem 1.35), so that without any basis of
M's columns

    exp(S) V = V + M phi_1(Z) U,   Z = J M^T M,   U = J M^T V.

Up to a norm of 16 phi_1(Z) U is one Chebyshev action (`_chebyshev`), with its adjoint by hand; how it is done at any
norm is said by `_skew`.

Shapes: q, k (..., heads, tokens, w), v (..., heads, tokens, n), c () or (heads, 1, 1), m = 2 w; "batch" is all that
comes before tokens, in one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from zoo.ops._chebyshev import Series, action, action_adjoint
from zoo.ops._skew import bound_of, needs_double, phi1, plan, table_of, transformed


def gram_attention(q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, max_norm: float | None) -> Tensor:
    """exp(S) V of one dtype, float32 or float64; q, k, v: (..., heads, tokens, .); alpha a number, () or (heads,)."""
    c = scale(alpha, q)
    rho, doublings = plan(_choose(q, k, c) if max_norm is None else max_norm)
    if needs_double(doublings, q):
        return gram_attention(q.double(), k.double(), v.double(), alpha, max_norm).to(q.dtype)
    table = table_of(rho, doublings, q.dtype)
    by_hand = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, c))
    if by_hand and not doublings and not torch.compiler.is_exporting() and not transformed():
        return _GramAttention.apply(q, k, v, c, rho, table)
    return _plain(q, k, v, c, rho, table, doublings)


def _plain(q: Tensor, k: Tensor, v: Tensor, c: Tensor, rho: float, table: Series, doublings: int) -> Tensor:
    """exp(S) V in operations that autograd follows, as often as it is asked to."""
    tokens, _ = _sheared(q, k, c)
    z, u = _small(tokens, v)
    y = phi1(z, u, rho, table, doublings)
    return v + torch.bmm(_both(tokens), y).view(v.shape)


def rotation_factors(q: Tensor, k: Tensor, alpha: float | Tensor, max_norm: float | None) -> tuple[Tensor, Tensor]:
    """M and C with exp(S) = I + M C M^T, as `gram_attention` computes them: (..., tokens, m), (..., m, m)."""
    c = scale(alpha, q)
    rho, doublings = plan(_choose(q, k, c) if max_norm is None else max_norm)
    if needs_double(doublings, q):
        return rotation_factors(q.double(), k.double(), alpha, max_norm)
    tokens, width = _sheared(q, k, c)[0], q.shape[-1]
    z = torch.bmm(_turned(tokens).mT, _both(tokens))
    eye = torch.eye(2 * width, dtype=q.dtype, device=q.device)
    j = torch.cat((eye[width:], -eye[:width])) + torch.zeros_like(z)
    core = phi1(z, j, rho, table_of(rho, doublings, q.dtype), doublings)
    return _both(tokens).unflatten(0, q.shape[:-2]), core.unflatten(0, q.shape[:-2])


def scale(alpha: float | Tensor, q: Tensor) -> Tensor:
    """c = alpha / sqrt(w) in q's dtype."""
    root = math.sqrt(q.shape[-1])
    if isinstance(alpha, Tensor):
        c = (alpha if alpha.dtype == q.dtype else alpha.to(q.dtype)) / root
        return c[:, None, None] if c.dim() else c
    return torch.full((), alpha / root, dtype=q.dtype, device=q.device)


def _sheared(q: Tensor, k: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """[c Q, K - Q diag(r), -c Q]: (batch, tokens, 3 w), and r: (..., heads, 1, w).

    The diagonal shear leaves S as it is and takes away the cancellation in Q K^T - K Q^T where K's columns lie
    near Q's; any r would do, so it has no gradient. q = k gives r = 1 and a K of zeros, exactly.
    """
    width = q.shape[-1]
    square, product = (q * q).sum(-2, keepdim=True), (q * k).sum(-2, keepdim=True)
    ratio = (product / torch.where(square == 0, 1.0, square)).detach()
    watched = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, c))
    if not watched and not torch.compiler.is_compiling() and not transformed():  # in place
        tokens = q.new_empty((*q.shape[:-1], 3 * width))
        scaled, sheared, minus = tokens.split(width, -1)
        torch.mul(q, c, out=scaled)
        torch.addcmul(k, q, ratio, value=-1.0, out=sheared)
        torch.neg(scaled, out=minus)
    else:
        scaled = q * c
        tokens = torch.cat((scaled, torch.addcmul(k, q, ratio, value=-1.0), -scaled), -1)
    return tokens.flatten(0, -3), ratio


def _both(tokens: Tensor) -> Tensor:
    """M = [c Q, K]."""
    return tokens[..., : 2 * (tokens.shape[-1] // 3)]


def _turned(tokens: Tensor) -> Tensor:
    """M J^T = [K, -c Q], the transpose of J M^T."""
    return tokens[..., tokens.shape[-1] // 3 :]


def _small(tokens: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Z: (batch, m, m) and U: (batch, m, n)."""
    turned = _turned(tokens).mT
    return torch.bmm(turned, _both(tokens)), torch.bmm(turned, v.flatten(0, -3))


class _GramAttention(torch.autograd.Function):
    """Norms up to 16, forward and backward each in two passes over the tokens."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, c: Tensor, rho: float, table: Series) -> Tensor:
        tokens, ratio = _sheared(q, k, c)
        z, u = _small(tokens, v)
        saved = action(z, u, rho, table)
        ctx.save_for_backward(q, k, v, c, tokens, ratio, z, u, *saved)
        ctx.rho, ctx.table = rho, table
        return v + torch.bmm(_both(tokens), saved[0]).view(v.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        adjoint = _again if torch.is_grad_enabled() else _backward
        if torch.is_autocast_enabled(grad.device.type):
            with torch.autocast(grad.device.type, enabled=False):
                return (*adjoint(ctx, grad), None, None)
        return (*adjoint(ctx, grad), None, None)


def _again(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients under create_graph: the adjoint by hand is not itself differentiable."""
    q, k, v, c = inputs = ctx.saved_tensors[:4]
    wanted = [x for x, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
    again = _plain(q, k, v, c, ctx.rho, ctx.table, 0)
    found = iter(torch.autograd.grad(again, wanted, grad, create_graph=True))
    return tuple(next(found) if needed else None for needed in ctx.needs_input_grad[:4])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    q, _, v, c, tokens, ratio, z, u, y, *saved = ctx.saved_tensors
    values = v.flatten(0, -3)
    both, flat = _both(tokens), grad.flatten(0, -3)
    turned = torch.bmm(_turned(tokens).mT, flat)  # J times the gradient of y
    gamma, grad_u = action_adjoint(z, u, ctx.rho, ctx.table, tuple(saved), turned)
    grad_both = torch.bmm(both, gamma + gamma.mT)
    grad_both.baddbmm_(values, grad_u.mT, alpha=-1.0).baddbmm_(flat, y.mT)
    grad_v = grad - torch.bmm(both, grad_u).view(grad.shape)
    grad_q, grad_k = grad_both.view(*q.shape[:-1], both.shape[-1]).split(q.shape[-1], -1)
    grad_c = (grad_q * q).sum((-2, -1), keepdim=True).sum_to_size(c.shape) if ctx.needs_input_grad[3] else None
    # The shear does not change the result, so its ratio has no gradient.
    return torch.addcmul(grad_q * c, grad_k, ratio, value=-1.0), grad_k, grad_v, grad_c


@torch.no_grad()
def _choose(q: Tensor, k: Tensor, c: Tensor) -> float:
    """A bound on ||S||_2 that covers the batch, see `bound_of`."""
    tokens, _ = _sheared(q, k, c)
    halves = _both(tokens).unflatten(-1, (2, q.shape[-1]))
    if not halves.numel():
        return 1.0
    size = halves.abs().amax((1, 3), keepdim=True)  # of Q and of K: no fourth power may overflow
    scaled_q, scaled_k = (halves / torch.where(size == 0.0, 1.0, size)).unbind(2)
    z = torch.bmm(torch.cat((scaled_k, -scaled_q), -1).mT, torch.cat((scaled_q, scaled_k), -1))
    return bound_of(z, size.prod(2).flatten())
