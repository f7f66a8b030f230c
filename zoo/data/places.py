"""Where the files of a data set with a name are: in a folder of this machine, or on the Hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from zoo.errors import DamagedError, NotFoundError

T = TypeVar("T")


def from_folder_or_hub(
    name: str, data_dir: str | Path | None, from_folder: Callable[[Path], T], from_hub: Callable[[], T]
) -> T:
    """What `from_folder` reads in `data_dir`, else in the folder that `ZOO_DATA` names; `from_hub` where neither is.

    Raises NotFoundError where the folder is not there, DamagedError where the system does not let it be read, and what
    the two raise.
    """
    named = data_dir or os.environ.get("ZOO_DATA")
    if not named:
        return from_hub()
    root = Path(named).expanduser()
    try:
        if root.is_dir():
            return from_folder(root)
    except OSError as error:
        raise DamagedError(f"{error.filename or root} cannot be read ({error.strerror}); see its permissions") from None
    raise NotFoundError(
        f"there is no data folder {root}; name one with --data-dir or ZOO_DATA, or leave both out to fetch"
        f" {name} from the Hub"
    )
