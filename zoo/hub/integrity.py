"""Is this file what it should be? Looked at before anything is built from it."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

from zoo.errors import DamagedError, NotFoundError
from zoo.files import impostor

_LARGEST_HEADER = 100_000_000  # bytes, the limit of the safetensors format


def sha256_of(path: Path) -> str:
    """Hex digest of the file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_safetensors(path: Path) -> None:
    """Raise a DamagedError that names the cause if `path` cannot be a whole safetensors file.

    Looks at the header and at the size it promises, not at the values: a flipped bit needs the sha256.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(64)
            cause = _no_safetensors(start)
            if cause is None:
                (length,) = struct.unpack("<Q", start[:8])
                if length > min(_LARGEST_HEADER, size):
                    cause = f"its header claims {length} bytes of {size}: cut short, or no safetensors file"
                else:
                    file.seek(8)
                    cause = _fault(file.read(length), size - 8 - length)
    except FileNotFoundError:
        raise NotFoundError(f"{path} does not exist") from None
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
    if cause:
        raise DamagedError(f"{path} holds no weights: {cause}; fetch it again")


def _no_safetensors(start: bytes) -> str | None:
    """What a file with these first bytes really is, if it is no safetensors file."""
    cause = impostor(start)
    if cause is not None:
        return cause
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        return "it is a pickle checkpoint, which could run code; convert it to safetensors"
    if len(start) < 9:
        return f"it has {len(start)} bytes only"
    return None


def _fault(header: bytes, body: int) -> str | None:
    try:
        tensors = json.loads(header)
        ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return "its header is no safetensors header"
    promised = max(ends, default=0)
    if body != promised:
        return f"{body} bytes of tensors where its header promises {promised}"
    return None
