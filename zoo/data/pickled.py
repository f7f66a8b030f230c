"""Mappings of lists and arrays in pickle files, read without running anything that the file asks for.

A pickle is a program: it names functions and calls them. Here every name it may use stands for an inert object that
records the call, and what was recorded is made an array afterwards, by code of ours alone.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from zoo.errors import DamagedError, one_line

# What numpy's arrays of numbers name, in the files of Python 2, of numpy 1 and of numpy 2.
_ALLOWED = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): "reconstruct" for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): "frombuffer" for core in ("core", "_core")},
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
}


class _Call:
    """An object that a file builds: `name(*arguments)`, then `state` given to it."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Named:
    """What stands for a function or class that a file names. A new one each time, so that no file changes another's."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: Any) -> _Call | bytes:
        match self.name, arguments:
            # How Python 3 writes bytes, of keys too, in a pickle of protocol 2.
            case "encode", (str(text), "latin1" | "latin-1"):
                return text.encode("latin-1")
        return _Call(self.name, arguments)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise DamagedError(f"it asks to run {f'{module}.{name}'[:80]!r}, which no array needs")
        return _Named(_ALLOWED[module, name])


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a pickle file, its keys as text, its top-level numpy arrays whole; the rest as the file has it.

    Text of a Python 2 file stays bytes.

    Raises
    ------
    DamagedError
        The file is cut, is no pickle of a mapping, or names anything but numpy's arrays; nothing of it was run.
    """
    try:
        with open(path, "rb") as file:
            content = _Unpickler(file, encoding="bytes").load()
        if not isinstance(content, dict):
            raise DamagedError("it holds no mapping")
        return {_text(key): _array(value) if isinstance(value, _Call) else value for key, value in content.items()}
    except Exception as error:  # a broken program can fail in any way there is
        reason = one_line(error)[:200] or type(error).__name__
        raise DamagedError(f"{path} cannot be read ({reason}); fetch it again") from None


def names(path: Path, key: str) -> tuple[str, ...]:
    """The list of names under `key` in the mapping in a pickle file; DamagedError if there is none."""
    listed = read_mapping(path).get(key)
    if not isinstance(listed, list) or not all(isinstance(name, str | bytes) for name in listed):
        raise DamagedError(f"{path} holds no list {key}; fetch it again")
    return tuple(map(_text, listed))


def _text(word: Any) -> str:
    if not isinstance(word, str | bytes):
        raise DamagedError("it holds something else where a name belongs")
    return word.decode("utf-8", "backslashreplace") if isinstance(word, bytes) else word


def _array(call: Any) -> np.ndarray:
    """The array that the recorded calls would have made, of whole numbers only, writable."""
    match call:
        case _Call(name="reconstruct", state=(int(), tuple(shape), dtype, bool(fortran), content)):
            order = "F" if fortran else "C"
        case _Call(name="frombuffer", arguments=(content, dtype, tuple(shape), "C" | "F" | b"C" | b"F" as order)):
            order = _text(order)
        case _:
            raise DamagedError("it holds an object that is no array")
    if not isinstance(content, bytes | bytearray):
        raise DamagedError("it holds an array without its bytes")
    values = np.frombuffer(content, _dtype(dtype))
    if not all(type(size) is int and size >= 0 for size in shape) or values.size != np.prod(shape, dtype=object):
        raise DamagedError(f"it holds an array of {values.size} values where it promises {shape}")
    return values.reshape(shape, order="F" if order == "F" else "C").copy()


def _dtype(call: Any) -> np.dtype:
    match call:
        case _Call(name="dtype", arguments=(str() | bytes() as code, *_), state=state):
            code = _text(code)
            order = _text(state[1]) if isinstance(state, tuple) and len(state) > 1 else "|"
            if code in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8") and order in ("<", ">", "|", "="):
                return np.dtype(order.replace("|", "=") + code)
    raise DamagedError("it holds an array of something else than whole numbers")
