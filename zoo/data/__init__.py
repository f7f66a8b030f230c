"""Data sets, augmentation, and the one gateway that opens an image."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zoo.data import mnist
from zoo.data.arrays import ImageArrays, batch_of_step
from zoo.data.augment import random_shift
from zoo.errors import NotFoundError, UsageError

__all__ = ["DATASETS", "Dataset", "ImageArrays", "batch_of_step", "open_dataset", "random_shift"]


@dataclass(frozen=True)
class Dataset:
    """How an image set is read: from a folder of its own files, or from its repository on the Hub."""

    repository: str
    from_folder: Callable[[Path, str], ImageArrays]
    from_hub: Callable[[str, bool], ImageArrays]


# By the name that the registry uses.
DATASETS = {"mnist": Dataset(mnist.HUB_REPOSITORY, mnist.read_folder, mnist.read_hub)}


def open_dataset(
    name: str, split: str, data_dir: str | Path | None = None, *, local_files_only: bool = False
) -> ImageArrays:
    """Read a whole image set: from `data_dir`, else from the folder that `ZOO_DATA` names, else from the Hub.

    Parameters
    ----------
    name : of the data set, such as "mnist".
    split : "train" or "test".
    data_dir : folder of its files, or a folder of such folders.
    local_files_only : take what the Hub's cache holds, fetch nothing.

    Raises
    ------
    NotFoundError
        The folder, or the data set in it, is not there, or the Hub cannot give it; the message says both ways.
    DamagedError
        Its files cannot be read.
    UsageError
        No such data set or split.
    """
    if name not in DATASETS:
        raise UsageError(f"unknown data set {name!r}; the zoo reads {', '.join(DATASETS)}")
    if split not in ("train", "test"):
        raise UsageError(f"unknown split {split!r}; there are train and test")
    dataset = DATASETS[name]
    named = data_dir or os.environ.get("ZOO_DATA")
    if not named:
        return dataset.from_hub(split, local_files_only)
    root = Path(named).expanduser()
    if not root.is_dir():
        raise NotFoundError(
            f"there is no data folder {root}; name one with --data-dir or ZOO_DATA, or leave both out to fetch"
            f" {name} from the Hub"
        )
    return dataset.from_folder(root, split)
