"""The folder a training writes to: nothing in it is discarded unasked, and a checkpoint is resumed as it was meant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from zoo.errors import NotFoundError, UsageError
from zoo.training import checkpoint, result
from zoo.training.recipes import Recipe


def prepare(folder: Path, *, resume: bool, overwrite: bool) -> dict[str, Any] | None:
    """Make `folder` ready; returns the state to go on from, or None for a new start.

    Raises
    ------
    UsageError
        Something is there that only `overwrite` may discard, or nothing can be written there.
    NotFoundError
        There is no checkpoint to `resume` from.
    DamagedError
        There is one that cannot be read.
    """
    if resume and overwrite:
        raise UsageError("--resume goes on and --overwrite starts anew: give one of them")
    unfinished, finished = (folder / checkpoint.FILE).is_file(), (folder / result.FILE).is_file()
    if resume:
        if unfinished:
            return checkpoint.load(folder)
        if finished:
            raise UsageError(f"the training in {folder} is finished; --overwrite starts it anew")
        raise NotFoundError(f"there is no checkpoint in {folder} to resume from; leave --resume out to start")
    if (unfinished or finished) and not overwrite:
        what = "an unfinished training; --resume goes on with it," if unfinished else "a finished training;"
        raise UsageError(f"{folder} holds {what} --overwrite discards it, --output names another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stale = [*folder.glob(".*.tmp")]  # left by a kill in the middle of a write
        for path in [*stale, *(folder / name for name in (checkpoint.FILE, *result.FILES))]:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to the folder {folder} ({error.strerror}); choose another: --output") from None
    return None


def check_same(
    state: Mapping[str, Any], name: str, recipe: Recipe, model_args: Mapping[str, Any], folder: Path
) -> None:
    """Refuse to resume a checkpoint under another name or with other settings than it was made with."""
    wanted = {"name": name, **msgspec.to_builtins(recipe), **model_args}
    found = {"name": state["name"], **state["recipe"], **state["model_args"]}
    if found != wanted:
        keys = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
        changed = ", ".join(f"{key} {found.get(key)}, not {wanted.get(key)}" for key in keys)
        raise UsageError(
            f"the checkpoint in {folder} belongs to another training ({changed}); resume with its settings,"
            " or start anew with --overwrite"
        )
