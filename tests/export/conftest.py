"""A model small enough that its export takes a second, and one of everything that goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from zoo.export import to_onnx

CFG = {
    "input_size": (1, 8, 8),
    "mean": (0.25,),
    "std": (0.5,),
    "interpolation": "bilinear",
    "crop_pct": 1.0,
    "crop_mode": "center",
    "architecture": "tiny",
    "zoo_name": "tiny-model",
    "label_names": ("none", "ones", "deux", "drei"),
}


class Tiny(nn.Module):
    """(batch, 1, 8, 8) -> (batch, 4); dropout and batch norm tell training from inference."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 2, stride=2)
        self.blocks = nn.Sequential(nn.BatchNorm2d(4), nn.Sequential(nn.GELU(), inner or nn.Identity()))
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(64, 4)
        self.pretrained_cfg = dict(CFG)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.blocks(self.stem(x)).flatten(1)))


@pytest.fixture
def tiny() -> Tiny:
    torch.manual_seed(0)
    return Tiny().eval()


@pytest.fixture
def tiny_with() -> Callable[[nn.Module], Tiny]:
    """Build the model with a layer of the test's own in it, at 'blocks.1.1'."""

    def build(inner: nn.Module) -> Tiny:
        torch.manual_seed(0)
        return Tiny(inner).eval()

    return build


@pytest.fixture(scope="session")
def tiny_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What the export of the fixture `tiny` is, made once."""
    torch.manual_seed(0)
    return to_onnx(Tiny().eval(), tmp_path_factory.mktemp("tiny") / "model.onnx").path.read_bytes()


@pytest.fixture
def path(tiny_bytes: bytes, tmp_path: Path) -> Path:
    """A good file, to be read or spoilt."""
    (tmp_path / "model.onnx").write_bytes(tiny_bytes)
    return tmp_path / "model.onnx"


@pytest.fixture
def digits() -> Tensor:
    """Normalised images as the model takes them: (23, 1, 8, 8)."""
    return torch.randn(23, 1, 8, 8, generator=torch.Generator().manual_seed(1))
