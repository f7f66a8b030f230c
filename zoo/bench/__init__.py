"""Latency and throughput of models beside their twins, and the environment in which they were measured."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zoo.bench.environment import environment  # light; imported here, the function wins over the module of its name

if TYPE_CHECKING:
    from zoo.bench.compare import run as run
    from zoo.bench.report import Report as Report

__all__ = ["Report", "environment", "run"]

_HOMES = {"Report": "report", "run": "compare"}


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
