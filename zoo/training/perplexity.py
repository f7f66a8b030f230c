"""The perplexity of a language model on a text, per token and per word."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zoo.errors import NO_NUMBERS, DamagedError, UsageError
from zoo.modes import check_batch_size, check_context, evaluating


@dataclass(frozen=True)
class TextEvaluation:
    """What a model makes of a text.

    loss : mean cross-entropy of a token in nats; `perplexity` is its exponential.
    word_perplexity : the same loss in all, over the words of the text before it was cut into tokens, so that tokenizers
        can be compared. Both are None where they are no floating-point number any more, as in a text without blanks.
    tokens, words : how many were predicted; how many words the text has, ends of lines among them.
    context, stride : the window, and by how much it is moved, in tokens.
    """

    loss: float
    perplexity: float | None
    word_perplexity: float | None
    tokens: int
    words: int
    context: int
    stride: int

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers by name."""
        return asdict(self)


@torch.inference_mode()
def perplexity(
    model: nn.Module,
    ids: Tensor,
    words: int,
    *,
    context: int,
    stride: int | None = None,
    batch_size: int = 8,
    report: Callable[[int], Any] | None = None,
) -> TextEvaluation:
    """Slide a window of `context` tokens over `ids` (tokens,), `stride` at a time, and count every token once.

    The first id is given, all others are predicted, each with at least `context - stride` tokens before it but for
    those of the first window. `stride` is half of `context` where it is left out. `report` is told how many tokens each
    batch counted. Computed in the model's device and dtype, summed in float64 on the CPU.

    Raises UsageError for a text without a token to predict, a window that cannot move or is longer than the model's
    context, or a batch size below 1; DamagedError for NaN.
    """
    check_context(model, context)
    step = max(context // 2, 1) if stride is None else stride
    check_batch_size(batch_size)
    if context < 1:
        raise UsageError(f"the window has to hold 1 token or more, got {context}")
    if not 1 <= step <= context:
        raise UsageError(f"the window of {context} tokens cannot be moved by {step}; from 1 to its length it can")
    if len(ids) < 2 or words < 1:
        raise UsageError("the text has no word to predict")
    device = next(model.parameters()).device
    total, counted = 0.0, 0
    with evaluating(model):
        for inputs, targets in _batches(ids.long(), context, step, batch_size):
            logits = model(input_ids=inputs.to(device), use_cache=False).logits
            losses = nn.functional.cross_entropy(
                logits.float().flatten(0, 1), targets.to(device).flatten(), ignore_index=-100, reduction="none"
            )
            total += float(losses.cpu().double().sum())  # not every device has float64
            new = int((targets != -100).sum())
            counted += new
            if report is not None:
                report(new)
    if not math.isfinite(total):
        raise DamagedError(NO_NUMBERS)
    assert counted == len(ids) - 1
    loss = total / counted
    return TextEvaluation(loss, _exp(loss), _exp(total / words), counted, words, context, step)


def _batches(ids: Tensor, context: int, stride: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets (batch, tokens) int64; -100 marks what an earlier window has counted, or what is not there."""
    rows: list[tuple[Tensor, Tensor]] = []
    done = 0  # how many targets, ids[1:], were counted
    for start in range(0, len(ids) - 1, stride):
        inputs, targets = ids[start : start + context], ids[start + 1 : start + context + 1].clone()
        inputs = inputs[: len(targets)]
        targets[: done - start] = -100
        done = start + len(targets)
        short = context - len(inputs)
        # What follows a shorter last window is not seen by it: attention is causal.
        rows.append((nn.functional.pad(inputs, (0, short)), nn.functional.pad(targets, (0, short), value=-100)))
        last = done == len(ids) - 1
        if len(rows) == batch_size or last:
            one, other = zip(*rows, strict=True)
            yield torch.stack(one), torch.stack(other)
            rows = []
        if last:
            return


def _exp(loss: float) -> float | None:
    """exp(loss), where it is a double."""
    return math.exp(loss) if loss < 700 else None
