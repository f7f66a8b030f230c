"""Export of models to files that run without this package, each checked before it gets its name.

Everything here is loaded when it is first used: importing `zoo.export` imports neither torch nor onnx.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.export.onnx import OnnxReport, to_onnx
    from zoo.export.samples import samples_of
    from zoo.export.session import OnnxModel, open_session
    from zoo.export.validate import Validation, validate_onnx

__all__ = ["OnnxModel", "OnnxReport", "Validation", "open_session", "samples_of", "to_onnx", "validate_onnx"]

_HOMES = {
    "OnnxModel": "session",
    "OnnxReport": "onnx",
    "Validation": "validate",
    "open_session": "session",
    "samples_of": "samples",
    "to_onnx": "onnx",
    "validate_onnx": "validate",
}


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
