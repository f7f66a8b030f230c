"""A recipe's augmentations of one batch: what comes out, in which order, from which draws."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo.data import open_dataset
from zoo.data.augment import random_crop, random_flip
from zoo.data.auto_augment import auto_augment
from zoo.data.erasing import random_erasing
from zoo.data.mixing import mix
from zoo.data.preprocessing import Preprocessing
from zoo.training import recipes
from zoo.training.augmentation import augmented


@pytest.fixture(scope="module")
def batch(small_cifar):
    """Preprocessing, 128 pictures, their targets."""
    data = open_dataset("cifar10", "train", small_cifar).first(128)
    return Preprocessing.of(zoo.load("test-ns-vit", pretrained=False)), data.images, data.targets


def test_a_batch_of_the_papers_recipe(batch):
    preprocessing, images, targets = batch

    def draw(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return augmented(images, targets, 10, recipes.recipe("ns-cifar"), preprocessing, generator)

    (x, y), (again, _), (other, _) = draw(0), draw(0), draw(1)
    assert x.shape == (128, 3, 32, 32) and x.dtype == torch.float32
    assert y.shape == (128, 10)
    torch.testing.assert_close(y.sum(1), torch.ones(128))
    assert torch.equal(x, again)
    assert not torch.equal(x, other)


def test_the_papers_order(batch):
    recipe = recipes.override(recipes.recipe("ns-cifar"), {"erasing": 1.0, "mix_probability": 1.0})
    preprocessing, images, targets = batch
    x, y = augmented(images, targets, 10, recipe, preprocessing, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    crops = random_crop(random_flip(images, generator), 4, generator)
    pictures = preprocessing.normalize(auto_augment(crops, generator))
    holes = random_erasing(pictures, 1.0, generator, fill=preprocessing.mean)
    assert not torch.equal(holes, pictures)
    alphas = {"mixup_alpha": 1.0, "cutmix_alpha": 1.0, "probability": 1.0}
    wanted = mix(holes, targets, 10, **alphas, label_smoothing=0.1, generator=generator)
    assert torch.equal(x, wanted[0])
    assert torch.equal(y, wanted[1])


def test_without_mixing_targets_stay_classes(batch):
    preprocessing, images, targets = batch
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(
        augmented(images, targets, 10, recipes.recipe("cifar-cpu"), preprocessing, generator)[1], targets
    )
