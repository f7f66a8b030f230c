"""Every family of the zoo, by its test-sized entries: a new one is exported on the day it is added."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from zoo import registry
from zoo.export import OnnxModel, OnnxReport, to_onnx
from zoo.export.samples import noise
from zoo.loading import load

NAMES = [name for name in registry.names(hidden=True, task="image-classification") if registry.get(name).hidden]


@pytest.fixture(scope="module", params=NAMES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, OnnxReport]:
    model = load(request.param, pretrained=False)
    path = tmp_path_factory.mktemp("exports") / request.param / "model.onnx"
    return model, to_onnx(model, path)


def test_names_exist() -> None:
    assert "test-osa-vit" in NAMES


@pytest.mark.parametrize("batch", [1, 2, 3, 17])
def test_any_batch(batch: int, exported: tuple[nn.Module, OnnxReport]) -> None:
    model, report = exported
    images = noise(model.pretrained_cfg, batch, seed=5)
    with torch.no_grad():
        expected = model(images).numpy()
    np.testing.assert_allclose(OnnxModel(report.path)(images), expected, atol=1e-5, rtol=1e-4)


def folded(model: nn.Module) -> int:
    """Bytes of the biases that a Swin's tables are unfolded to, one a head and pair, and a shifted window."""
    size = 0
    for block in model.modules():
        attention, mask = getattr(block, "attn", None), getattr(block, "attn_mask", None)
        if hasattr(attention, "relative_position_index"):
            windows = 1 if mask is None else len(mask)
            size += 4 * windows * attention.num_heads * attention.relative_position_index.numel()
    return size


def test_standard_operators_and_no_waste(exported: tuple[nn.Module, OnnxReport]) -> None:
    model, report = exported
    proto = onnx.load(report.path)
    assert {node.domain for node in proto.graph.node} <= {"", "ai.onnx"}
    assert not proto.functions
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    stored = sum(len(tensor.raw_data) for tensor in proto.graph.initializer)
    assert stored <= 1.05 * weights + folded(model) + 10_000  # nothing twice; a few constants beside the weights
    assert report.metadata["model"] == model.pretrained_cfg["zoo_name"]
    assert report.metadata["labels"]


def test_importing_is_light() -> None:
    script = (
        "import sys, zoo.export, zoo.bench\n"
        "heavy = {'torch', 'onnx', 'onnxruntime', 'timm', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert {'to_onnx', 'OnnxReport', 'open_session'} <= set(dir(zoo.export))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
