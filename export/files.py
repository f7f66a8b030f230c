"""Where an exported file goes: checks of the path, before any work is done."""

from __future__ import annotations

import os
from pathlib import Path

from zoo.errors import UsageError


def destination(path: str | os.PathLike[str], suffix: str) -> Path:
    """`path` as an absolute path that may be written to; a file there already may be replaced.

    Raises
    ------
    UsageError
        No path, a folder, or a name that does not end in `suffix` (such as ".onnx").
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise UsageError(f"{path!r} is no file name; name a file such as exports/model{suffix}")
    found = Path(text).expanduser()
    if os.path.isdir(found) or text.endswith(("/", os.sep)):  # unlike Path.is_dir, this never raises
        raise UsageError(f"{text} is a folder; name a file in it, such as {found / ('model' + suffix)}")
    if found.suffix.lower() != suffix:
        raise UsageError(f"{text} does not end in {suffix}; write {found.name}{suffix}")
    return found.resolve()
