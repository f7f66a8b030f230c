"""The state of a training that is not finished: one file, written whole, read without running code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from zoo.errors import DamagedError, one_line
from zoo.files import atomic

FILE = "checkpoint.pt"
_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("name", "recipe_name"), str),
    **dict.fromkeys(("data", "init"), (str, type(None))),
    **dict.fromkeys(("data_facts", "recipe", "model_args", "model", "optimizer", "schedule"), dict),
    **dict.fromkeys(("processes", "step"), int),
    "seconds": (int, float),
    "scaler": (dict, type(None)),
}


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the folder's checkpoint by `state` (tensors, numbers, texts, lists and dicts of them)."""
    with atomic(folder / FILE) as temporary:
        torch.save(state, temporary)


def load(folder: Path) -> dict[str, Any]:
    """The state in the folder's checkpoint, its tensors on the CPU."""
    path = folder / FILE
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or not state.keys() >= _KINDS.keys():
            raise ValueError("it is another kind of file")
        wrong = [key for key, kind in _KINDS.items() if not isinstance(state[key], kind)]
        if wrong:
            raise ValueError(f"its {wrong[0]} is of the type {type(state[wrong[0]]).__name__}")
        return state
    except Exception as error:  # what torch raises for a file of anything has no common kind
        raise no_checkpoint(folder, error) from None


def no_checkpoint(folder: Path, error: Exception) -> DamagedError:
    """That the checkpoint in `folder` cannot be gone on from, and why."""
    reason = one_line(error)[:200] or type(error).__name__
    return DamagedError(f"{folder / FILE} is no checkpoint of a training ({reason}); start again with --overwrite")


def there(folder: Path) -> bool:
    """Whether the folder has a checkpoint."""
    return (folder / FILE).is_file()


def discard(folder: Path) -> None:
    """Remove the checkpoint of a training that is finished."""
    (folder / FILE).unlink(missing_ok=True)
