"""What is switched for a measurement is as it was afterwards, also after an error."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import zoo
from zoo.modes import evaluating, without_tf32


@pytest.fixture
def tiny() -> nn.Module:
    return zoo.load("test-vit", pretrained=False)


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
        assert tiny(torch.zeros(2, 1, 28, 28)).dtype == torch.float32


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
