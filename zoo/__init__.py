"""A zoo of attention mechanisms: verified mathematics, real weights, exports that run, latencies to believe.

The public face is lazy: `import zoo` takes milliseconds, torch and timm are imported when something needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo import analysis as analysis
    from zoo import bench as bench
    from zoo import data as data
    from zoo import errors as errors
    from zoo import export as export
    from zoo import hub as hub
    from zoo import layers as layers
    from zoo import models as models
    from zoo import ops as ops
    from zoo import registry as registry
    from zoo import training as training
    from zoo.data.preprocessing import transform as transform
    from zoo.data.tokenizers import tokenizer_of as tokenizer
    from zoo.errors import ZooError as ZooError
    from zoo.generation import generate as generate
    from zoo.inference import predict as predict
    from zoo.loading import load as load
    from zoo.registry import get as info
    from zoo.registry import names as list_models

    __version__: str

_FACE = {
    "ZooError": ("zoo.errors", "ZooError"),
    "generate": ("zoo.generation", "generate"),
    "info": ("zoo.registry", "get"),
    "list_models": ("zoo.registry", "names"),
    "load": ("zoo.loading", "load"),
    "predict": ("zoo.inference", "predict"),
    "tokenizer": ("zoo.data.tokenizers", "tokenizer_of"),
    "transform": ("zoo.data.preprocessing", "transform"),
}
_MODULES = ("analysis", "bench", "data", "errors", "export", "hub", "layers", "models", "ops", "registry", "training")

__all__ = ["ZooError", "generate", "info", "list_models", "load", "predict", "tokenizer", "transform"]


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> Any:
        if name in _FACE:
            module, attribute = _FACE[name]
            return getattr(importlib.import_module(module), attribute)
        if name in _MODULES:
            return importlib.import_module(f"zoo.{name}")
        if name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            try:
                return version("attention-zoo")
            except PackageNotFoundError:  # a bare checkout on the path
                return "0+unknown"
        raise AttributeError(f"module 'zoo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FACE, *_MODULES, "__version__"})
