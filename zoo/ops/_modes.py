"""What torch is doing with a function at the moment: following gradients, transforming, compiling, or nothing of it."""

from __future__ import annotations

import torch
from torch import Tensor


def transformed() -> bool:
    """Whether `torch.func` or forward-mode differentiation is at work, which an adjoint by hand does not know."""
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._are_functorch_transforms_active()) or torch.autograd.forward_ad._current_level >= 0


def eager(*inputs: Tensor) -> bool:
    """Whether nothing but the numbers is wanted, so that buffers may be written in place."""
    watched = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    return not watched and not torch.compiler.is_compiling() and not transformed()
