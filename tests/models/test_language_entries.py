"""The registry's language models: sizes, twins, and what an update costs."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import zoo.models  # noqa: F401 -- registers with transformers
from zoo import registry

LANGUAGE = registry.names(hidden=True, task="text-generation")


def empty(name: str) -> PreTrainedModel:
    entry = registry.get(name)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(entry.architecture, **entry.arguments))


@pytest.mark.parametrize("name", LANGUAGE)
def test_every_entry_is_built_and_its_twin_has_no_update(name: str) -> None:
    entry, model = registry.get(name), empty(name)
    count = sum(parameter.numel() for parameter in model.parameters())
    updates = sum(p.numel() for n, p in model.named_parameters() if ".update." in n)
    standard = entry.mechanism == "softmax"
    assert (updates == 0) == standard == (entry.twin is None)
    if "-20m-" in name:
        assert 20e6 < count < 21.5e6
        if entry.twin is not None:
            for twin in (entry.twin, f"{entry.twin}-post"):
                assert abs(empty(twin).num_parameters() / count - 1) < 0.02
    elif entry.twin is not None and "-" not in name.removeprefix("mgt-lm-"):
        dim, layers = model.config.hidden_size, model.config.num_hidden_layers
        assert updates == layers * 2 * (2 * dim * dim + 3 * dim + 1)
