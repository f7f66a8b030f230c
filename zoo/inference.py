"""What a picture shows, by a model: one picture, or many files of which a bad one does not stop the others."""

from __future__ import annotations

import glob
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
    """A file that could not be answered for, and why, in one line that names it."""

    file: str
    message: str


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
    pixels = Preprocessing.of(model).pixels(open_image(source))
    probabilities = _probabilities(model, pixels.unsqueeze(0))[0]
    if not torch.isfinite(probabilities).all():
        raise DamagedError("the model answers this picture with NaN: it is outside the range that the model covers")
    return _ranked(model, probabilities, top)


def predict_files(
    model: nn.Module, files: Iterable[str | Path], *, top: int = 5, batch_size: int = 64
) -> Iterator[Prediction | Failure]:
    """A `Prediction` for each file, in order, or a `Failure` where a file cannot be read or answered.

    Pictures are read and answered `batch_size` at a time, so any number of files takes the memory of one batch.
    """
    _check_top(top)
    if batch_size < 1:
        raise UsageError(f"the batch size has to be 1 or more, got {batch_size}")
    preprocessing = Preprocessing.of(model)
    rest = iter(files)
    while chunk := list(islice(rest, batch_size)):
        answers: dict[int, Prediction | Failure] = {}
        pixels: dict[int, Tensor] = {}
        for position, file in enumerate(chunk):
            try:
                pixels[position] = preprocessing.pixels(open_image(file))
            except ZooError as error:
                answers[position] = Failure(str(file), str(error))
        rows = _probabilities(model, torch.stack([*pixels.values()])) if pixels else ()
        for position, row in zip(pixels, rows, strict=True):
            file = str(chunk[position])
            if torch.isfinite(row).all():
                ranked = _ranked(model, row, top)
                answers[position] = Prediction(file, *ranked[0], tuple(ranked))
            else:
                answers[position] = Failure(file, f"{file}: the model answers with NaN, it is outside its range")
        yield from (answers[position] for position in range(len(chunk)))


def expand(words: Sequence[str | Path]) -> list[Path]:
    """Files that `words` mean: a file itself, the pictures in a folder (not in its subfolders), or what a glob matches.

    In the order of the words, within one in natural order (2 before 10), each file once. A name that exists is never
    taken for a glob.

    Raises
    ------
    NotFoundError
        A word names nothing, or a folder without a picture; nothing is begun then.
    UsageError
        There are no words.
    """
    if not words:
        raise UsageError("name at least one picture, folder or glob")
    found: dict[Path, None] = {}
    for word in words:
        path = Path(word)
        if path.is_dir():
            endings = picture_suffixes()
            matches = [child for child in path.iterdir() if child.suffix.lower() in endings and child.is_file()]
            missing = f"{word}: no pictures in this folder"
        elif path.exists() or not glob.has_magic(str(word)):
            matches = [path] if path.exists() else []
            missing = f"{word}: there is no such file or folder"
        else:
            matches = [match for match in map(Path, glob.glob(str(word), recursive=True)) if match.is_file()]
            missing = f"{word}: nothing matches"
        if not matches:
            raise NotFoundError(missing)
        found.update(dict.fromkeys(sorted(matches, key=_natural)))
    return list(found)


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """A sort key by which 2.png comes before 10.png."""
    parts = re.split(r"(\d+)", str(path).lower())
    return [(1, int(part), "") if part.isdecimal() else (2, 0, part) for part in parts]


def _check_top(top: int) -> None:
    if top < 1:
        raise UsageError(f"top has to be 1 or more, got {top}")


@torch.inference_mode()
def _probabilities(model: nn.Module, pixels: Tensor) -> Tensor:
    """pixels: (batch, channels, height, width) uint8 -> (batch, classes) float32 on the CPU."""
    parameter = next(model.parameters())
    images = Preprocessing.of(model).normalize(pixels.to(parameter.device)).to(parameter.dtype)
    was_training = model.training
    model.eval()
    try:
        return model(images).float().softmax(1).cpu()
    finally:
        model.train(was_training)


def _ranked(model: nn.Module, probabilities: Tensor, top: int) -> list[tuple[str, float]]:
    labels = facts(model).get("label_names") or [str(index) for index in range(len(probabilities))]
    scores, indices = probabilities.topk(min(top, len(probabilities)))
    return [(str(labels[index]), float(score)) for index, score in zip(indices.tolist(), scores, strict=True)]
