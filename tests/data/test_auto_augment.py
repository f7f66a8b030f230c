"""AutoAugment on batches gives what torchvision gives picture by picture."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import pytest
import torch
from torchvision.transforms import AutoAugment, AutoAugmentPolicy

from zoo.data import auto_augment as ours
from zoo.data.batch_operations import adjust_saturation

UNGRADED = ("AutoContrast", "Equalize", "Invert")


def reference(images, sub, applied=(True, True), signs=(1, 1), fill=None):
    """torchvision's result of one sub-policy with given draws."""
    transform = AutoAugment(AutoAugmentPolicy.CIFAR10, fill=fill)
    transform.policies = [[(name, p, None if name in UNGRADED else level) for name, p, level in sub]]
    chance, sign = torch.where(torch.tensor(applied), 0.0, 2.0), torch.tensor(signs).clamp(0)
    transform.get_params = lambda count: (0, chance, sign)
    return torch.stack([transform(image) for image in images])


def alone(images, name, level, sign, fill=None):
    """torchvision's result of one operation."""
    return reference(images, ((name, 1.0, level),) * 2, (True, False), (sign, sign), fill)


def pictures(channels, height, width):
    """Noise, a single value, few values, two values, a ramp that grows too bright, a dark one."""
    images = torch.randint(0, 256, (8, channels, height, width), generator=torch.Generator().manual_seed(5))
    images[1] = 93
    images[2] = images[2] // 5 + 60
    images[3] = images[3] % 2 * 255
    images[4] = torch.arange(height * width).view(height, width).clamp(max=255)
    images[5] = images[5] // 100
    return images.to(torch.uint8)


def apply(images, name, level, sign, **options):
    every = torch.ones(len(images), dtype=torch.int64)
    return ours.apply(images, every * ours.OPERATIONS.index(name), every * level, every * sign, **options)


def test_the_policy_is_torchvisions():
    theirs = AutoAugment(AutoAugmentPolicy.CIFAR10).policies
    assert [tuple((name, chance, level or 0) for name, chance, level in sub) for sub in theirs] == list(ours.CIFAR10)


@pytest.mark.parametrize("size", [(3, 32, 32), (1, 28, 28), (3, 17, 33), (3, 20, 9), (3, 2, 5), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("name", ours.OPERATIONS)
def test_every_operation_at_every_level(name, size):
    images = pictures(*size)
    for level, sign in product(range(10), (1, -1)):
        expected = alone(images, name, level, sign)
        different = apply(images, name, level, sign) != expected
        assert not (different & ~shear_ties(name, level, size)).any(), (level, sign)


def shear_ties(name, level, size):
    """Where the source of a sheared pixel lies half way between two, and rounding alone decides which is the nearest.

    Source: y + s (x + 1/2) with s a multiple of 1/30, so a tie at s = 2/30 and 6/30 alone, and the policy has neither.
    """
    _, height, width = size
    if name not in ("ShearX", "ShearY"):
        return torch.zeros(height, width, dtype=torch.bool)
    twice = (2 * torch.arange(width) + 1)[None] if name == "ShearY" else (2 * torch.arange(height) + 1)[:, None]
    return (level * twice % 60 == 30).expand(height, width)  # s (x + 1/2) = level · twice / 60


def test_the_policy_shears_without_ties():
    used = {level for sub in ours.CIFAR10 for name, _, level in sub if name.startswith("Shear")}
    assert used == {7, 8}
    assert not any(shear_ties("ShearY", level, (3, 224, 224)).any() for level in used)


@pytest.mark.parametrize(("name", "level"), [("TranslateX", 9), ("ShearY", 8), ("Rotate", 7)])
def test_what_comes_from_outside_has_the_fill(name, level):
    images = pictures(3, 32, 32)
    expected = alone(images, name, level, 1, fill=128)
    assert torch.equal(apply(images, name, level, 1, fill=128), expected)
    assert not torch.equal(apply(images, name, level, 1), expected)


def test_pictures_of_one_batch_do_not_mix():
    """Each with an operation, level and sign of its own gives what each gives alone."""
    images = pictures(3, 32, 32).repeat(40, 1, 1, 1)
    generator = torch.Generator().manual_seed(1)
    count = len(images)
    operation = torch.randint(-1, len(ours.OPERATIONS), (count,), generator=generator)
    level = torch.randint(0, 10, (count,), generator=generator)
    sign = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    apart = [ours.apply(*(x[i : i + 1] for x in (images, operation, level, sign))) for i in range(count)]
    assert torch.equal(ours.apply(images, operation, level, sign), torch.cat(apart))
    assert torch.equal(torch.cat(apart)[operation == -1], images[operation == -1])


def test_draws_have_the_policys_probabilities():
    """All that one picture can become, with its probability, by torchvision; and how often ours becomes it."""
    image = torch.randint(0, 256, (1, 3, 12, 12), generator=torch.Generator().manual_seed(2)).to(torch.uint8)
    expected = Counter()
    for sub in ours.CIFAR10:
        for applied, signs in product(product((True, False), repeat=2), product((1, -1), repeat=2)):
            chance = math.prod(p if yes else 1 - p for (_, p, _), yes in zip(sub, applied, strict=True))
            if chance:
                outcome = reference(image, sub, applied, signs)
                expected[outcome.numpy().tobytes()] += chance / 4 / len(ours.CIFAR10)
    assert sum(expected.values()) == pytest.approx(1)
    count = 30_000
    results = ours.auto_augment(image.expand(count, -1, -1, -1), torch.Generator().manual_seed(0))
    found = Counter(result.numpy().tobytes() for result in results)
    assert found.keys() <= expected.keys()
    for outcome, chance in expected.items():
        assert abs(found[outcome] - count * chance) < 5 * math.sqrt(count * chance) + 1


def test_grey_pictures_have_no_colour_to_change():
    images = pictures(1, 8, 8)
    assert torch.equal(adjust_saturation(images, torch.full((8,), 0.1, dtype=torch.float64)), images)


def test_two_channels_are_neither_grey_nor_rgb():
    with pytest.raises(AssertionError, match="grey or RGB"):
        ours.auto_augment(torch.zeros(1, 2, 4, 4, dtype=torch.uint8))
