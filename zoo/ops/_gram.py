"""exp(S) V from the Gram matrix of [Q, K]: two passes over the tokens, small matrices between them.

S = c (Q K^T - K Q^T) = c M J M^T with M = [Q, K], J = [[0, I], [-I, 0]], and exp(A B) = I + A phi_1(B A) B (Higham,
Functions of Matrices, 2008, theorem 1.35), so that without any basis of M's columns

    exp(S) V = V + M phi_1(Z) U,   Z = c J M^T M,   U = c J M^T V.

Shapes: q, k (batch, tokens, w), v (batch, tokens, n), m = 2 w, c (batch or 1, 1, 1).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.ops._chebyshev import Series, action, action_adjoint, beyond, series


def gram_attention(q: Tensor, k: Tensor, v: Tensor, c: Tensor, max_norm: float) -> Tensor:
    table = series(max_norm, torch.finfo(q.dtype).eps)
    inputs = (q, k, v, c)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs) and not torch.compiler.is_exporting():
        return _GramAttention.apply(*inputs, max_norm, table)
    return _forward(*inputs, max_norm, table)[0]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, c: Tensor, rho: float, table: Series
) -> tuple[Tensor, tuple[Tensor, ...]]:
    if torch.is_autocast_enabled(q.device.type):
        with torch.autocast(q.device.type, enabled=False):
            return _forward(q, k, v, c, rho, table)
    width = q.shape[-1]
    # Diagonal shear: K <- K - Q diag(r) leaves S as it is and takes away the cancellation in Q K^T - K Q^T.
    square, product = (q * q).sum(1, keepdim=True), (q * k).sum(1, keepdim=True)
    ratio = (product / torch.where(square == 0, 1.0, square)).detach()
    scaled = q * c
    tokens = torch.cat((scaled, torch.addcmul(k, q, ratio, value=-1.0), -scaled), -1)
    both, turned = tokens[..., : 2 * width], tokens[..., width:]  # M and M J^T
    z, u = torch.bmm(turned.mT, both), torch.bmm(turned.mT, v)
    saved = action(z, u, rho, table)
    out = torch.baddbmm(v, both, saved[3])
    return out, (q, v, tokens, ratio, c, z, u, *saved)


class _GramAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, c: Tensor, rho: float, table: Series) -> Tensor:
        out, saved = _forward(q, k, v, c, rho, table)
        ctx.save_for_backward(*saved)
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
    q, v, tokens, ratio, c, z, u, *saved = ctx.saved_tensors
    width = q.shape[-1]
    both, turned = tokens[..., : 2 * width], tokens[..., width:]
    grad_y = torch.bmm(turned.mT, grad).add_(beyond(saved[1], saved[2]))
    gamma, grad_u = action_adjoint(z, u, ctx.rho, ctx.table, saved, grad_y)
    grad_both = torch.bmm(both, gamma + gamma.mT)
    grad_both.baddbmm_(v, grad_u.mT, alpha=-1.0).baddbmm_(grad, saved[3].mT)
    grad_v = torch.baddbmm(grad, both, grad_u, alpha=-1.0)
    grad_q, grad_k = grad_both[..., :width], grad_both[..., width:]
    grad_c = None
    if ctx.needs_input_grad[3]:
        grad_c = (grad_q * q).sum((-2, -1), keepdim=True).sum_to_size(c.shape)
    # The shear does not change the result, so its ratio has no gradient.
    grad_q.mul_(c).addcmul_(grad_k, ratio, value=-1.0)
    return grad_q, grad_k, grad_v, grad_c
