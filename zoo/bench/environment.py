"""What `zoo env` prints, and what every benchmark records: versions, processors, devices, and known
clashes."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "timm", "transformers", "safetensors", "huggingface-hub", "onnx", "onnxscript", "numpy")


def environment() -> dict[str, Any]:
    """Versions, CUDA builds, devices, processor and threads of this machine, ready for JSON.

    "warnings" is a list of lines, each with what to do. Never raises for something that is missing: it says
    None.
    """
    runtimes = onnxruntimes()
    facts: dict[str, Any] = {
        "zoo": _version("attention-zoo"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "cpu": {"model": cpu_model(), "logical": os.cpu_count(), "usable": _usable()},
        "torch": _torch(),
        "onnxruntime": {"installed": runtimes, **_onnxruntime()},
    }
    facts["warnings"] = warnings(runtimes, facts["torch"]["cuda"], facts["onnxruntime"]["cuda"])
    return facts


def onnxruntimes(found: Iterable[Any] | None = None) -> dict[str, str]:
    """The installed distributions that bring a package `onnxruntime`, by name.

    found: distributions with `.metadata` and `.version`, as `importlib.metadata.distributions()` gives them.
    """
    result = {}
    for distribution in metadata.distributions() if found is None else found:
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if name == "onnxruntime" or (name.startswith("onnxruntime-") and name not in _PLUGINS):
            result[name] = distribution.version
    return dict(sorted(result.items()))


_PLUGINS = {"onnxruntime-extensions", "onnxruntime-genai", "onnxruntime-tools"}


def warnings(runtimes: Sequence[str] | dict[str, str], torch_cuda: str | None, ort_cuda: str | None) -> list[str]:
    """Lines about installations that are known not to work together."""
    lines = []
    names = list(runtimes)
    if len(names) > 1:
        keep = next((name for name in names if name.endswith("-gpu")), names[0])
        lines.append(
            f"{' and '.join(names)} are all installed and overwrite each other's files; "
            f"run: pip uninstall -y {' '.join(names)} && pip install {keep}"
        )
    if torch_cuda and ort_cuda and torch_cuda.split(".")[0] != ort_cuda.split(".")[0]:
        lines.append(
            f"torch is built for CUDA {torch_cuda} and ONNX Runtime for CUDA {ort_cuda}; "
            "on a GPU only one of them will find its libraries: install builds of one major version"
        )
    return lines


def cpu_model() -> str:
    """The processor's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _usable() -> int | None:
    """Processors that this process may run on; containers often grant fewer than there are."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count()


def _torch() -> dict[str, Any]:
    facts: dict[str, Any] = {"cuda": None, "cudnn": None, "devices": ["cpu"], "threads": None}
    try:
        import torch
    except ImportError:
        return facts
    facts.update(cuda=torch.version.cuda, threads=torch.get_num_threads())
    if torch.cuda.is_available():
        facts["cudnn"] = torch.backends.cudnn.version()
        facts["devices"] += [
            f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())
        ]
    if torch.backends.mps.is_available():
        facts["devices"].append("mps")
    return facts


def _onnxruntime() -> dict[str, Any]:
    """Providers that were built in: whether one works, only a session shows."""
    try:
        import onnxruntime
    except ImportError:
        return {"version": None, "cuda": None, "providers": []}
    return {
        "version": onnxruntime.__version__,
        "cuda": getattr(onnxruntime, "cuda_version", None) or None,
        "providers": onnxruntime.get_available_providers(),
    }
