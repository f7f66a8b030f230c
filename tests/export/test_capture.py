"""What is switched for a measurement is as it was afterwards, also after an error."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from zoo.errors import UsageError
from zoo.export.capture import evaluating, without_tf32
from zoo.export.samples import noise
from zoo.export.validate import validate_onnx


@pytest.mark.parametrize("fails", [False, True])
def test_each_module_gets_its_own_mode_back(tiny: nn.Module, fails: bool) -> None:
    tiny.train()
    tiny.blocks[0].eval()  # a frozen batch norm in a model that trains
    before = {name: module.training for name, module in tiny.named_modules()}
    assert set(before.values()) == {True, False}
    try:
        with evaluating(tiny), torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu")):
            assert not any(module.training for module in tiny.modules())
            assert not torch.is_grad_enabled()
            if fails:
                raise KeyError("mine")
    except KeyError:
        assert fails
    assert {name: module.training for name, module in tiny.named_modules()} == before
    assert torch.is_grad_enabled()


def test_autocast_is_off_inside(tiny: nn.Module) -> None:
    with torch.autocast("cpu", torch.bfloat16), evaluating(tiny):
        assert tiny(torch.zeros(2, 1, 8, 8)).dtype == torch.float32


@pytest.mark.parametrize("before", [True, False])
def test_tf32_is_off_and_comes_back(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", before)
    matmul = torch.backends.cuda.matmul.allow_tf32
    with pytest.raises(KeyError), without_tf32():
        assert not torch.backends.cudnn.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32 == matmul
        raise KeyError
    assert torch.backends.cudnn.allow_tf32 == before
    assert torch.backends.cuda.matmul.allow_tf32 == matmul


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
