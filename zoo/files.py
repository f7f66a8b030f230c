"""Files that are whole or not there: written under another name first, and known for what they are when read."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zoo.errors import UsageError, ZooError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG,
    errno.EINVAL, errno.ENOENT, errno.ELOOP,
}  # fmt: skip

_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{16}\.tmp")


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path in the folder of `path`, renamed to `path` when the block ends well, else removed.

    The folder is made. A reader of `path` sees the old content or the new, never a part, also after kill -9 or a full
    disk. The permissions are those of any new file, whatever the writer in the block sets.

    Raises
    ------
    UsageError
        The place cannot be written to.
    ZooError
        The disk is full, or another failure of the file system; what was there before is untouched.
    """
    path = Path(path)
    with _in_folder_of(path):
        temporary = path.with_name(f".{path.name[:32]}.{secrets.token_hex(8)}.tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
        try:
            mode = stat.S_IMODE(os.fstat(handle).st_mode)
            os.close(handle)
            yield temporary
            temporary.chmod(mode)
            _to_disk(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def staged(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path of the same name in a private folder beside `path`; what is there is moved in place at the end.

    For a file that comes with others, such as a model with external weights: two files that know each other's names.
    Nothing gets its name if the block raises: the private folder goes, folders made for it go, and files there before
    stay. Errors as `atomic`, at the start where the place cannot be written to, before any work is done.
    """
    path = Path(path)
    with _in_folder_of(path):
        folder = path.with_name(f".{path.stem[:32]}.{secrets.token_hex(8)}.tmp")
        folder.mkdir(mode=0o700)
        try:
            yield folder / path.name
            # The named file goes last: whoever sees the new one also sees those that it names.
            for file in sorted(folder.iterdir(), key=lambda file: file.name == path.name):
                _to_disk(file)
                file.replace(path.with_name(file.name))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def is_temporary(path: Path) -> bool:
    """Whether `path` has a name as `atomic` and `staged` give it: a kill in the middle of a write has left it."""
    return _TEMPORARY.fullmatch(path.name) is not None


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, document: Any) -> None:
    """Write one JSON document, atomically."""
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def copy(source: Path, path: Path) -> None:
    """Copy the content of one file, atomically. What `source` lacks is an OSError: it is not `path` that is wrong."""
    with source.open("rb") as content, atomic(path) as temporary, temporary.open("wb") as file:
        shutil.copyfileobj(content, file)


def impostor(start: bytes) -> str | None:
    """What a file with these first bytes is, where a download or a checkout left something else than the content."""
    text = start.lstrip().lower()
    if not start:
        return "it is empty"
    if text.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, the content was never fetched (`git lfs pull`)"
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "it is a web page, such as a login or an error page"
    return None


@contextlib.contextmanager
def _in_folder_of(path: Path) -> Iterator[None]:
    """The folder of `path` made; where the block fails, gone again if it was, and failures of the disk in one line."""
    missing: list[Path] = []
    try:
        missing = [parent for parent in path.parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        for parent in missing:
            with contextlib.suppress(OSError):  # not made, or somebody else has put something there
                parent.rmdir()
        failure = _of_the_disk(error)
        if failure is None:
            raise
        raise _explained(failure, path) from error


def _to_disk(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _of_the_disk(error: BaseException) -> OSError | None:
    """`error` as what the operating system said; writers in other languages wrap that in words of their own."""
    if isinstance(error, OSError):
        return error
    if isinstance(error, ZooError) or not isinstance(error, Exception):
        return None
    code = re.search(r"\bos error (\d+)\b", str(error))  # Rust: safetensors
    if code:
        return OSError(int(code[1]), os.strerror(int(code[1])))
    if os.strerror(errno.ENOSPC) in str(error):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if re.search(r"inline_container\.cc|PytorchStreamWriter", str(error)):  # torch.save, which keeps the code to itself
        return OSError("torch could not write all of it, as where the disk is full")
    return None


def _explained(error: OSError, path: Path) -> ZooError:
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno in _FULL:
        return ZooError(f"cannot write {path}: {reason}; make room or choose another place")
    if error.errno in _REFUSED:
        return UsageError(f"cannot write {path}: {reason}; choose a place that can be written to")
    return ZooError(f"cannot write {path}: {reason}")
