"""What torch is doing with a function at the moment: following gradients, transforming, compiling, or nothing of it.

torch has no public name for two of these questions. They are asked of the names it uses itself (torch 2.14), and where
a later torch lacks one, the answer is the careful one.
"""

from __future__ import annotations

import contextlib
import numbers

import torch
from torch import Tensor
from torch.autograd import forward_ad

_transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)


def transformed() -> bool:
    """Whether `torch.func` or forward-mode differentiation is at work, which an adjoint by hand does not know."""
    if torch.compiler.is_compiling():
        return False
    return bool(_transforms_active()) or getattr(forward_ad, "_current_level", 0) >= 0


def watched(*inputs: Tensor | float) -> bool:
    """Whether gradients of one of `inputs` are wanted."""
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)


def recorded() -> bool:
    """Whether a graph is made of what is computed, for another runtime, rather than the numbers themselves."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()  # type: ignore[attr-defined]


def only_numbers(*inputs: Tensor) -> bool:
    """Whether nothing but the numbers is wanted, so that buffers may be written and sizes looked at."""
    return not recorded() and not torch.compiler.is_compiling() and not transformed() and not watched(*inputs)


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Autocast off: half precision must not enter the small matrices. The meta device knows no autocast."""
    return contextlib.nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def is_dense_float(x: Tensor) -> bool:
    """Of a type and layout that the operations compute in: float8 and sparse tensors have no matrix products."""
    return x.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64) and x.layout == torch.strided


def is_number(x: object) -> bool:
    """Whether `x` is a real number of Python or NumPy, or one that a compiler follows as such."""
    return isinstance(x, int | float | numbers.Real | torch.SymInt | torch.SymFloat)


def shown(x: object) -> str:
    """What `x` is, for an error's line."""
    return f"{tuple(x.shape)} of {x.dtype}, {x.layout}" if isinstance(x, Tensor) else type(x).__name__
