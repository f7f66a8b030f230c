"""CIFAR-10 and CIFAR-100 from the Hub's Parquet files, here or there, or from the batches of torchvision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.data import parquet, pickled
from zoo.data.arrays import ImageArrays, joined
from zoo.errors import DamagedError, NotFoundError

_SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class Cifar:
    """One of the two sets: where its files are, and what they are called.

    Attributes
    ----------
    name : of the zoo.
    layout : of the Parquet files.
    repository, folder : on the Hub.
    batches : the folder of torchvision's files; `files` those of each split, `meta` that of the class names.
    targets, names : keys, in these files, of the class numbers and names.
    """

    name: str
    layout: parquet.Layout
    repository: str
    folder: str
    batches: str
    files: dict[str, tuple[str, ...]]
    meta: str
    targets: str
    names: str

    def read_folder(self, root: Path, split: str) -> ImageArrays:
        """Read `split` ("train" or "test") from files in the usual subfolders of `root` or in itself; the first wins.

        Returns
        -------
        `images` (N, 3, 32, 32) uint8, `targets` (N,) int64 and the class names.

        Raises
        ------
        NotFoundError
            No files of the set are there, or one of several is missing.
        DamagedError
            A file is cut, or none of this set, or it would run code.
        """
        for base in (root / self.name, root / self.name.upper(), root / self.layout.title, root):
            for folder in (base / self.batches, base / self.folder, base, base / "data"):
                if paths := parquet.shards(folder, split):
                    return parquet.read(paths, self.layout)
                if self._has_batches(folder):
                    return self._read_batches(folder, split)
        title = self.layout.title
        raise NotFoundError(
            f"no {title} in {root}: neither the Hub's {split}-00000-of-00001.parquet in it or its folder {self.name},"
            f" nor torchvision's folder {self.batches}; name the right folder with --data-dir or ZOO_DATA, or leave"
            " both out to fetch it from the Hub"
        )

    def read_hub(self, split: str, local_files_only: bool = False) -> ImageArrays:
        """Read `split` from the set's repository on the Hub; the same arrays as `read_folder`.

        Raises
        ------
        NotFoundError, ZooError
            What `zoo.hub.fetch` says.
        DamagedError
            The file is no Parquet file, or not of this set.
        """
        otherwise = f"name a folder of its Parquet files or of torchvision's {self.batches} with --data-dir or ZOO_DATA"
        return parquet.read_hub(
            self.repository, self.folder, split, self.layout, otherwise=otherwise, local_files_only=local_files_only
        )

    def _has_batches(self, folder: Path) -> bool:
        """Whether files of torchvision's layout lie there. "train" alone, in any folder, may be anything."""
        files = [file for files in self.files.values() for file in files]
        sure = folder.name == self.batches or (folder / self.meta).is_file()
        return sure and any((folder / file).is_file() for file in files)

    def _read_batches(self, folder: Path, split: str) -> ImageArrays:
        for file in (self.meta, *self.files[split]):
            if not (folder / file).is_file():
                raise NotFoundError(f"{folder} lacks {file} of {self.layout.title}; unpack the archive once more")
        if pickled.names(folder / self.meta, self.names) != self.layout.labels:
            raise DamagedError(f"{folder / self.meta} does not name the classes of {self.layout.title}; fetch it again")
        return joined((self._read_batch(folder / file) for file in self.files[split]), self.layout.labels)

    def _read_batch(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        """uint8 (N, 3, 32, 32) and int64 (N,)."""
        content = pickled.read_mapping(path)
        data: Any = content.get("data")
        numbers: Any = content.get(self.targets)
        if isinstance(numbers, np.ndarray):
            numbers = numbers.tolist()
        pixels, last = int(np.prod(_SHAPE)), len(self.layout.labels) - 1
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != pixels:
            raise DamagedError(
                f"{path} holds no data of (N, {pixels}) bytes, as {self.layout.title} does; fetch it again"
            )
        if not isinstance(numbers, list) or len(numbers) != len(data) or not numbers:
            raise DamagedError(
                f"{path} does not hold as many {self.targets} as its {len(data)} pictures; fetch it again"
            )
        if not all(type(number) is int and 0 <= number <= last for number in numbers):
            raise DamagedError(f"{path} holds {self.targets} that are no numbers from 0 to {last}; fetch it again")
        return data.reshape(-1, *_SHAPE), np.array(numbers, np.int64)


CIFAR10 = Cifar(
    name="cifar10",
    layout=parquet.Layout(
        title="CIFAR-10",
        picture="img",
        label="label",
        shape=_SHAPE,
        labels=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    repository="uoft-cs/cifar10",
    folder="plain_text",
    batches="cifar-10-batches-py",
    files={"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    meta="batches.meta",
    targets="labels",
    names="label_names",
)

_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""

CIFAR100 = Cifar(
    name="cifar100",
    layout=parquet.Layout(
        title="CIFAR-100",
        picture="img",
        label="fine_label",
        shape=_SHAPE,
        labels=tuple(_FINE.split()),
    ),
    repository="uoft-cs/cifar100",
    folder="cifar100",
    batches="cifar-100-python",
    files={"train": ("train",), "test": ("test",)},
    meta="meta",
    targets="fine_labels",
    names="fine_label_names",
)
