from __future__ import annotations

import importlib
import json
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

import zoo.bench
from zoo.bench import environment
from zoo.bench.environment import cpu_model, onnxruntimes, warnings


def dist(name: str, version: str = "1.31.1") -> SimpleNamespace:
    return SimpleNamespace(metadata={"Name": name}, version=version)


def test_environment_is_json_and_complete() -> None:
    facts = environment()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["packages"]["torch"] == metadata.version("torch")
    assert {"timm", "transformers", "onnx"} <= facts["packages"].keys()
    assert facts["torch"]["cuda"] == torch.version.cuda
    assert facts["torch"]["threads"] == torch.get_num_threads()
    assert "CPUExecutionProvider" in facts["onnxruntime"]["providers"]
    assert facts["onnxruntime"]["version"] in facts["onnxruntime"]["installed"].values()
    assert facts["cpu"]["logical"] >= facts["cpu"]["usable"] >= 1
    assert cpu_model()


def test_the_function_wins_over_the_module_of_its_name() -> None:
    importlib.import_module("zoo.bench.environment")
    importlib.import_module("zoo.bench.compare")
    assert callable(zoo.bench.environment)
    assert callable(zoo.bench.run)


@pytest.mark.parametrize("spelling", ["onnxruntime-gpu", "onnxruntime_gpu", "ONNXRuntime.GPU"])
def test_one_runtime_is_no_clash(spelling: str) -> None:
    """With the GPU build alone, also found twice on the path; and with packages that only sound like a
    runtime."""
    found = onnxruntimes([dist(spelling), dist(spelling), dist("onnx"), dist("onnxruntime-extensions"), dist("numpy")])
    assert found == {"onnxruntime-gpu": "1.31.1"}
    assert warnings(found, "13.0", "13.0") == []
    assert warnings(onnxruntimes([dist("onnxruntime")]), None, None) == []
    assert warnings(onnxruntimes([]), None, None) == []


def test_two_runtimes_clash() -> None:
    found = onnxruntimes([dist("onnxruntime-gpu"), dist("onnxruntime", "1.30.0"), dist("torch")])
    assert found == {"onnxruntime": "1.30.0", "onnxruntime-gpu": "1.31.1"}
    (line,) = warnings(found, None, None)
    assert "onnxruntime and onnxruntime-gpu" in line
    assert "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu" in line


def test_both_runtimes_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    real = list(metadata.distributions())
    monkeypatch.setattr(metadata, "distributions", lambda: [*real, dist("onnxruntime"), dist("onnxruntime-gpu")])
    assert any("overwrite each other" in line for line in environment()["warnings"])


def test_cuda_majors() -> None:
    (line,) = warnings({}, "12.8", "13.0")
    assert "CUDA 12.8" in line
    assert "CUDA 13.0" in line
    assert warnings({}, "13.0", "13.1") == []
    assert warnings({}, None, "13.0") == []


def test_nothing_installed_is_said_with_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("torch", "onnxruntime"):
        monkeypatch.setitem(__import__("sys").modules, package, None)
    facts = environment()
    assert facts["torch"]["cuda"] is None
    assert facts["onnxruntime"]["providers"] == []
