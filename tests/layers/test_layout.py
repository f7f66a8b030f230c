"""Weights that lie column by column: another place in memory, the same model."""

from __future__ import annotations

import copy

import torch
from torch import nn

import zoo
from zoo.layers import store_column_major


def test_a_language_model_stays_what_it_is() -> None:
    torch.manual_seed(0)
    model = zoo.load("test-mgt-lm", pretrained=False)
    ids = torch.randint(500, (2, 9))
    with torch.inference_mode():
        before = model(ids).logits
    untouched = copy.deepcopy(model)
    assert store_column_major(model) > 0
    assert store_column_major(model) == 0, "they lie there already"
    assert model.lm_head.weight is model.model.embed_tokens.weight, "tied weights stay tied"
    assert not model.lm_head.weight.is_contiguous()
    with torch.inference_mode():
        torch.testing.assert_close(model(ids).logits, before, rtol=0, atol=1e-6)
    torch.testing.assert_close(model.state_dict(), untouched.state_dict(), rtol=0, atol=0)
    new = model.generate(ids[:1], max_new_tokens=5, do_sample=False)
    assert torch.equal(new, untouched.generate(ids[:1], max_new_tokens=5, do_sample=False))


def test_layers_with_more_outputs_than_inputs_are_laid_anew_and_learn_as_ever() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12), nn.GELU(), nn.Linear(12, 4), nn.Linear(4, 4, bias=False))
    twin = copy.deepcopy(model)
    assert store_column_major(twin) == 1
    assert [part.weight.is_contiguous() for part in twin if isinstance(part, nn.Linear)] == [False, True, True]
    for one in (model, twin):
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            one(torch.linspace(-1, 1, 8).view(2, 4)).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(twin.state_dict(), model.state_dict(), rtol=1e-6, atol=1e-6)
