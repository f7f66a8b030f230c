"""How a model is run while it is measured, everything as it was afterwards, also after an error; and what it takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from zoo.errors import UsageError

if TYPE_CHECKING:
    from torch import nn


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """`model` in eval mode with autocast off and no gradients; every submodule's own mode afterwards."""
    import torch

    modes = {module: module.training for module in model.modules()}
    kind = next((tensor.device.type for tensor in model.parameters()), "cpu")
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(kind, enabled=False):
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def takes_text(model: object) -> bool:
    """Whether `model` is a language model, which no picture can be shown to."""
    return callable(getattr(model, "generate", None))


def context_of(model: Any) -> int | None:
    """How many tokens the language model `model` can take at once; None where its configuration knows no limit."""
    longest = getattr(model.config, "max_position_embeddings", None)
    return longest if isinstance(longest, int) and longest > 0 else None


def check_context(model: Any, context: int) -> None:
    """UsageError where `context` is more than the model's."""
    longest = context_of(model)
    if longest is not None and context > longest:
        raise UsageError(f"context {context} is more than the {longest} tokens of the model")


def check_batch_size(batch_size: int) -> None:
    """UsageError where nothing fits into a batch."""
    if batch_size < 1:
        raise UsageError(f"the batch size has to be 1 or more, got {batch_size}")


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Convolutions of cuDNN in float32, as ONNX Runtime computes them here; torch lets them run in TF32 by default.

    Matrix products are left as they are set: torch's default for them is float32 already.
    """
    import torch

    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
