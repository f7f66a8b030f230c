"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zoo.errors import UsageError, ZooError


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path in the folder of `path`, renamed to `path` when the block ends well, else removed.

    The folder is made. A reader of `path` sees the old content or the new, never a part, also after kill -9 or a full
    disk. Raises UsageError where nothing can be written, ZooError when writing fails on the way.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another place") from None
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise ZooError(f"writing {path} failed: {error.strerror}; what was there before is untouched") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, document: Any) -> None:
    """Write one JSON document, atomically."""
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
