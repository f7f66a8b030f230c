"""MNIST from its standard IDX files, or from the Hub's data set."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch

from zoo.data import parquet
from zoo.data.arrays import ImageArrays
from zoo.errors import DamagedError, NotFoundError

HUB_REPOSITORY = "ylecun/mnist"
LABELS = tuple("0123456789")
_LAYOUT = parquet.Layout(title="MNIST", picture="image", label="label", shape=(1, 28, 28), labels=LABELS)
_PREFIX = {"train": "train", "test": "t10k"}


def read_folder(root: Path, split: str) -> ImageArrays:
    """Read `split` ("train" or "test") from the IDX files, packed or not, in `root` or its usual subfolders.

    Raises
    ------
    NotFoundError
        The files are not there.
    DamagedError
        They are cut, or no IDX files of 28 x 28 pictures and their labels.
    """
    images_path = _find(root, f"{_PREFIX[split]}-images-idx3-ubyte", f"{_PREFIX[split]}-images.idx3-ubyte")
    labels_path = _find(root, f"{_PREFIX[split]}-labels-idx1-ubyte", f"{_PREFIX[split]}-labels.idx1-ubyte")
    images, targets = _read_idx(images_path, 3), _read_idx(labels_path, 1)
    if images.shape[1:] != (28, 28) or len(images) != len(targets) or (len(targets) and targets.max() > 9):
        raise DamagedError(f"{images_path} and {labels_path} do not hold as many 28 x 28 pictures as labels 0 to 9")
    return ImageArrays(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(targets).long(), LABELS)


def read_hub(split: str, local_files_only: bool = False) -> ImageArrays:
    """Read `split` from the Hub's data set (Parquet with PNG pictures).

    Raises
    ------
    NotFoundError, ZooError
        What `zoo.hub.fetch` says.
    DamagedError
        The file is no Parquet file, or not that of MNIST.
    """
    otherwise = "name a folder of its IDX files with --data-dir or ZOO_DATA"
    return parquet.read_hub(
        HUB_REPOSITORY, "mnist", split, _LAYOUT, otherwise=otherwise, local_files_only=local_files_only
    )


def _find(root: Path, *stems: str) -> Path:
    for folder in (root / "mnist", root / "MNIST" / "raw", root / "raw", root):
        for stem in stems:
            for name in (stem, f"{stem}.gz"):
                if (folder / name).is_file():
                    return folder / name
    raise NotFoundError(
        f"no MNIST in {root}: {stems[0]}[.gz] is neither there nor in its folders mnist or MNIST/raw;"
        " name the right folder with --data-dir or ZOO_DATA, or leave both out to fetch it from the Hub"
    )


def _read_idx(path: Path, axes: int) -> np.ndarray:
    """The array in an IDX file of unsigned bytes with `axes` axes."""
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedError(f"{path} cannot be unpacked ({error}); fetch it again") from None
    if content[:4] != bytes((0, 0, 8, axes)) or len(content) < 4 + 4 * axes:
        raise DamagedError(f"{path} is no IDX file of bytes with {axes} axes; fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", axes, 4))
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if values.size != np.prod(shape, dtype=np.int64):
        raise DamagedError(f"{path} holds {values.size} values where its header promises {shape}; fetch it again")
    return values.reshape(shape).copy()
