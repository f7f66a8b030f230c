"""Perplexity: every token once, whatever the window, and words as the raw text counts them."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import zoo
from zoo.errors import DamagedError, UsageError
from zoo.training.perplexity import perplexity


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    model = zoo.load("test-mgt-lm", pretrained=False, attention_dropout=0.5)
    for parameter in model.parameters():
        parameter.data.mul_(4.0)
    return model


def ids_of(count: int) -> torch.Tensor:
    return torch.randint(0, 512, (count,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)


def by_hand(model: nn.Module, ids: torch.Tensor, context: int, stride: int) -> float:
    """Sum of the losses: of each target, by a pass over just what its window has before it."""
    total = 0.0
    for target in range(1, len(ids)):
        window = max(0, math.ceil((target - context) / stride))
        seen = ids[window * stride : target].long()
        with torch.no_grad():
            total += float(cross_entropy(model(seen[None]).logits[0, -1], ids[target].long()))
    return total


@pytest.mark.parametrize(
    ("count", "context", "stride"), [(40, 16, 8), (41, 16, 16), (17, 16, 3), (9, 32, 4), (2, 1, 1), (50, 7, 2)]
)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_every_token_is_counted_once_with_what_its_window_shows(model, count, context, stride, batch_size) -> None:
    ids = ids_of(count)
    told: list[int] = []
    found = perplexity(model, ids, 7, context=context, stride=stride, batch_size=batch_size, report=told.append)
    total = by_hand(model, ids, context, stride)
    assert found.tokens == sum(told) == count - 1
    assert found.loss == pytest.approx(total / (count - 1), rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(total / (count - 1)), rel=1e-4)
    assert found.word_perplexity == pytest.approx(math.exp(total / 7), rel=1e-3)
    assert (found.context, found.stride, found.words) == (context, stride, 7)


def test_the_stride_is_half_of_the_context_by_default(model) -> None:
    assert perplexity(model, ids_of(60), 9, context=16) == perplexity(model, ids_of(60), 9, context=16, stride=8)


def test_it_is_measured_in_eval_mode_without_autocast_and_changes_nothing(model) -> None:
    still = perplexity(model, ids_of(60), 9, context=16)
    model.train()
    with torch.autocast("cpu", torch.bfloat16):
        assert perplexity(model, ids_of(60), 9, context=16) == still
    assert model.training
    model.eval()


def test_a_uniform_model_has_the_size_of_its_vocabulary() -> None:
    model = zoo.load("test-mgt-lm", pretrained=False)
    model.lm_head.weight.data.zero_()
    assert perplexity(model, ids_of(100), 9, context=16).perplexity == pytest.approx(512)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"context": 0}, "1 token or more, got 0"),
        ({"context": 8, "stride": 9}, "of 8 tokens cannot be moved by 9"),
        ({"context": 8, "stride": 0}, "of 8 tokens cannot be moved by 0"),
        ({"context": 8, "batch_size": 0}, "batch size has to be 1 or more, got 0"),
    ],
)
def test_a_window_that_cannot_move_is_refused(model, how, message) -> None:
    with pytest.raises(UsageError, match=message):
        perplexity(model, ids_of(20), 9, **how)


def test_a_window_beyond_the_models_context_is_refused(model) -> None:
    with pytest.raises(UsageError, match="more than the 64"):
        perplexity(model, ids_of(100), 9, context=65)


def test_what_is_no_double_any_more_is_left_out(model) -> None:
    found = perplexity(model, ids_of(400), 1, context=16)
    assert found.word_perplexity is None and found.perplexity > 1
    json.dumps(found.to_dict(), allow_nan=False)


def test_no_text_and_no_numbers(model) -> None:
    with pytest.raises(UsageError, match="no word"):
        perplexity(model, ids_of(1), 1, context=8)
    broken = zoo.load("test-mgt-lm", pretrained=False)
    broken.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(DamagedError, match="NaN"):
        perplexity(broken, ids_of(20), 5, context=8)
