"""The state of a training that is not finished: one file, written whole, read without running code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from zoo.errors import DamagedError, one_line
from zoo.files import atomic

FILE = "checkpoint.pt"
KEYS = frozenset(
    (
        *("name", "data", "data_facts", "init", "recipe_name", "recipe", "model_args", "processes"),
        *("step", "seconds", "model", "optimizer", "schedule", "scaler"),
    )
)


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the folder's checkpoint by `state` (tensors, numbers, texts, lists and dicts of them)."""
    with atomic(folder / FILE) as temporary:
        torch.save(state, temporary)


def load(folder: Path) -> dict[str, Any]:
    """The state in the folder's checkpoint, its tensors on the CPU."""
    path = folder / FILE
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or not state.keys() >= KEYS:
            raise ValueError("it is another kind of file")
        return state
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        line = one_line(error)[:200]
        raise DamagedError(f"{path} is no checkpoint of a training ({line}); start again with --overwrite") from None


def there(folder: Path) -> bool:
    """Whether the folder has a checkpoint."""
    return (folder / FILE).is_file()


def discard(folder: Path) -> None:
    """Remove the checkpoint of a training that is finished."""
    (folder / FILE).unlink(missing_ok=True)
