"""Any folder of class folders as a data set, prepared as the model at hand takes its pictures.

    DIR/CLASS/**.png                          one set, of which a tenth of each class is held out as its test split
    DIR/train/CLASS/**.png                    the same
    DIR/train/CLASS/**, DIR/test/CLASS/**     two sets; the second may be called test, val, valid or validation, and
                                              the first of these that is there is taken

Classes are the folders' names, sorted. Pictures lie in the class folder or below it; hidden files and folders, and
files whose ending is none of a picture (`zoo.data.images.picture_suffixes`), are left out, as is what lies beside the
class folders. "train" is a class like any other where pictures lie directly in it.

What is held out, and the order of the pictures, follow from their names alone (the SHA-256 of CLASS/FILE): it is the
same on every machine, a picture that is added moves few others, and the first pictures are of mixed classes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from zoo.data.arrays import ImageArrays
from zoo.data.images import open_image, picture_suffixes
from zoo.errors import DamagedError, NotFoundError, UsageError, one_line

Pixels = Callable[[Image.Image], Tensor]

_TRAIN = ("train", "training")
_TEST = ("test", "testing", "val", "valid", "validation")

# The files of each class.
_Classes = dict[str, list[Path]]


def read_image_folder(root: Path, split: str, pixels: Pixels) -> ImageArrays:
    """Read `split` ("train" or "test") of the pictures under `root`, whole into memory.

    Parameters
    ----------
    root : the folder DIR of the layouts above. Links are followed; none may lead to a folder that is read already.
    split : "train" or "test".
    pixels : a picture -> uint8 (channels, height, width), the same for each: `Preprocessing.pixels` of the model.

    Returns
    -------
    `images` (N, channels, height, width) uint8, `targets` (N,) int64 and the class names.

    Raises
    ------
    NotFoundError
        There is no such folder or split, or no class folders are in it.
    DamagedError
        A picture cannot be read, a class has none (or only one, where a test split is to be held out), there is only
        one class, the splits have different classes, or the layout can be read in two ways; the message names it.
    UsageError
        The pictures do not fit in memory.
    """
    root = Path(root)
    try:
        train, test = _splits(root)
    except OSError as error:
        raise DamagedError(f"{error.filename or root} cannot be read ({error.strerror}); see its permissions") from None
    chosen = {"train": train, "test": test}[split]
    if not chosen:
        raise NotFoundError(f"{root} has a test split and no folder train; give it one, or ask for test")
    labels = tuple(chosen)
    rows = [(path, target) for target, paths in enumerate(chosen.values()) for path in paths]
    rows.sort(key=lambda row: _rank(root, row[0]))
    first = _read(rows[0][0], pixels)
    try:
        images = torch.empty((len(rows), *first.shape), dtype=torch.uint8)
    except (RuntimeError, MemoryError):
        size = len(rows) * first.numel() / 2**30
        raise UsageError(f"the {len(rows)} pictures in {root} would take {size:.0f} GiB of memory; use fewer") from None
    for index, (path, _) in enumerate(rows):
        picture = _read(path, pixels) if index else first
        assert picture.shape == first.shape and picture.dtype == torch.uint8, "`pixels` makes pictures of one kind"
        images[index] = picture
    return ImageArrays(images, torch.tensor([target for _, target in rows], dtype=torch.int64), labels)


def _read(path: Path, pixels: Pixels) -> Tensor:
    try:
        return pixels(open_image(path))
    except (DamagedError, NotFoundError) as error:  # not there: removed since the folder was listed
        message = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise DamagedError(f"{one_line(message)}; mend or remove that file") from None


def _splits(root: Path) -> tuple[_Classes, _Classes]:
    """The classes of the train and of the test split; the first is empty where there are test pictures alone."""
    if not root.is_dir():
        raise NotFoundError(f"there is no folder {root}; 'imagefolder:DIR' names a folder of class folders")
    seen: dict[tuple[int, int], Path] = {}
    train, test = _split_folder(root, _TRAIN), _split_folder(root, _TEST)
    if train is None and test is not None:
        return {}, _classes(test, seen)
    whole = _classes(train or root, seen)
    if test is None:
        return _hold_out(whole, train or root)
    other = _classes(test, seen)
    for label in sorted(whole.keys() ^ other.keys()):
        has, lacks = (train, test) if label in whole else (test, train)
        raise DamagedError(f"the class {label!r} is in {has} and not in {lacks}; both need the same class folders")
    return whole, other


def _split_folder(root: Path, names: Iterable[str]) -> Path | None:
    """The folder of class folders in `root` called by the first of `names`, in small letters or capitals, or None.

    A folder of that name with pictures directly in it is a class of that name.
    """
    for name in names:
        found = [folder for folder in _folders(root) if folder.name.lower() == name and _folders(folder)]
        if len(found) > 1:
            raise DamagedError(f"{root} holds both {found[0].name} and {found[1].name}; keep one")
        for folder in found:
            if any(_is_picture(path) for path in _entries(folder)):
                raise DamagedError(
                    f"{folder} holds pictures as well as folders, so it may be a class or a split; move the ones or"
                    " the others elsewhere"
                )
            return folder
    return None


def _classes(folder: Path, seen: dict[tuple[int, int], Path]) -> _Classes:
    """The class folders in `folder`, sorted by name, with their pictures; `seen` are the folders already read."""
    classes = {path.name: _pictures(path, seen) for path in _folders(folder)}
    if not classes:
        raise NotFoundError(f"{folder} holds no class folders; its pictures belong in folders named by their classes")
    for name, paths in classes.items():
        if not paths:
            raise DamagedError(f"the class folder {folder / name} holds no picture; fill it or remove it")
        if not name.isprintable():  # bytes that are no UTF-8 show here, too
            raise DamagedError(f"the class folder {name!r} in {folder} has a name that cannot be printed; rename it")
    if len(classes) == 1:
        raise DamagedError(
            f"{folder} holds one class folder, {next(iter(classes))!r}, and a classifier needs two; name the folder"
            " whose folders are the classes"
        )
    return classes


def _pictures(folder: Path, seen: dict[tuple[int, int], Path]) -> list[Path]:
    """The pictures in a class folder and below it."""
    status = folder.stat()
    twin = seen.setdefault((status.st_dev, status.st_ino), folder)
    if twin is not folder:
        raise DamagedError(f"{folder} and {twin} are the same folder, by a link; its pictures may count once only")
    found = [path for path in _entries(folder) if _is_picture(path)]
    for path in found:
        if not path.is_file() and not path.is_symlink():  # a pipe would be waited for
            raise DamagedError(f"{path} is no file; remove it")
    return found + [path for below in _folders(folder) for path in _pictures(below, seen)]


def _hold_out(classes: _Classes, folder: Path) -> tuple[_Classes, _Classes]:
    """A tenth of each class, rounded down, but at least one picture, as its test split; the others to train on."""
    train, test = {}, {}
    for name, paths in classes.items():
        if len(paths) < 2:
            raise DamagedError(
                f"the class folder {folder / name} holds one picture; where there is no folder test, one of each class"
                " is held out, so it needs two"
            )
        ranked = sorted(paths, key=lambda path: _rank(folder, path))
        count = max(1, len(paths) // 10)
        test[name], train[name] = ranked[:count], ranked[count:]
    return train, test


def _rank(folder: Path, path: Path) -> bytes:
    return hashlib.sha256(os.fsencode(path.relative_to(folder).as_posix())).digest()


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in picture_suffixes() and not path.is_dir()


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted by name. A link that leads nowhere is refused: it may stand for one."""
    found = []
    for path in _entries(folder):
        if path.is_dir():
            found.append(path)
        elif path.is_symlink() and not path.exists():
            raise DamagedError(f"{path} is a link that leads nowhere; mend or remove it")
    return found


def _entries(folder: Path) -> list[Path]:
    """All in a folder that is not hidden, sorted by name."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
