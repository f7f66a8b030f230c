"""What a picture shows, by a model: one picture, or many files of which a bad one does not stop the others."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.data.images import Source, open_image, picture_suffixes
from zoo.data.preprocessing import Preprocessing
from zoo.errors import DamagedError, NotFoundError, UsageError, ZooError
from zoo.loading import facts
from zoo.modes import evaluating

_NOT_FINITE = "the model's answer is not finite: the picture is outside its range, or its weights are damaged"

_NO_HEAD = "this model has no head and names no classes; load it without num_classes=0 or features_only"


@dataclass(frozen=True)
class Prediction:
    """The answer for one file: the likeliest class, its probability, and the `top` classes with theirs."""

    file: str
    label: str
    score: float
    top: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        top = [{"label": label, "score": score} for label, score in self.top]
        return {"file": self.file, "label": self.label, "score": self.score, "top": top}


@dataclass(frozen=True)
class Failure:
    """A file that could not be answered for, and why, in one line that names it; the exit code of that error."""

    file: str
    message: str
    exit_code: int = DamagedError.exit_code


def predict(model: nn.Module, source: Source, *, top: int = 5) -> list[tuple[str, float]]:
    """The `top` likeliest classes of one picture, as (label, probability), the likeliest first.

    Parameters
    ----------
    model : an image classifier with its `pretrained_cfg`; its device, dtype and mode are respected and kept.
    source : a path, the bytes of a picture file, an open binary file, or a PIL image.
    top : how many classes; more than there are gives all.

    Raises
    ------
    NotFoundError, DamagedError
        There is no such file, or it is no picture.
    DamagedError
        The model answers with NaN: the picture is outside what it covers, or its weights are damaged.
    UsageError
        `top` is less than 1.
    """
    _check_top(top)
    _check_head(model)
    preprocessing = Preprocessing.of(model)
    logits = _logits(model, preprocessing, preprocessing.pixels(open_image(source)).unsqueeze(0))[0]
    if not torch.isfinite(logits).all():
        raise DamagedError(_NOT_FINITE)
    return _ranked(model, logits, top)


def predict_files(
    model: nn.Module, files: Iterable[str | Path], *, top: int = 5, batch_size: int = 64
) -> Iterator[Prediction | Failure]:
    """A `Prediction` for each file, in order, or a `Failure` where a file cannot be read or answered.

    Pictures are read and answered `batch_size` at a time, so any number of files takes the memory of one batch.
    """
    _check_top(top)
    if batch_size < 1:
        raise UsageError(f"the batch size has to be 1 or more, got {batch_size}")
    _check_head(model)
    preprocessing = Preprocessing.of(model)
    rest = iter(files)
    while chunk := list(islice(rest, batch_size)):
        answers: dict[int, Prediction | Failure] = {}
        pixels: dict[int, Tensor] = {}
        for position, file in enumerate(chunk):
            try:
                pixels[position] = preprocessing.pixels(open_image(file))
            except ZooError as error:
                message = str(error)
                named = message if str(file) in message else f"{file}: {message}"
                answers[position] = Failure(str(file), named, error.exit_code)
        rows = _logits(model, preprocessing, torch.stack([*pixels.values()])) if pixels else ()
        for position, row in zip(pixels, rows, strict=True):
            file = str(chunk[position])
            if torch.isfinite(row).all():
                ranked = _ranked(model, row, top)
                answers[position] = Prediction(file, *ranked[0], tuple(ranked))
            else:
                answers[position] = Failure(file, f"{file}: {_NOT_FINITE}")
        yield from (answers[position] for position in range(len(chunk)))


def expand(words: Sequence[str | Path]) -> list[Path]:
    """Files that `words` mean: a file itself, the pictures in a folder, or what a glob matches.

    A folder means the files in it, not in its subfolders, whose ending is one of a picture and that are not hidden;
    "FOLDER/**/*.png" reaches below. A glob means its pictures, or, if it matches none, whatever files it matches. A
    name that exists is never taken for a glob. In the order of the words, within one in natural order (2 before 10),
    each file once. A plain name of which there is no file stays in the list as it is, so that `predict_files` answers
    the others and says so of this one.

    Raises
    ------
    NotFoundError
        A folder holds no picture, a glob matches nothing, or there is none of the files named.
    UsageError
        There are no words.
    """
    if not words:
        raise UsageError("name at least one picture, folder or glob")
    found: dict[Path, None] = {}
    for word in words:
        path = Path(word)
        if os.path.isdir(path):  # unlike pathlib's, these answer for any name, however long
            matches = _pictures(child for child in _children(path) if not child.name.startswith("."))
            if not matches:
                raise NotFoundError(f"{word}: no pictures in this folder (its subfolders: '{path / '**' / '*'}')")
        elif glob.has_magic(str(word)) and not os.path.exists(path):
            files = [match for match in map(Path, glob.glob(str(word), recursive=True)) if match.is_file()]
            matches = _pictures(files) or files
            if not matches:
                raise NotFoundError(f"{word}: no file matches")
        else:
            matches = [path]
        found.update(dict.fromkeys(sorted(matches, key=_natural)))
    if not any(map(os.path.exists, found)):
        raise NotFoundError(f"{next(iter(found))}: there is no such file or folder")
    return list(found)


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise DamagedError(f"{folder}: cannot be read ({error.strerror})") from None


def _pictures(paths: Iterable[Path]) -> list[Path]:
    """Those that are files with the ending of a picture."""
    endings = picture_suffixes()
    return [path for path in paths if path.suffix.lower() in endings and path.is_file()]


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """A sort key by which 2.png comes before 10.png."""
    parts = re.split(r"(\d+)", str(path).lower())
    return [(1, int(part), "") if part.isdecimal() else (2, 0, part) for part in parts]


def _check_top(top: int) -> None:
    if top < 1:
        raise UsageError(f"top has to be 1 or more, got {top}")


def _check_head(model: nn.Module) -> None:
    """UsageError for a model whose head was taken off: the softmax of its features would look like an answer."""
    if getattr(model, "num_classes", None) == 0:
        raise UsageError(_NO_HEAD)


@torch.inference_mode()
def _logits(model: nn.Module, preprocessing: Preprocessing, pixels: Tensor) -> Tensor:
    """pixels: (batch, channels, height, width) uint8 -> (batch, classes) float32 on the CPU.

    Computed where the model's parameters are and in their dtype.
    """
    parameter = next(model.parameters(), torch.empty(0))
    images = preprocessing.normalize(pixels.to(parameter.device)).to(parameter.dtype)
    with evaluating(model):
        answer = model(images)
    if not isinstance(answer, Tensor) or answer.dim() != 2:
        raise UsageError(_NO_HEAD)
    return answer.float().cpu()


def _ranked(model: nn.Module, logits: Tensor, top: int) -> list[tuple[str, float]]:
    """The `top` classes of one picture with their softmax probabilities, from (classes,) float32 logits."""
    count = len(logits)
    labels = facts(model).get("label_names") or ()
    if len(labels) != count:  # the head is not the one that the names were given for
        labels = [str(index) for index in range(count)]
    scores, indices = logits.softmax(0).topk(min(top, count))
    return [(str(labels[index]), float(score)) for index, score in zip(indices.tolist(), scores, strict=True)]
