from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from zoo.errors import UsageError, ValidationError
from zoo.export import validate_onnx
from zoo.export.validate import agreement


def test_agreement() -> None:
    expected = np.array([[1.0, 2.0], [8.0, -10.0]], dtype=np.float32)
    assert agreement(expected, expected) == (0.0, 2)
    difference, same = agreement(expected, expected + np.float32(9e-4))  # allowed: 1e-5 + 1e-4 * 10
    assert difference == pytest.approx(9e-4, rel=1e-2)
    assert same == 2
    with pytest.raises(ValidationError, match=r"differ by 0\.0012 here; allowed are 0\.001"):
        agreement(expected, expected + np.float32(1.2e-3), where=" here")


@pytest.mark.parametrize(
    ("got", "said"),
    [
        (np.zeros((2, 3), np.float32), "shape|gives float32"),
        (np.zeros((2, 2), np.float64), "gives float64"),
        (np.array([[0, np.nan], [0, 0]], np.float32), "ONNX Runtime gives no finite numbers for 1 of 2 images"),
        (np.array([[0, np.inf], [-np.inf, 0]], np.float32), "no finite numbers for 2 of 2"),
    ],
)
def test_disagreement(got: np.ndarray, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        agreement(np.zeros((2, 2), np.float32), got)


def test_nan_on_both_sides_is_no_agreement() -> None:
    nothing = np.full((3, 2), np.nan, np.float32)
    with pytest.raises(ValidationError, match="torch itself gives no finite numbers for 3 of 3"):
        agreement(nothing, nothing)


def rename(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        node.input[:] = ["pixels" if name == "images" else name for name in node.input]
    proto.graph.input[0].name = "pixels"


def fix_batch(proto: onnx.ModelProto) -> None:
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = 2


def drop_node(proto: onnx.ModelProto) -> None:
    del proto.graph.node[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (rename, r"input should be \('images'"),
        (fix_batch, "fixed batch of 2"),
        (drop_node, "breaks a rule of ONNX"),
    ],
)
def test_what_is_wrong_with_a_file(
    change: Callable[[onnx.ModelProto], None], said: str, tiny: nn.Module, digits: Tensor, path: Path
) -> None:
    proto = onnx.load(path)
    change(proto)
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ValidationError, match=said):
        validate_onnx(tiny, path, digits)


def test_another_models_file(tiny: nn.Module, digits: Tensor, path: Path) -> None:
    with torch.no_grad():
        tiny.stem.weight.mul_(1.01)
    with pytest.raises(ValidationError, match="differ by"):
        validate_onnx(tiny, path, digits)


def test_nothing_to_compare(tiny: nn.Module, digits: Tensor, tmp_path: Path) -> None:
    for samples, batches in ((digits[:0], (1,)), (digits, ())):
        with pytest.raises(UsageError, match="at least one"):
            validate_onnx(tiny, tmp_path / "model.onnx", samples, batches=batches)
