"""What the options of the Manifold-Geometric Transformer mean, block by block against the literal equations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

import zoo
from zoo.models.mgt_lm import Connection, MgtBlock
from zoo.ops import naive


@dataclass(frozen=True)
class Meaning:
    """Lambda, epsilon, alpha at the start, the gate's scale, and whether gate and controller read LN(X)."""

    scale: float = 1.0
    shift: float = 0.0
    alpha: float = 1 / 6  # of three layers, twice each
    gate_scale: float = 1.0
    norm: bool = False


OPTIONS: list[tuple[dict[str, Any], Meaning]] = [
    ({}, Meaning()),
    ({"delta_preset": "paper"}, Meaning()),
    ({"delta_preset": "ddl"}, Meaning(shift=1.0)),
    ({"delta_scale": 0.8}, Meaning(scale=0.8)),
    ({"delta_preset": "ddl", "delta_scale": 0.9, "delta_shift": 0.2}, Meaning(scale=0.9, shift=0.2)),
    ({"num_hidden_layers": 5}, Meaning(alpha=1 / 10)),
    ({"alpha_init": 0.0}, Meaning(alpha=0.0)),
    ({"alpha_init": 0.4}, Meaning(alpha=0.4)),
    ({"gate_scale": 2.0}, Meaning(gate_scale=2.0)),
    ({"gate_input": "norm"}, Meaning(norm=True)),
]


def drawn(block: MgtBlock) -> MgtBlock:
    """With all but alpha away from its start, so that every part shows."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in block.named_parameters():
        if not name.endswith("alpha"):
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return block


def literal(connection: Connection, x: Tensor, part: Any, meaning: Meaning) -> Tensor:
    """X + beta (V sigmoid(LN(X W_gate)) - alpha X), V = part(LN(X)), with the connection's weights."""
    entered = layer_norm(x, x.shape[-1:], connection.norm.weight, connection.norm.bias)
    update = connection.update
    w_gate, w_beta = (weight.mT for weight in update.scores.weight.chunk(2))
    return naive.manifold_update(
        x,
        part(entered),
        w_gate,
        w_beta,
        update.bias,
        float(torch.tensor(meaning.alpha)),  # as float32 stores it
        weight=update.norm.weight,
        bias=update.norm.bias,
        gate_scale=meaning.gate_scale,
        scale=meaning.scale,
        shift=meaning.shift,
        source=entered if meaning.norm else None,
    )


@pytest.mark.parametrize(("arguments", "meaning"), OPTIONS, ids=[str(given) for given, _ in OPTIONS])
def test_a_block_is_the_equations_with_what_the_option_says(arguments: dict[str, Any], meaning: Meaning) -> None:
    model = zoo.load("test-mgt-lm", pretrained=False, **arguments).double()
    block = drawn(model.model.layers[1])
    x = torch.randn(2, 9, model.config.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    angles = torch.randn(9, block.self_attn.head_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    rotary = angles.cos(), angles.sin()
    with torch.no_grad():
        x1 = literal(block.attn_connection, x, lambda h: block.self_attn(h, rotary=rotary)[0], meaning)
        true = literal(block.mlp_connection, x1, block.mlp, meaning)
        torch.testing.assert_close(block(x, rotary=rotary), true, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("preset", "shift"), [("paper", 0.0), ("ddl", 1.0)])
def test_the_presets_start_at_the_same_beta_by_another_bias(preset: str, shift: float) -> None:
    model = zoo.load("test-mgt-lm", pretrained=False, delta_preset=preset)
    for layer in model.model.layers:
        for update in (layer.attn_connection.update, layer.mlp_connection.update):
            torch.testing.assert_close(update.bias, torch.full_like(update.bias, math.atanh(0.5 - shift)))
            assert not update.scores.weight[update.dim :].any() and update.scores.weight[: update.dim].any()


def test_alpha_can_be_fixed() -> None:
    for learned in (True, False):
        model = zoo.load("test-mgt-lm", pretrained=False, alpha_learned=learned)
        alphas = [parameter for name, parameter in model.named_parameters() if name.endswith("alpha")]
        assert len(alphas) == 6 and all(alpha.requires_grad is learned for alpha in alphas)
