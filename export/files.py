"""Where an exported file goes: checks of the path, and a private folder beside it until the file is whole."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zoo.errors import UsageError, ZooError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG,
    errno.EINVAL, errno.ENOENT, errno.ELOOP,
}  # fmt: skip


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


@contextlib.contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Yield a path of the same name in a private folder beside `path`; move what is there in place at the
    end.

    The folder is made at once, so an output that cannot be written is known before any work is done. Nothing
    gets its name if the body raises: the private folder goes, folders made for it go, and files there before
    stay. It is a folder, not a file, because a model with external weights is two files that know each
    other's names.

    Raises
    ------
    UsageError
        The place cannot be written to.
    ZooError
        The disk is full, or another failure of the file system.
    """
    missing: list[Path] = []
    done = False
    folder: Path | None = None
    try:
        missing = [parent for parent in path.parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.stem[:32]}-", dir=path.parent))
        yield folder / path.name
        # The model goes last: whoever sees the new model also sees the weights it names.
        for file in sorted(folder.iterdir(), key=lambda file: file.name == path.name):
            with file.open("rb+") as stream:
                os.fsync(stream.fileno())
            file.replace(path.with_name(file.name))
        done = True
    except OSError as error:
        raise _explained(error, path) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if not done:
            for parent in missing:
                with contextlib.suppress(OSError):
                    parent.rmdir()


def _explained(error: OSError, path: Path) -> ZooError:
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno in _FULL:
        return ZooError(f"cannot write {path}: {reason}; make room or choose another place")
    if error.errno in _REFUSED:
        return UsageError(f"cannot write {path}: {reason}; choose a place that can be written to")
    return ZooError(f"cannot write {path}: {reason}")
