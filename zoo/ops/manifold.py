"""The update of the Manifold-Geometric Transformer (arXiv 2601.01014): gate, controller, and the delta step.

Everything is elementwise; shapes are (..., dim) throughout.
"""

from __future__ import annotations

import torch
from torch import Tensor


def soft_projection(v: Tensor, logits: Tensor, *, scale: float = 1.0) -> Tensor:
    """V_mHC = V * scale * sigmoid(logits), logits = LN(X W_gate): the source's gate of what attention or MLP give.

    v, logits: (..., dim) -> (..., dim) in v's dtype. `scale` 2 keeps the size of V on average, where the source's 1
    halves it.
    """
    gate = logits.sigmoid()
    return v * (gate if scale == 1 else scale * gate).to(v.dtype)


def delta_controller(scores: Tensor, bias: Tensor | float = 0.0, *, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """beta = scale * tanh(scores + bias) + shift, scores = X W_beta: in [shift - scale, shift + scale].

    scores: (..., dim), bias: (dim,) or a number -> (..., dim). The source's lambda and epsilon are `scale` and
    `shift`; 1 and 1 are the gate 2 sigmoid(2 z) of Deep Delta Learning, whose operator it takes from the identity (0)
    over a projection (1) to a reflection (2). `delta_update` is another operator: its 2 takes 2 alpha of x away.
    """
    beta = torch.tanh(scores + bias)
    if scale != 1:
        beta = scale * beta
    return beta + shift if shift else beta


def delta_update(x: Tensor, v: Tensor, beta: Tensor | float, alpha: Tensor | float) -> Tensor:
    """x + beta * (v - alpha x): the source's equation X_{l+1} = X_l + beta (V - alpha X_l).

    x, v: (..., dim), beta: (..., dim) or a number, alpha: a number, 0-d or (1,) -> (..., dim) in x's dtype. alpha 0
    and beta 1 are the plain skip; beta 0 leaves x as it is.
    """
    erased = torch.addcmul(v, alpha, x, value=-1) if isinstance(alpha, Tensor) else v - alpha * x
    step = torch.addcmul(x, beta, erased) if isinstance(beta, Tensor) else x + beta * erased
    return step.to(x.dtype)
