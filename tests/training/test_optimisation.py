"""The rate of every step, and which parameters decay."""

from __future__ import annotations

import math

import pytest
import torch

import zoo
from zoo.training import recipes
from zoo.training.optimisation import MIN_LR, optimizer_of, schedule_of

RECIPE = recipes.recipe("ns-cifar")


def rates(recipe: recipes.Recipe, total: int) -> list[float]:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=recipe.lr)
    schedule = schedule_of(optimizer, recipe, total)
    found = []
    for _ in range(total):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return [*found, optimizer.param_groups[0]["lr"]]


def test_warm_up_is_linear_from_the_least_rate_and_the_cosine_ends_there():
    found = rates(RECIPE, 1000)
    assert found[0] == pytest.approx(MIN_LR, rel=1e-6)
    assert found[50] == pytest.approx((MIN_LR + 1e-3) / 2, rel=1e-6)
    assert found[100] == pytest.approx(1e-3, rel=1e-9) == max(found)
    assert found[550] == pytest.approx((MIN_LR + 1e-3) / 2, rel=1e-6)
    assert found[1000] == pytest.approx(MIN_LR, rel=1e-6)
    assert found[:101] == sorted(found[:101])
    assert found[100:] == sorted(found[100:], reverse=True)


def test_the_rate_moves_at_every_step_not_at_every_epoch():
    assert len(set(rates(RECIPE, 200))) > 150


def test_no_warm_up_and_one_step_are_no_division_by_zero():
    for recipe, total in ((recipes.override(RECIPE, {"warmup": 0.0}), 5), (RECIPE, 1)):
        assert all(math.isfinite(rate) and rate > 0 for rate in rates(recipe, total))


def test_one_cycle_is_torchs():
    recipe = recipes.override(RECIPE, {"schedule": "one-cycle", "lr": 2e-3, "warmup": 0.25})
    found = rates(recipe, 101)[:-1]
    assert max(found) == pytest.approx(2e-3, rel=1e-3)
    assert found[0] == pytest.approx(2e-3 / 25)


@pytest.mark.parametrize("name", ["test-ns-vit", "test-ns-swin"])
def test_the_paper_decays_every_parameter(name):
    model = zoo.load(name, pretrained=False)
    groups = optimizer_of(model, RECIPE).param_groups
    assert {group["weight_decay"] for group in groups} == {0.05}
    assert sum(p.numel() for group in groups for p in group["params"]) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["test-ns-vit", "test-ns-swin", "test-osa-vit"])
def test_else_what_the_model_spares_and_every_vector_is_left_alone(name):
    model = zoo.load(name, pretrained=False)
    groups = optimizer_of(model, recipes.recipe("cifar-cpu")).param_groups
    free = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    spared = model.no_weight_decay()
    for key, parameter in model.named_parameters():
        assert (id(parameter) in free) == (parameter.ndim <= 1 or key in spared), key


@pytest.mark.parametrize("total", [1, 2, 4, 5, 6, 10])
def test_one_cycle_takes_any_number_of_steps(total):
    assert all(rate > 0 for rate in rates(recipes.recipe("cifar-cpu"), total)[:-1])
