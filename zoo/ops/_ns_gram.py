"""The Newton-Schulz transformation by the Gram matrix of the smaller side, and its adjoint in the same small space.

In the notation of the source's Algorithm 1, with r = ||X||_F, m = max(r, eps) and Y_k = m Z_k^T, so that Y_0 = X:

    A_k = Y_k^T Y_k / m^2,   P_k = a I + b A_k + c A_k^2,   Y_k+1 = Y_k P_k,   X_hat = Y_K r / (m max(||Z_K||, eps))

or with A_k = Y_k Y_k^T / m^2 and Y_k+1 = P_k Y_k, where X has fewer tokens than features. A_k and P_k are symmetric
and commute.

Two things follow from A_0 alone and are not taken from it: A_k+1 = P_k A_k P_k, and ||Z_K||^2 = tr A_K. A Gram matrix
is known to the rounding unit of its largest eigenvalue, and either multiplies that error by a^2 in the directions of
small singular values. For matrices near rank one in float32, where Algorithm 1 errs by 4e-7 after one step and by 7e-7
after two, the trace alone made that 1.4e-6, and both together 7e-6. The norm of what is there anyway is faster too.

Shapes: x is (batch, tokens, features), "batch" all that comes before; the small matrices are (batch, n, n), n the
lesser of tokens and features; what is one number a matrix is (batch, 1, 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.ops._modes import full_precision

Coefficients = tuple[float, float, float]


@dataclass(frozen=True)
class Iteration:
    """`steps` equal steps with `coefficients` (a, b, c), and the clamp `eps` of the norms before and after."""

    steps: int
    coefficients: Coefficients
    eps: float


def transform(x: Tensor, how: Iteration, *, recorded: bool = False) -> Tensor:
    """X_hat of x: (batch, tokens, features), float32 or float64; followed by autograd, traced and exported as it is.

    `recorded` says that a graph is made for another runtime: it gets the form with the fewest passes over the tokens.
    """
    if how.eps:
        return _followed(x, how, recorded)
    size = x.abs().amax((-2, -1), keepdim=True).detach()  # so that no square overflows; it drops out again
    size = torch.where(size == 0.0, 1.0, size)
    return _followed(x / size, how, recorded=False) * size


def transform_by_hand(x: Tensor, how: Iteration) -> Tensor:
    """The same for an eps above 0, in buffers of its own and with its adjoint by hand; x may be of half precision."""
    out: Tensor = _ByHand.apply(x, how)
    return out


class _ByHand(torch.autograd.Function):
    """A step is two products with the tokens forward, three backward; half precision is computed in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: Iteration) -> Tensor:
        a, b, c = how.coefficients
        y, steps = _wide(x), []
        for k in range(how.steps):
            gram = _gram(y)
            if k == 0:
                square = _trace(gram)
                clamped = _clamped(square, how.eps)
            p = torch.baddbmm(gram.div_(clamped), gram, gram, beta=b, alpha=c)
            steps += [gram, p, y] if k else [gram, p]
            last = k == how.steps - 1
            if not last:
                y = _applied(y, p, a)
            p.diagonal(dim1=-2, dim2=-1).add_(a)
            if last:
                y = _applied(y, p)
        norm = torch.linalg.vector_norm(y, dim=(-2, -1), keepdim=True).square() / clamped
        scale = _scale(square, clamped, norm, how.eps)
        ctx.save_for_backward(x, square, clamped, norm, scale, *steps)
        ctx.how = how
        return y.mul_(scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, *saved = ctx.saved_tensors
        with full_precision(grad.device):
            if torch.is_grad_enabled():  # under create_graph: the adjoint by hand is not itself differentiable
                again = transform(_wide(x), ctx.how).to(x.dtype)
                return torch.autograd.grad(again, x, grad, create_graph=True)[0], None
            return _adjoint(_wide(x), _wide(grad), saved, ctx.how).to(x.dtype), None


def _adjoint(x: Tensor, grad: Tensor, saved: list[Tensor], how: Iteration) -> Tensor:
    """dX from dX_hat, step by step backwards: dY_k = dY_k+1 P_k + Y_k S_k.

    S_k is twice the symmetric gradient of Y_k^T Y_k. The norm of the last step is differentiated as the trace of
    P A P, which gives P (a I + 3 b A + 5 c A^2).
    """
    a, b, c = how.coefficients
    square, clamped, norm, scale, *steps = saved
    clamp = how.eps * how.eps
    above, below = torch.zeros_like(square), torch.zeros_like(square)
    for k in reversed(range(how.steps)):
        gram, p, y = steps[3 * k - 1 : 3 * k + 2] if k else (*steps[:2], x)
        core = torch.bmm(y.mT, grad) if _is_tall(x) else torch.bmm(grad, y.mT)
        core = core + core.mT  # twice the only part that a symmetric matrix can feel
        if k == how.steps - 1:
            core.mul_(scale / clamped)
            inner = (core * p).sum((-2, -1), keepdim=True) * clamped
            below = torch.where(square > 0.0, 0.5 * inner / torch.where(square > 0.0, square, 1.0), 0.0)
            trace = torch.where(norm > clamp, -0.5 * inner / norm.clamp_min(clamp), 0.0) / clamped
            power = torch.bmm(p, gram)
            half = (p * (0.5 * a * trace)).addcmul_(power, 0.25 * b * trace)
            core.add_(power.mul_(2.5 * trace))
            half.add_(core, alpha=0.5 * b).baddbmm_(gram, core, alpha=c)
            p = p * scale
        else:
            half = torch.baddbmm(core.div_(clamped), gram, core, beta=0.5 * b, alpha=c)
        small = half + half.mT
        above = above - (half.mul_(gram)).sum((-2, -1), keepdim=True) * 2.0
        if k == 0:  # above the clamp every A_k feels r, which the scale does not; below it only the scale does
            small.diagonal(dim1=-2, dim2=-1).add_(torch.where(square > clamp, above, below)[..., 0])
        if _is_tall(x):
            grad = torch.bmm(grad, p).baddbmm_(y, small)
        else:
            grad = torch.bmm(p, grad).baddbmm_(small, y)
    return grad


def _followed(x: Tensor, how: Iteration, recorded: bool) -> Tensor:
    """X_hat, differentiable as often as one likes."""
    a, b, c = how.coefficients
    gram = _gram(x)
    square = _trace(gram)
    clamped = _clamped(square, how.eps)
    eye = a * torch.eye(gram.shape[-1], dtype=x.dtype, device=x.device)
    y = x
    for k in range(how.steps):
        gram = (_gram(y) if k else gram) / clamped
        p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        if k < how.steps - 1:
            y = _applied(y, p, a)
    p = p + eye
    if recorded:  # the norm as a trace: ONNX Runtime takes long for norms of the tokens
        norm = (torch.bmm(p, gram) * p).sum((-2, -1), keepdim=True)
        there = square > 0.0
        ratio = torch.where(there, square, 1.0) / clamped / _clamped(norm, how.eps)
        return _applied(y, p * torch.where(there, ratio.sqrt(), 0.0))
    y = _applied(y, p)
    norm = y.square().sum((-2, -1), keepdim=True) / clamped
    return y * _scale(square, clamped, norm, how.eps)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _is_tall(x: Tensor) -> bool:
    return x.shape[-2] >= x.shape[-1]


def _gram(x: Tensor) -> Tensor:
    return torch.bmm(x.mT, x) if _is_tall(x) else torch.bmm(x, x.mT)


def _applied(x: Tensor, p: Tensor, a: float = 0.0) -> Tensor:
    """p on x, and a x to it: apart from p, equal tokens and features stay equal to the last bit, as in Algorithm 1.

    A step that follows would multiply their differences by a; after the last one nothing does.
    """
    if a:
        return torch.baddbmm(x, x, p, beta=a) if _is_tall(x) else torch.baddbmm(x, p, x, beta=a)
    return torch.bmm(x, p) if _is_tall(x) else torch.bmm(p, x)


def _trace(x: Tensor) -> Tensor:
    return x.flatten(1)[:, :: x.shape[-1] + 1].sum(-1)[:, None, None]  # `diagonal` exports as some fifteen nodes


def _clamped(square: Tensor, eps: float) -> Tensor:
    """max(norm, eps)^2 of a squared norm, never zero; without a clamp a zero is kept out of the divisions."""
    if eps:
        return square.clamp_min(max(eps * eps, torch.finfo(square.dtype).tiny))
    return torch.where(square == 0.0, 1.0, square)


def _scale(square: Tensor, clamped: Tensor, norm: Tensor, eps: float) -> Tensor:
    """r / (m max(||Z_K||, eps)); zero for a zero matrix, whose gradient is zero then, and NaN beyond the range."""
    there = (square > 0.0) & (norm < torch.inf)
    ratio = torch.where(there, square, 1.0) / clamped / _clamped(norm, eps)
    return torch.where(there, ratio.sqrt(), 0.0 * norm)
