"""The figure of a model, recomputed from weights and data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zoo.data import DATASETS, ImageArrays, open_dataset
from zoo.data.preprocessing import Preprocessing
from zoo.data.tokenizers import tokenizer_of
from zoo.errors import NO_NUMBERS, DamagedError, UsageError
from zoo.loading import facts, load
from zoo.modes import check_batch_size, context_of, evaluating, takes_text
from zoo.training import copying
from zoo.training.copying import CopyEvaluation
from zoo.training.corpus import corpus
from zoo.training.perplexity import TextEvaluation, perplexity
from zoo.training.process import progress_bar

_WINDOW = 1024  # tokens, of a language model that says neither what it learned from nor a limit


@dataclass(frozen=True)
class Evaluation:
    """`top1` in per cent, `correct` of `total`, mean cross-entropy `loss` in nats."""

    top1: float
    correct: int
    total: int
    loss: float

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers by name."""
        return asdict(self)


@torch.inference_mode()
def evaluate(
    model: nn.Module, arrays: ImageArrays, *, batch_size: int = 256, report: Callable[[int], Any] | None = None
) -> Evaluation:
    """Count right answers of `model` (in eval mode meanwhile) on all of `arrays`, on the model's device and dtype.

    The last batch may be smaller; nothing is padded, dropped or augmented. A batch at a time is moved to the device;
    after each `report` is told how many pictures it had.
    Raises UsageError for an empty set or batch size, DamagedError when the model answers with NaN.
    """
    check_batch_size(batch_size)
    if not len(arrays):
        raise UsageError("there are no pictures to evaluate on")
    preprocessing = Preprocessing.of(model)
    # Counted on the CPU: not every device has float64, in which the sum does not depend on how the set was cut.
    parameter = next(model.parameters())
    correct, loss = 0, 0.0
    with evaluating(model):
        for start in range(0, len(arrays), batch_size):
            images = arrays.images[start : start + batch_size].to(parameter.device)
            targets = arrays.targets[start : start + batch_size]
            logits = model(preprocessing.normalize(images).to(parameter.dtype)).float().cpu()
            if not torch.isfinite(logits).all():
                raise DamagedError(NO_NUMBERS)
            correct += int((logits.argmax(1) == targets).sum())
            loss += float(nn.functional.cross_entropy(logits.double(), targets, reduction="sum"))
            if report is not None:
                report(len(targets))
    return Evaluation(100 * correct / len(arrays), correct, len(arrays), loss / len(arrays))


def evaluate_named(
    name: str,
    *,
    batch_size: int | None = None,
    data_dir: str | Path | None = None,
    device: str = "cpu",
    data: str | None = None,
    split: str = "test",
    context: int | None = None,
    stride: int | None = None,
    progress: bool = False,
) -> Evaluation | TextEvaluation | CopyEvaluation:
    """Load `name` (registry name, folder or Hub id) and evaluate it on a split of `data`, else of its own set.

    `batch_size` is 256 pictures or 8 windows where it is left out. `split` is "test", or of a text any.
    `context` and `stride` are the window of a language model, see `zoo.training.perplexity`: the context that it was
    trained with, and half of it. `progress` shows a bar on stderr.
    UsageError where the data have other classes than the model, or where an option belongs to another kind of model.
    """
    if batch_size is not None:
        check_batch_size(batch_size)
    if data == "":
        raise UsageError("--data is empty; leave it out, or name a data set")
    model = load(name, device=device)
    text = takes_text(model)
    dataset = data or facts(model).get("dataset")
    if dataset is None:
        raise UsageError(
            f"nothing says on which data set {name} is to be evaluated; name it with --data, such as"
            f" {'textfile:FILE' if text else 'imagefolder:DIR'}"
        )
    if dataset == copying.DATASET and text:
        if stride is not None:
            raise UsageError("the copy task has sequences and no window that moves: leave out --stride")
        return copying.evaluate_copy(model, context or facts(model).get("context") or 64, split, batch_size or 50)
    if text:
        return _evaluate_text(model, name, dataset, split, data_dir, context, stride, batch_size or 8, progress)
    if split != "test" or context is not None or stride is not None:
        raise UsageError(f"{name} is an image model, which is evaluated on its test set and has no window of tokens")
    arrays = open_dataset(dataset, "test", data_dir, pixels=Preprocessing.of(model).pixels)
    named = facts(model).get("label_names")
    if len(arrays.labels) != model.num_classes or (data and named and tuple(named) != arrays.labels):
        raise UsageError(
            f"{name} knows {model.num_classes} classes{_first_labels(named)}, {dataset} has {len(arrays.labels)}"
            f"{_first_labels(arrays.labels)}; train on it first:"
            f" zoo train {facts(model)['zoo_name']} --data {dataset} --init {name}"
        )
    whole = DATASETS[dataset].test_size if dataset in DATASETS else len(arrays)
    if len(arrays) != whole:
        warnings.warn(f"{dataset} has {len(arrays)} test pictures here, the whole set {whole}", stacklevel=2)
    with progress_bar(len(arrays), 0, name, shown=progress, unit="picture") as bar:
        return evaluate(model, arrays, batch_size=batch_size or 256, report=bar.update)


def _evaluate_text(
    model: Any,
    name: str,
    dataset: str,
    split: str,
    data_dir: str | Path | None,
    context: int | None,
    stride: int | None,
    batch_size: int,
    progress: bool,
) -> TextEvaluation:
    tokenizer = tokenizer_of(model, data_dir)
    ids, words = corpus(dataset, split, tokenizer, data_dir)
    window = context or facts(model).get("context") or context_of(model) or _WINDOW
    with progress_bar(len(ids) - 1, 0, name, shown=progress, unit="token") as bar:
        return perplexity(model, ids, words, context=window, stride=stride, batch_size=batch_size, report=bar.update)


def _first_labels(labels: Sequence[str] | None) -> str:
    return f" ({', '.join(labels[:3])}{', ...' if len(labels) > 3 else ''})" if labels else ""
