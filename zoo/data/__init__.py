"""Data sets of pictures and texts, augmentation, tokenizers, and the one gateway that opens an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zoo.data import cifar, mnist
from zoo.data.arrays import ImageArrays, batch_of_step
from zoo.data.imagefolder import Pixels, read_image_folder
from zoo.data.places import from_folder_or_hub
from zoo.data.streams import STREAMS, documents
from zoo.data.text import TEXT_FILE, TEXTS, open_text
from zoo.data.tokenizers import open_tokenizer
from zoo.errors import NotFoundError, UsageError

__all__ = [
    "DATASETS",
    "IMAGE_FOLDER",
    "STREAMS",
    "TEXTS",
    "TEXT_FILE",
    "Dataset",
    "ImageArrays",
    "batch_of_step",
    "documents",
    "open_dataset",
    "open_text",
    "open_tokenizer",
    "read_image_folder",
]


@dataclass(frozen=True)
class Dataset:
    """How an image set is read: from a folder of its own files, or from its repository on the Hub."""

    repository: str
    test_size: int  # pictures in the whole test set
    from_folder: Callable[[Path, str], ImageArrays]
    from_hub: Callable[[str, bool], ImageArrays]


# By the name that the registry uses.
DATASETS = {
    "mnist": Dataset(mnist.HUB_REPOSITORY, 10_000, mnist.read_folder, mnist.read_hub),
    **{
        one.name: Dataset(one.repository, 10_000, one.read_folder, one.read_hub)
        for one in (cifar.CIFAR10, cifar.CIFAR100)
    },
}

# Before the path of a folder of class folders, in place of a name.
IMAGE_FOLDER = "imagefolder:"


def open_dataset(
    name: str,
    split: str,
    data_dir: str | Path | None = None,
    *,
    local_files_only: bool = False,
    pixels: Pixels | None = None,
) -> ImageArrays:
    """Read a whole image set: from `data_dir`, else from the folder that `ZOO_DATA` names, else from the Hub.

    "imagefolder:DIR" in place of a name reads any folder of class folders, see `zoo.data.imagefolder`; DIR is a path
    as any other, `data_dir` has no part in it.

    Parameters
    ----------
    name : of the data set, such as "mnist", or "imagefolder:DIR".
    split : "train" or "test".
    data_dir : folder of its files, or a folder of such folders.
    local_files_only : take what the Hub's cache holds, fetch nothing.
    pixels : `Preprocessing.pixels` of the model, which an image folder needs, as its pictures have any size. Sets with
        a name hold pictures of one size and are given as they are stored.

    Raises
    ------
    NotFoundError
        No such data set; the folder, or the data set in it, is not there, or the Hub cannot give it: the message says
        both ways.
    DamagedError
        Its files cannot be read, or are not those of the set.
    UsageError
        No such split, or an image folder without `pixels`.
    """
    if split not in ("train", "test"):
        raise UsageError(f"unknown split {split!r}; there are train and test")
    if name.startswith(IMAGE_FOLDER):
        folder = name.removeprefix(IMAGE_FOLDER)
        if not folder:
            raise UsageError(f"{name!r} names no folder; {IMAGE_FOLDER}DIR would be right")
        if pixels is None:
            raise UsageError(f"the pictures in {folder} have any size; pass pixels=Preprocessing.of(model).pixels")
        return read_image_folder(Path(folder).expanduser(), split, pixels)
    if name not in DATASETS:
        raise NotFoundError(f"unknown data set {name!r}; the zoo reads {', '.join(DATASETS)} and {IMAGE_FOLDER}DIR")
    dataset = DATASETS[name]
    return from_folder_or_hub(
        name,
        data_dir,
        lambda root: dataset.from_folder(root, split),
        lambda: dataset.from_hub(split, local_files_only),
    )
