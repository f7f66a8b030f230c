"""The folder a training writes to: nothing in it is discarded unasked, and a checkpoint is resumed as it was meant."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from zoo import registry
from zoo.data import IMAGE_FOLDER
from zoo.data.text import TEXT_FILE
from zoo.errors import DamagedError, NotFoundError, UsageError
from zoo.files import is_temporary
from zoo.training import checkpoint, log, recipes, result
from zoo.training.job import Job

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCK = ".lock"


def inspect(folder: Path, *, resume: bool, overwrite: bool) -> dict[str, Any] | None:
    """The state in `folder` to go on from, or None for a new start; changes nothing.

    Raises
    ------
    UsageError
        Something is there that only `overwrite` may discard.
    NotFoundError
        There is no checkpoint to `resume` from.
    DamagedError
        There is one that cannot be read.
    """
    if resume and overwrite:
        raise UsageError("--resume goes on and --overwrite starts anew: give one of them")
    unfinished, finished = checkpoint.there(folder), (folder / result.FILE).is_file()
    if resume:
        if unfinished:
            return checkpoint.load(folder)
        if finished:
            raise UsageError(f"the training in {folder} is finished; --overwrite starts it anew")
        raise NotFoundError(f"there is no checkpoint in {folder} to resume from; leave --resume out to start")
    if (unfinished or finished) and not overwrite:
        what = "an unfinished training; --resume goes on with it," if unfinished else "a finished training;"
        raise UsageError(f"{folder} holds {what} --overwrite discards it, --output names another folder")
    strange = [name for name in result.FILES if (folder / name).exists() and not _begun(folder / name)]
    if strange and not overwrite:
        raise UsageError(
            f"{folder} holds {', '.join(strange)}, which a training would replace; --output names another folder,"
            " --overwrite discards what is there"
        )
    return None


def _begun(path: Path) -> bool:
    """Whether `path` is the log of a training that ended before its first checkpoint, and nothing is lost with it."""
    return path.name == log.FILE and "recipe_name" in next(iter(log.read(path)), {})


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold `folder`, made if need be, against other trainings of this machine; UsageError where one holds it.

    Where the system or the file system has no such locks (Windows, some networks) nothing is held.
    """
    with _writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / _LOCK).open("w")
    with file:
        if not _locked(file, folder / _LOCK):
            raise UsageError(f"another training is writing to {folder}; choose another folder: --output")
        try:
            yield
        finally:
            (folder / _LOCK).unlink(missing_ok=True)


def _locked(file: IO[str], path: Path) -> bool:
    """Lock `file`, which was opened from `path`; False where another process has it, or had it until just now."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Where it is not the one at `path` its owner has removed it, and others lock a new one.
            return os.path.samestat(os.fstat(file.fileno()), path.stat())
        except (BlockingIOError, FileNotFoundError):
            return False
        except OSError:
            pass  # a file system without locks
    return True


def clear(folder: Path, *, keep: bool) -> None:
    """Remove what a kill in the middle of a write left in `folder`; without `keep`, an earlier training too."""
    with _writing_to(folder):
        earlier = [] if keep else [folder / name for name in (checkpoint.FILE, *result.FILES)]
        for path in [*filter(is_temporary, folder.glob(".*.tmp")), *earlier]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write to the folder {folder} ({error.strerror}); choose another: --output") from None


def job_of(
    state: Mapping[str, Any],
    name: str,
    given: Mapping[str, Any],
    asked: Mapping[str, str | None],
    processes: int,
    folder: Path,
    data_dir: str | Path | None,
) -> Job:
    """The training that a checkpoint was made by.

    `given` are the settings named on resuming, `asked` what else was named, None where nothing was: they may repeat
    what the checkpoint says, not contradict it. But a folder of pictures, or a text, may have moved, and `storage` may
    change. DamagedError where this version has no such recipe.
    """
    try:
        recipe = recipes.stored(state["recipe_name"], state["recipe"])
    except (NotFoundError, msgspec.ValidationError) as error:
        raise DamagedError(
            f"the checkpoint in {folder} is none of this version ({error}); resume it with the one that made it, or"
            " start anew with --overwrite"
        ) from None
    if "storage" in given:
        recipe = recipes.override(recipe, {"storage": given["storage"]})
    data = state["data"]
    if data is None and asked["data"] == registry.get(name).dataset:
        asked = {**asked, "data": None}  # the entry's own data set, by its name
    for kind in (IMAGE_FOLDER, TEXT_FILE):
        if all((one or "").startswith(kind) for one in (data, asked["data"])):
            data = asked["data"]
    model_args = dict(state["model_args"])
    fields = {key: value for key, value in given.items() if key in recipe.__struct_fields__}
    wanted = {**model_args, **given}
    wanted |= msgspec.to_builtins(recipes.override(recipe, fields))  # texts as the numbers they mean
    found = {**msgspec.to_builtins(recipe), **model_args, "name": state["name"], "processes": state["processes"]}
    found |= {key: state[key] for key in asked} | {"data": data}
    wanted |= {"name": name, "processes": processes} | {key: value for key, value in asked.items() if value is not None}
    changed = [f"{key} {found.get(key)}, not {wanted[key]}" for key in wanted if wanted[key] != found.get(key)]
    if changed:
        raise UsageError(
            f"the checkpoint in {folder} belongs to another training ({', '.join(changed)}); resume it as it was,"
            " or start anew with --overwrite"
        )
    return Job(name, recipe, state["recipe_name"], model_args, folder, data_dir, data, state["init"])
