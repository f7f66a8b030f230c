"""Evaluation counts; how the set is cut into batches does not matter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import zoo
from zoo import hub, registry, training
from zoo.data import ImageArrays, open_dataset
from zoo.errors import DamagedError, UsageError

# At least one where the checkout is whole, as it is for CI; see tests/test_registry.py.
TRAINED = [
    name
    for name in registry.names(task="image-classification")
    if hub.at_hand(registry.get(name)) and registry.get(name).dataset
]
TEXT = [name for name in registry.names(task="text-generation") if hub.at_hand(registry.get(name))]


@pytest.mark.parametrize("name", TRAINED)
def test_the_stated_figure_is_reproduced(name, data_of):
    figures = training.evaluate_named(name, data_dir=data_of(registry.get(name).dataset))
    assert figures.top1 == pytest.approx(registry.get(name).ours.value, abs=0.005)


@pytest.mark.timeout(1200)  # 650,000 tokens through the whole model
@pytest.mark.parametrize("name", TEXT)
def test_the_stated_perplexity_is_reproduced(name, data_of):
    figures = training.evaluate_named(name, data_dir=data_of(registry.get(name).dataset))
    assert figures.perplexity == pytest.approx(registry.get(name).ours.value, rel=1e-4)


@pytest.mark.parametrize("name", TRAINED)
def test_batches_do_not_matter(name, data_of):
    model, dataset = zoo.load(name), registry.get(name).dataset
    arrays = open_dataset(dataset, "test", data_of(dataset)).first(500)
    figures = [training.evaluate(model, arrays, batch_size=size) for size in (1, 7, 256)]
    assert len({figure.correct for figure in figures}) == 1
    assert figures[1].loss == pytest.approx(figures[0].loss, rel=1e-5)
    assert figures[2].loss == pytest.approx(figures[0].loss, rel=1e-5)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_figure(name, dtype, data_of):
    dataset = registry.get(name).dataset
    arrays = open_dataset(dataset, "test", data_of(dataset)).first(1000)
    full, half = (training.evaluate(zoo.load(name, dtype=kind), arrays).top1 for kind in (torch.float32, dtype))
    assert half == pytest.approx(full, abs=0.5)


class Constant(nn.Module):
    """Always says the same; remembers in which mode it was asked."""

    pretrained_cfg = {"input_size": (1, 2, 2), "mean": (0.5,), "std": (0.5,), "num_classes": 3}  # noqa: RUF012

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))
        self.modes: set[bool] = set()

    def forward(self, x):
        self.modes.add(self.training)
        return self.logits.expand(len(x), 3)


def arrays(count: int = 10) -> ImageArrays:
    return ImageArrays(torch.zeros(count, 1, 2, 2, dtype=torch.uint8), torch.arange(count) % 3, ("a", "b", "c"))


def test_counting():
    model = Constant([0.0, 2.0, 0.0]).train()
    figures = training.evaluate(model, arrays(), batch_size=4)
    assert (figures.correct, figures.total, figures.top1) == (3, 10, 30.0)
    assert figures.loss == pytest.approx(
        float(nn.functional.cross_entropy(model.logits.detach().expand(10, 3), arrays().targets))
    )
    assert model.modes == {False}
    assert model.training


def test_a_part_that_was_frozen_in_eval_stays_so():
    model = nn.Sequential(Constant([0.0, 2.0, 0.0]), nn.Dropout()).train()
    model.pretrained_cfg = Constant.pretrained_cfg
    model[1].eval()
    training.evaluate(model, arrays())
    assert [module.training for module in model] == [True, False]


def test_nan_is_no_answer():
    with pytest.raises(DamagedError, match="NaN"):
        training.evaluate(Constant([0.0, float("nan"), 0.0]), arrays())


@pytest.mark.parametrize("size", [0, -3])
def test_batch_sizes_that_are_none(size):
    with pytest.raises(UsageError, match="1 or more"):
        training.evaluate(Constant([0.0, 0.0, 1.0]), arrays(), batch_size=size)


def test_no_pictures():
    with pytest.raises(UsageError, match="no pictures"):
        training.evaluate(Constant([0.0, 0.0, 1.0]), arrays(0))
