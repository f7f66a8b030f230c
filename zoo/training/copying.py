"""The copy task: the second half of a sequence is its first half again. Attention can do it, counting words cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.data.augment import to_device
from zoo.errors import NO_NUMBERS, DamagedError, UsageError
from zoo.loading import facts
from zoo.modes import check_batch_size, check_context, evaluating
from zoo.training.job import Job
from zoo.training.language import LanguageTask, language_model

DATASET = "copy"
_ALPHABET = 64
_HELD_OUT = 500  # sequences to test on
_SEEDS = {"validation": 1_000_003, "test": 1_000_033}  # beyond those of a recipe


@dataclass(frozen=True)
class CopyEvaluation:
    """`accuracy` in per cent, `correct` of `total` tokens of the second halves; `loss` of one of them in nats."""

    accuracy: float
    correct: int
    total: int
    loss: float
    context: int

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers by name."""
        return asdict(self)


def sequences(count: int, length: int, seed: int) -> Tensor:
    """(count, length) int64, the second half of each the first again; of 64 tokens, evenly drawn from `seed`.

    Raises UsageError for a length that has no two halves.
    """
    if length < 2 or length % 2:
        raise UsageError(f"the copy task has sequences of an even length, got context {length}")
    half = torch.randint(_ALPHABET, (count, length // 2), generator=torch.Generator().manual_seed(seed))
    return torch.cat((half, half), 1)


@torch.inference_mode()
def evaluate_copy(model: nn.Module, context: int, split: str = "test", batch_size: int = 50) -> CopyEvaluation:
    """How many tokens of the second halves of 500 sequences `model` finds, each with the right ones before it.

    Raises UsageError for another split than validation and test, for a model of fewer tokens or a shorter context, and
    for a batch size below 1; DamagedError when the model answers with NaN.
    """
    if split not in _SEEDS:
        raise UsageError(f"the copy task is tested on {' or '.join(_SEEDS)}, not on {split!r}")
    _check_vocabulary(model)
    check_context(model, context)
    check_batch_size(batch_size)
    rows = sequences(_HELD_OUT, context, _SEEDS[split])
    device = next(model.parameters()).device
    correct, loss = 0, 0.0
    with evaluating(model):
        for batch in rows.split(batch_size):
            logits, targets = _second_half(model, batch.to(device))
            losses = nn.functional.cross_entropy(logits, targets, reduction="none")
            loss += float(losses.cpu().double().sum())  # not every device has float64
            correct += int((logits.argmax(-1) == targets).sum())
    if not torch.tensor(loss).isfinite():
        raise DamagedError(NO_NUMBERS)
    total = rows.numel() // 2
    return CopyEvaluation(100 * correct / total, correct, total, loss / total, context)


class CopyTask(LanguageTask):
    """Sequences of the copy task; cross-entropy of their second halves, and the share of tokens that are right."""

    def __init__(self, job: Job, *, resumed: bool = False) -> None:
        super().__init__(job)
        if self.recipe.samples is None:
            raise UsageError(f"the copy task has no end: say how many, --set samples=20000; or --recipe {DATASET}")
        model = language_model(job, self.recipe, resumed=resumed)
        _check_vocabulary(model)
        self.size = self.recipe.samples
        self.data = sequences(self.size, self.recipe.context, self.recipe.seed)
        self.data_facts = {"sequences": self.size, "context": self.recipe.context}
        facts(model).update(context=self.recipe.context, tokenizer=None, dataset=DATASET)
        self.model = model

    def to(self, device: torch.device) -> None:
        """Move the sequences to learn from."""
        self.data = self.data.to(device)

    def describe(self) -> str:
        """Such as "copy: 20000 sequences of 64"."""
        return f"{DATASET}: {self.size} sequences of {self.recipe.context}"

    def difference(self, found: Mapping[str, Any]) -> str:
        """They are drawn from the seed, so that only their number can be another."""
        return f"it had {found}, now {self.data_facts}"

    def loss(self, model: nn.Module, index: Tensor, generator: torch.Generator) -> Tensor:
        """Cross-entropy in nats of the tokens of the second halves."""
        logits, targets = _second_half(model, self.data[to_device(index, self.data.device)])
        return nn.functional.cross_entropy(logits, targets)

    def figures(self) -> dict[str, Any]:
        """On sequences that are not learned from."""
        return evaluate_copy(self.model, self.recipe.context, self.split).to_dict()

    def headline(self, figures: Mapping[str, Any]) -> str:
        """The share of right tokens, and the loss."""
        return f"accuracy {figures['accuracy']:.2f} %, loss {figures['loss']:.4f}"

    def results(self, folder: Path) -> dict[str, Any]:
        """On test sequences."""
        return {"split": "test", **evaluate_copy(self.read_back(folder), self.recipe.context).to_dict()}


def _check_vocabulary(model: Any) -> None:
    if model.config.vocab_size < _ALPHABET:
        raise UsageError(f"the copy task has {_ALPHABET} tokens, the model {model.config.vocab_size}")


def _second_half(model: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (n, vocab) float32 and targets (n,) of the second halves of `rows` (batch, length)."""
    half = rows.shape[1] // 2
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits[:, half - 1 :]
    return logits.float().flatten(0, 1), rows[:, half:].flatten()
