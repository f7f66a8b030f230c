"""What a check of an export runs on and in: no TF32, noise by the facts, nothing heavy imported for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from zoo.errors import UsageError
from zoo.export.samples import noise
from zoo.export.validate import validate_onnx


def test_the_reference_of_a_validation_runs_without_tf32(tiny: nn.Module, digits: torch.Tensor, path) -> None:
    seen = []
    tiny.head.register_forward_hook(lambda *_: seen.append(torch.backends.cudnn.allow_tf32))
    validate_onnx(tiny, path, digits)
    assert seen == [False] * 4


def test_importing_is_light() -> None:
    program = "import sys, zoo.export.capture; sys.exit(bool({'torch', 'onnx', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    "config",
    [{}, {"mean": (0.5,)}, {"std": (0.5,)}, {"mean": (), "std": ()}, {"mean": (0.5, 0.5), "std": (0.5,)}],
)
def test_noise_invents_no_mean_and_no_deviation(config: dict) -> None:
    with pytest.raises(UsageError, match="mean and std"):
        noise({"input_size": (3, 8, 8), **config})


def test_noise_takes_zero_for_a_mean() -> None:
    pixels = noise({"input_size": (3, 8, 8), "mean": (0.0, 0.0, 0.0), "std": (1.0,)})
    assert pixels.shape == (23, 3, 8, 8)
    assert pixels.min() >= 0
    assert pixels.max() < 1
