"""The update of the Manifold-Geometric Transformer (arXiv 2601.01014): gate, controller, and the delta step.

Everything is elementwise but the LayerNorm of the gate; shapes are (..., dim) throughout.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def soft_projection(
    v: Tensor,
    scores: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    scale: float = 1.0,
    eps: float = 1e-5,
) -> Tensor:
    """V_mHC = V * scale * sigmoid(LN(scores)), scores = X W_gate: the source's gate of what attention or MLP give.

    v, scores: (..., dim) -> (..., dim) in v's dtype; weight, bias: (dim,) of the LayerNorm. `scale` 2 keeps the size
    of V on average, where the source's 1 halves it.
    """
    return sigmoid_gate(v, functional.layer_norm(scores, scores.shape[-1:], weight, bias, eps), scale=scale)


def sigmoid_gate(v: Tensor, logits: Tensor, *, scale: float = 1.0) -> Tensor:
    """V * scale * sigmoid(logits): the soft projection once its scores are normed. v, logits: (..., dim) -> (..., dim).

    In v's dtype.
    """
    gate = logits.sigmoid()
    return v * (gate if scale == 1 else scale * gate).to(v.dtype)


def delta_controller(scores: Tensor, bias: Tensor | float = 0.0, *, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """beta = scale * tanh(scores + bias) + shift, scores = X W_beta: in [shift - scale, shift + scale].

    scores: (..., dim), bias: (dim,) or a number -> (..., dim). The source's lambda and epsilon are `scale` and
    `shift`; 1 and 1 are the gate 2 sigmoid(2 z) of Deep Delta Learning, between identity (0) and reflection (2).
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
