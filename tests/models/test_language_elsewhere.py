"""Language models in the hands of other libraries: hooks that bring weights, wrapped modules, early exits, sharding."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

import zoo

ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "mgt": ("test-mgt-lm", {}),
    "mgt-mhc": ("test-mgt-lm", {"delta": False}),
    "mgt-ddl": ("test-mgt-lm", {"gate": False}),
    "std-post": ("test-std-lm", {"norm_order": "post"}),
}
IDS = torch.randint(3, 500, (2, 10), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=ARMS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(0)
    name, arguments = ARMS[request.param]
    return zoo.load(name, pretrained=False, **arguments)


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits


def test_weights_that_are_brought_for_each_call(model: PreTrainedModel, tmp_path: Path) -> None:
    expected = logits(model)
    model.save_pretrained(tmp_path / "saved")
    place = {"execution_device": torch.device("cpu")}
    assert torch.equal(logits(accelerate.cpu_offload(model, **place)), expected)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(accelerate.disk_offload(again, tmp_path / "offload", **place)), expected)


def test_every_module_is_called_and_may_be_wrapped(model: PreTrainedModel) -> None:
    class Wrapped(nn.Module):
        def __init__(self, base: nn.Module) -> None:
            super().__init__()
            self.base = base
            self.calls = 0

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return self.base(*args, **kwargs)

    expected = logits(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear | nn.LayerNorm) and name != "lm_head":
            model.set_submodule(name, Wrapped(module))
    assert torch.equal(logits(model), expected)
    assert all(module.calls == 1 for module in model.modules() if isinstance(module, Wrapped))


def test_no_parameter_is_a_scalar_which_fsdp_could_not_shard(model: PreTrainedModel) -> None:
    assert all(parameter.dim() > 0 for parameter in model.parameters())


def test_an_early_exit_uses_fewer_layers_for_a_while(model: PreTrainedModel) -> None:
    how: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    layers = model.config.num_hidden_layers
    expected = model.generate(IDS[:1], **how)
    assert torch.equal(model.generate(IDS[:1], assistant_early_exit=1, **how), expected)
    assert model.config.num_hidden_layers == layers
    assert torch.equal(model.generate(IDS[:1], **how), expected)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler: install g++")
@pytest.mark.usefixtures("fresh_dynamo")
def test_real_code_of_the_compiler_answers_the_same_and_learns_the_same(model: PreTrainedModel) -> None:
    plain = model(IDS, labels=IDS)
    true = torch.autograd.grad(plain.loss, list(model.parameters()))
    compiled = torch.compile(model, fullgraph=True, backend="inductor")(IDS, labels=IDS)
    torch.testing.assert_close(compiled.logits, plain.logits, rtol=1e-5, atol=1e-5)
    for found, expected in zip(torch.autograd.grad(compiled.loss, list(model.parameters())), true, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("fresh_dynamo")
def test_it_is_compiled_once_for_all_lengths(model: PreTrainedModel) -> None:
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    for length in range(3, 13):
        ids = torch.randint(3, 500, (2, length), generator=torch.Generator().manual_seed(length))
        with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=length > 3):
            torch.testing.assert_close(compiled(ids, use_cache=False).logits, model(ids, use_cache=False).logits)


def test_it_is_exported_for_any_batch_and_length(model: PreTrainedModel) -> None:
    class Logits(nn.Module):
        """Token ids to logits alone."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor) -> Tensor:
            return self.model(ids, use_cache=False).logits

    dims = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("tokens", min=2, max=64)}
    program = torch.export.export(Logits().eval(), (IDS,), dynamic_shapes=(dims,), strict=False).module()
    for shape in ((1, 2), (2, 10), (3, 64)):
        ids = torch.randint(3, 500, shape, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            torch.testing.assert_close(program(ids), model(ids).logits)
