"""Ranks by depth and the statistics of beta, against what they are made of."""

from __future__ import annotations

import math

import pytest
import torch

import zoo
from zoo.analysis import depth_profile, effective_rank
from zoo.errors import DamagedError, UsageError


def ids(count: int = 3, length: int = 16) -> torch.Tensor:
    return torch.randint(512, (count, length), generator=torch.Generator().manual_seed(0))


def test_the_rank_of_known_matrices() -> None:
    assert effective_rank(torch.eye(7)) == pytest.approx(1.0)
    assert effective_rank(torch.ones(9, 4)) == pytest.approx(0.25)
    singular = torch.tensor([3.0, 2.0, 1.0])  # not squared, unlike the spectra of heads
    p = singular / 6
    expected = math.exp(-float((p * p.log()).sum())) / 3
    q = torch.linalg.qr(torch.randn(5, 3, generator=torch.Generator().manual_seed(0))).Q
    assert effective_rank(q * singular) == pytest.approx(expected, rel=1e-5)
    assert effective_rank(torch.randn(2, 3, 8, 4)).shape == (2, 3)
    assert torch.isnan(effective_rank(torch.zeros(3, 3)))


def test_states_are_those_of_transformers_and_batches_do_not_matter() -> None:
    model = zoo.load("test-mgt-lm", pretrained=False)
    found = depth_profile(model, ids())
    with torch.no_grad():
        states = model.model(ids(), output_hidden_states=True).hidden_states[:-1]  # the last is after the norm
    for rank, state in zip(found.ranks, states, strict=False):
        assert rank == pytest.approx(float(effective_rank(state).mean()))
    assert len(found.ranks) == 4 and found.preservation == pytest.approx(found.ranks[3] / found.ranks[0])
    again = depth_profile(model, ids(), batch_size=2)
    assert again.ranks == pytest.approx(found.ranks) and again.betas[0].variance == pytest.approx(
        found.betas[0].variance, abs=1e-9
    )


def test_the_decay_is_the_slope_of_the_logarithm() -> None:
    model = zoo.load("test-std-lm", pretrained=False)
    found = depth_profile(model, ids())
    line = torch.linalg.lstsq(
        torch.tensor([[1.0, depth] for depth in range(4)], dtype=torch.float64),
        torch.tensor(found.ranks, dtype=torch.float64).log()[:, None],
    ).solution
    assert found.decay == pytest.approx(float(line[1])) and found.betas == ()


def test_beta_at_the_start_and_moved() -> None:
    model = zoo.load("test-mgt-lm", pretrained=False)
    found = depth_profile(model, ids()).betas
    assert len(found) == 6
    for one in found:
        assert one.mean == pytest.approx(0.5) and one.variance == pytest.approx(0.0, abs=1e-9) and one.negative == 0.0
    update = model.model.layers[1].attn_connection.update
    update.bias.data[: update.dim // 2] = -math.atanh(0.5)
    moved = depth_profile(model, ids()).betas
    assert moved[2].negative == 0.5 and moved[2].variance == pytest.approx(0.25)
    assert moved[3].negative == 0.0


def test_what_cannot_be_measured() -> None:
    model = zoo.load("test-mgt-lm", pretrained=False)
    with pytest.raises(UsageError, match="batch size has to be 1 or more, got 0"):
        depth_profile(model, ids(), batch_size=0)
    with pytest.raises(UsageError, match="context 65 is more than the 64 tokens"):
        depth_profile(model, ids(length=65))
    for wrong in (torch.empty(0, 4, dtype=torch.long), torch.tensor([1, 2])):
        with pytest.raises(UsageError, match="shape"):
            depth_profile(model, wrong)
    with pytest.raises(UsageError, match=r"model\.layers"):
        depth_profile(zoo.load("test-osa-vit", pretrained=False), ids())
    model.model.embed_tokens.weight.data.fill_(torch.nan)
    with pytest.raises(DamagedError, match=r"NaN"):
        depth_profile(model, ids())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
