"""Parquet files in the layouts of the Hub: labelled pictures, and texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo import hub
from zoo.data.arrays import ImageArrays, joined
from zoo.data.images import open_image, to_mode
from zoo.errors import DamagedError, NotFoundError, ZooError, one_line


@dataclass(frozen=True)
class Layout:
    """What the Parquet files of one image set hold.

    Attributes
    ----------
    title : of the set, for messages.
    picture, label : names of the columns: a structure with the `bytes` of a picture file, and a class number.
    shape : (channels, height, width) of every picture; 1 channel is grey, 3 are RGB.
    labels : the class names, by number.
    """

    title: str
    picture: str
    label: str
    shape: tuple[int, int, int]
    labels: tuple[str, ...]


def shards(folder: Path, split: str) -> list[Path]:
    """The files `split-0000x-of-0000y.parquet` of `folder` in their order; empty if there is none.

    Raises
    ------
    NotFoundError
        One of the y is not there; the message names it.
    DamagedError
        Files of two such sets lie there.
    """
    found: dict[int, dict[int, Path]] = {}
    for path in sorted(folder.glob(f"{split}-*-of-*.parquet")):
        if match := re.fullmatch(rf"{split}-(\d{{5}})-of-(\d{{5}})\.parquet", path.name):
            found.setdefault(int(match[2]), {})[int(match[1])] = path
    if not found:
        return []
    if len(found) > 1:
        raise DamagedError(
            f"{folder} holds {split} files of sets of {' and of '.join(map(str, sorted(found)))}; keep those of one"
        )
    ((total, paths),) = found.items()
    for index in range(total):
        if index not in paths:
            raise NotFoundError(f"{folder} lacks {split}-{index:05}-of-{total:05}.parquet; fetch it, too")
    return [paths[index] for index in range(total)]


def read(paths: Sequence[Path], layout: Layout) -> ImageArrays:
    """Read the files one after another.

    Returns
    -------
    `images` (N, *layout.shape) uint8, `targets` (N,) int64 and `labels`.

    Raises
    ------
    DamagedError
        A file is cut, is no Parquet file or not one of this set, or holds a row that is no picture of this shape
        with a class number.
    """
    return joined((_read_file(path, layout) for path in paths), layout.labels)


def read_hub(
    repository: str, folder: str, split: str, layout: Layout, *, otherwise: str, local_files_only: bool
) -> ImageArrays:
    """Read the one file that `folder` of a repository on the Hub has for `split`; the same arrays as `read`.

    Raises
    ------
    NotFoundError, ZooError
        What `zoo.hub.fetch` says, and `otherwise`, how else the set can be had.
    DamagedError
        What `read` says.
    """
    name = f"{folder}/{split}-00000-of-00001.parquet"
    try:
        path = hub.fetch(repository, name, repo_type="dataset", local_files_only=local_files_only)
    except ZooError as error:
        raise type(error)(f"{layout.title} is not at hand: {error}; or {otherwise}") from None
    return read([path], layout)


def texts(path: Path) -> Iterator[str]:
    """The column `text` of a Parquet file, a row at a time; DamagedError where it is none, or holds anything else."""
    import pyarrow
    import pyarrow.parquet

    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=256, columns=["text"]):
            for text in batch.column(0).to_pylist():
                if not isinstance(text, str):
                    raise DamagedError(f"{path} holds rows that are no text; delete it and fetch it again")
                yield text
    except (pyarrow.ArrowException, KeyError, IndexError, OSError, UnicodeDecodeError) as error:
        raise DamagedError(f"{path} is no Parquet file of texts ({one_line(error)[:200]}); fetch it again") from None


def _read_file(path: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """uint8 (N, C, H, W) and int64 (N,)."""
    import pyarrow
    import pyarrow.parquet

    wrong = f"{path} is not {layout.title}'s Parquet file"
    try:
        # Without the path that stands beside the bytes: nobody needs it.
        table = pyarrow.parquet.ParquetFile(path).read([f"{layout.picture}.bytes", layout.label])
        rows, numbers = table[layout.picture].to_pylist(), table[layout.label].to_pylist()
    except (pyarrow.ArrowException, KeyError, OSError, UnicodeDecodeError) as error:
        raise DamagedError(f"{wrong} ({one_line(error)[:200]}); delete it and fetch it again") from None
    if not rows:
        raise DamagedError(f"{wrong} (it holds no rows); delete it and fetch it again")
    named = _class_names(table.schema.metadata, layout.label)
    if named is not None and named != layout.labels:
        raise DamagedError(f"{wrong} (its {layout.label}s are {', '.join(named)[:100]}); delete it and fetch it again")
    images = np.empty((len(rows), *layout.shape), np.uint8)
    targets = np.empty(len(rows), np.int64)
    for row, (picture, number) in enumerate(zip(rows, numbers, strict=True)):
        try:
            images[row] = _pixels(picture, layout)
            targets[row] = _target(number, layout)
        except DamagedError as error:
            raise DamagedError(f"{wrong}: row {row}: {error}; delete it and fetch it again") from None
    return images, targets


def _pixels(row: Any, layout: Layout) -> np.ndarray:
    """uint8 `layout.shape`. Opened one by one: in threads it takes twice as long, for Pillow holds the GIL here."""
    channels, height, width = layout.shape
    content = row.get("bytes") if isinstance(row, dict) else None
    if not isinstance(content, bytes):
        raise DamagedError(f"{layout.picture} has no bytes of a picture in it")
    image = open_image(content)
    if image.size != (width, height):
        raise DamagedError(f"the picture has {image.width}x{image.height} pixels, {width}x{height} would be right")
    array = np.asarray(to_mode(image, "L" if channels == 1 else "RGB"))
    return array.reshape(height, width, channels).transpose(2, 0, 1)


def _target(number: Any, layout: Layout) -> int:
    last = len(layout.labels) - 1
    # bool is an int to Python, and no class number.
    if type(number) is not int or not 0 <= number <= last:
        raise DamagedError(f"{layout.label} is {str(number)[:40]}, a number from 0 to {last} would be right")
    return number


def _class_names(metadata: dict[bytes, bytes] | None, column: str) -> tuple[str, ...] | None:
    """The class names that the Hub's own note in the file gives for `column`; None without such a note."""
    try:
        note = json.loads((metadata or {})[b"huggingface"])
        return tuple(map(str, note["info"]["features"][column]["names"]))
    except (KeyError, TypeError, ValueError):  # other writers leave the note out, and it decides nothing
        return None
