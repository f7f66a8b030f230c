"""exp(S) V from the Gram matrix of [Q, K]: two passes over the tokens, small matrices between them.

S = c (Q K^T - K Q^T) = M J M^T with M = [c Q, K] and J = [[0, I], [-I, 0]], and
exp(A B) = I + A phi_1(B A) B (Higham, Functions of Matrices, 2008, theorem 1.35), so that without any basis of
M's columns

    exp(S) V = V + M phi_1(Z) U,   Z = J M^T M,   U = J M^T V.

Up to a norm of 16 phi_1(Z) U is one Chebyshev action (`_chebyshev`), with its adjoint by hand. Its rounding error
grows with the square of the norm (theta^2 is known to eps rho^2). Beyond, F = phi_1(Z / 2^s) / 2^s is formed and
doubled, F <- 2 F + F Z F, whose error grows with the norm alone and which leaves a matrix of small norm in the same
batch as exact as it was; and since a norm of 900 alone costs float32 5e-5, whatever the form, this is done in
float64 where the device has it.

Shapes: q, k (..., heads, tokens, w), v (..., heads, tokens, n), c () or (heads, 1, 1), m = 2 w; "batch" is all that
comes before tokens, in one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from zoo.errors import UsageError
from zoo.ops._chebyshev import Series, action, action_adjoint, series


def gram_attention(q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, max_norm: float | None) -> Tensor:
    """exp(S) V of one dtype, float32 or float64; q, k, v: (..., heads, tokens, .); alpha a number, () or (heads,)."""
    if torch.is_autocast_enabled(q.device.type):
        with torch.autocast(q.device.type, enabled=False):
            return gram_attention(q, k, v, alpha, max_norm)
    c = _scale(alpha, q)
    rho, doublings = _plan(_choose(q, k, c) if max_norm is None else max_norm)
    if doublings and q.dtype == torch.float32 and q.device.type != "mps":
        return gram_attention(q.double(), k.double(), v.double(), alpha, max_norm).to(q.dtype)
    table = series(rho, torch.finfo(q.dtype).eps * (0.05 if doublings else 1.0))
    by_hand = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, c))
    if by_hand and not doublings and not torch.compiler.is_exporting():
        return _GramAttention.apply(q, k, v, c, rho, table)
    return _plain(q, k, v, c, rho, table, doublings)


def _plain(q: Tensor, k: Tensor, v: Tensor, c: Tensor, rho: float, table: Series, doublings: int) -> Tensor:
    """exp(S) V in operations that autograd follows, as often as it is asked to."""
    tokens, _ = _sheared(q, k, c)
    z, u = _small(tokens, v)
    y = _doubled(z, u, rho, table, doublings) if doublings else action(z, u, rho, table)[0]
    return v + torch.bmm(_both(tokens), y).view(v.shape)


def _scale(alpha: float | Tensor, q: Tensor) -> Tensor:
    """c = alpha / sqrt(w) in q's dtype."""
    root = math.sqrt(q.shape[-1])
    if isinstance(alpha, Tensor):
        c = (alpha if alpha.dtype == q.dtype else alpha.to(q.dtype)) / root
        return c[:, None, None] if c.dim() else c
    return torch.full((), alpha / root, dtype=q.dtype, device=q.device)


def _plan(bound: float) -> tuple[float, int]:
    """The rho of the Chebyshev action, and the doublings after it: none up to 16, else from 8 or less."""
    if torch.compiler.is_dynamo_compiling():  # the length of the graph depends on it: it must not become symbolic
        from torch.fx.experimental.symbolic_shapes import guard_scalar

        bound = guard_scalar(bound)
    doublings = math.ceil(math.log2(bound / 8.0)) if bound > 16.0 else 0
    return bound / 2.0**doublings, doublings


def _sheared(q: Tensor, k: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """[c Q, K - Q diag(r), -c Q]: (batch, tokens, 3 w), and r: (..., heads, 1, w).

    The diagonal shear leaves S as it is and takes away the cancellation in Q K^T - K Q^T where K's columns lie
    near Q's; any r would do, so it has no gradient. q = k gives r = 1 and a K of zeros, exactly.
    """
    width = q.shape[-1]
    square, product = (q * q).sum(-2, keepdim=True), (q * k).sum(-2, keepdim=True)
    ratio = (product / torch.where(square == 0, 1.0, square)).detach()
    watched = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, c))
    if not watched and not torch.compiler.is_compiling():  # in place
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


def _doubled(z: Tensor, u: Tensor, rho: float, table: Series, doublings: int) -> Tensor:
    """phi_1(Z) U for a norm up to 2^doublings rho; the last doubling acts on U alone."""
    shrunk = 0.5**doublings
    eye = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device).expand(z.shape)
    f = action(z * shrunk, eye * shrunk, rho, table)[0]
    for _ in range(doublings - 1):
        f = torch.baddbmm(f, f, torch.bmm(z, f), beta=2.0)
    y = torch.bmm(f, u)
    return torch.baddbmm(y, f, torch.bmm(z, y), beta=2.0)


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
    """A bound on ||S||_2 that covers the batch: a power of sqrt(2), at least 1.

    2^40 at most: beyond, the angles are lost even in float64, and the result is NaN. NaN counts for nothing.
    """
    if torch.compiler.is_exporting():
        raise UsageError("max_norm=None chooses from the data and cannot be exported; give max_norm a number")
    tokens, _ = _sheared(q, k, c)
    halves = _both(tokens).unflatten(-1, (2, q.shape[-1]))
    if not halves.numel():
        return 1.0
    size = halves.abs().amax((1, 3), keepdim=True)  # of Q and of K: no fourth power may overflow
    scaled_q, scaled_k = (halves / torch.where(size == 0.0, 1.0, size)).unbind(2)
    z = torch.bmm(torch.cat((scaled_k, -scaled_q), -1).mT, torch.cat((scaled_q, scaled_k), -1))
    square = torch.bmm(z, z)
    norms = size.prod(2).flatten() * (0.5 * (square * square.mT).sum((-2, -1))).clamp_min(0.0) ** 0.25
    largest = float(norms.nan_to_num(0.0).max())
    return 2.0 ** (0.5 * math.ceil(2.0 * math.log2(min(max(1.0, 1.01 * largest), 2.0**40))))
