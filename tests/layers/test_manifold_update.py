"""The residual connection of the Manifold-Geometric Transformer: its start, its halves, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from zoo.errors import UsageError
from zoo.layers import ManifoldUpdate
from zoo.ops import naive


def drawn(module: ManifoldUpdate) -> ManifoldUpdate:
    """With every parameter away from its start."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def literal(module: ManifoldUpdate, x: Tensor, v: Tensor, source: Tensor | None = None) -> Tensor:
    """The equations with the module's parameters: without the gate it is 1, without the update beta is 1, alpha 0."""
    zero = torch.zeros(module.dim, module.dim, dtype=x.dtype)
    w_gate = module.scores.weight[: module.dim].mT if module.gate else zero
    w_beta = module.scores.weight[-module.dim :].mT if module.delta else zero
    gate = {"weight": module.norm.weight, "bias": module.norm.bias} if module.gate else {"bias": torch.tensor(math.inf)}
    how = {"scale": module.delta_scale, "shift": module.delta_shift} if module.delta else {"shift": 1.0}
    bias, alpha = (module.bias, module.alpha) if module.delta else (zero[0], 0.0)
    how |= {**gate, "gate_scale": module.gate_scale, "source": source}
    return naive.manifold_update(x, v, w_gate, w_beta, bias, alpha, **how)


@pytest.mark.parametrize("shape", [(1,), (0, 4), (7, 1), (1, 1, 3), (2, 17, 17), (2, 3, 2, 16)], ids=str)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"delta": False},
        {"gate": False},
        {"gate_scale": 2.0},
        {"delta_shift": 1.0, "delta_scale": 0.9},
        {"delta": False, "gate_scale": 2.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_it_is_the_equations_with_both_products_in_one(
    shape: tuple[int, ...], how: dict[str, Any], elsewhere: bool
) -> None:
    module = drawn(ManifoldUpdate(shape[-1], dtype=torch.float64, **how))
    generator = torch.Generator().manual_seed(1)
    x, v, source, weight = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(4))
    tensors = [x.requires_grad_(), v.requires_grad_(), source.requires_grad_(), *module.parameters()]
    given = (x, v, source) if elsewhere else (x, v)
    found, true = module(*given), literal(module, *given)
    torch.testing.assert_close(found, true, rtol=1e-12, atol=1e-12)
    ours, theirs = (torch.autograd.grad(out, tensors, weight, allow_unused=True) for out in (found, true))
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("scale", "shift", "start"), [(1.0, 0.0, 0.5), (1.0, 1.0, 0.5), (1.0, 1.0, 1.9), (0.3, 0.1, -0.1)]
)
def test_beta_starts_where_it_is_told(scale: float, shift: float, start: float) -> None:
    module = ManifoldUpdate(8, gate=False, delta_scale=scale, delta_shift=shift, delta_init=start, alpha=0.0)
    x, v = torch.randn(5, 8), torch.randn(5, 8)
    torch.testing.assert_close(module(x, v), x + start * v)


def test_the_arms() -> None:
    x, v = torch.randn(5, 8), torch.randn(5, 8)
    full, gate, delta = (ManifoldUpdate(8, **arm) for arm in ({}, {"delta": False}, {"gate": False}))
    count = [sum(p.numel() for p in module.parameters()) for module in (full, gate, delta)]
    assert count == [2 * 64 + 2 * 8 + 8 + 1, 64 + 2 * 8, 64 + 8 + 1]
    gate.scores.weight.data.zero_()
    torch.testing.assert_close(gate(x, v), x + v / 2)
    gate.gate_scale = 2.0
    torch.testing.assert_close(gate(x, v), x + v)
    torch.testing.assert_close(delta(x, v), x + 0.5 * v)
    with pytest.raises(UsageError, match="plain skip"):
        ManifoldUpdate(8, gate=False, delta=False)


@pytest.mark.parametrize("how", [{"delta_init": 1.0}, {"delta_init": -1.0}, {"delta_scale": 0.0}, {"delta_shift": 5.0}])
def test_a_start_that_no_bias_gives_is_refused(how: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="beta cannot start"):
        ManifoldUpdate(8, **how)


def test_every_parameter_has_a_gradient_at_the_start() -> None:
    module = ManifoldUpdate(8, alpha=0.1)
    module(torch.randn(5, 8), torch.randn(5, 8)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in module.parameters())
    assert not ManifoldUpdate(8, alpha_learned=False).alpha.requires_grad


@pytest.mark.parametrize("layers", [12, 48, 100])
def test_the_state_that_survives_all_layers_does_not_depend_on_the_depth(layers: int) -> None:
    kept = torch.ones(1, 4)
    with torch.no_grad():
        for _ in range(2 * layers):
            kept = ManifoldUpdate(4, alpha=1 / (2 * layers))(kept, torch.zeros(1, 4))
    assert math.isclose(kept.mean(), (1 - 0.5 / (2 * layers)) ** (2 * layers), rel_tol=1e-5)
    assert math.isclose(kept.mean(), math.exp(-0.5), abs_tol=0.005)


def test_with_a_fixed_alpha_nothing_survives_a_hundred_layers() -> None:
    kept = torch.ones(1, 4)
    for _ in range(200):
        kept = ManifoldUpdate(4, alpha=0.1)(kept, torch.zeros(1, 4))
    assert math.isclose(kept.mean().item(), 3.5e-5, rel_tol=0.02)


def test_it_reads_another_source_when_it_is_told() -> None:
    module = drawn(ManifoldUpdate(4).double())
    x, v, source = (torch.randn(3, 4, dtype=torch.float64) for _ in range(3))
    assert not torch.allclose(module(x, v), module(x, v, source))
    assert torch.equal(module(x, v), module(x, v, x))
