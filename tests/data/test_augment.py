"""Flips, crops and erased boxes; and that no augmentation asks the device anything or touches what it is given."""

from __future__ import annotations

import math
import random

import pytest
import torch

from zoo.data.augment import random_crop, random_flip
from zoo.data.auto_augment import auto_augment
from zoo.data.erasing import random_erasing
from zoo.data.mixing import mix


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def mixed(images, generator):
    targets = torch.arange(len(images), device=images.device) % 10
    options = {"mixup_alpha": 1.0, "cutmix_alpha": 1.0, "probability": 1.0, "label_smoothing": 0.1}
    return mix(images.float(), targets, 10, generator=generator, **options)[0]


AUGMENTATIONS = {
    "flip": random_flip,
    "crop": lambda images, generator: random_crop(images, 4, generator),
    "auto_augment": auto_augment,
    "erasing": lambda images, generator: random_erasing(images.float(), 0.9, generator, fill=(0.5,) * images.shape[1]),
    "mix": mixed,
}
every = pytest.mark.parametrize("augment", AUGMENTATIONS.values(), ids=AUGMENTATIONS)


def pictures(count, channels=3, height=32, width=32):
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=seeded(7))


@every
def test_the_generator_decides(augment):
    images = pictures(40)
    before = torch.get_rng_state()
    first, again, other = (augment(images, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@every
@pytest.mark.parametrize("shape", [(0, 3, 32, 32), (1, 3, 32, 32), (5, 1, 28, 28), (7, 3, 9, 31), (3, 1, 1, 1)])
def test_shape_and_dtype_stay(augment, shape):
    images = pictures(*shape)
    result = augment(images, seeded())
    assert result.shape == shape
    assert result.dtype == (torch.float32 if augment in (AUGMENTATIONS["erasing"], mixed) else torch.uint8)
    assert result.isfinite().all()


@every
def test_what_is_given_stays_as_it_is(augment):
    images = pictures(40)
    if augment in (AUGMENTATIONS["erasing"], mixed):
        images = images.float()
    kept = images.clone()
    for seed in range(5):
        augment(images, seeded(seed))
    assert torch.equal(images, kept)


@every
def test_the_device_is_asked_nothing(augment):
    """Tensors on "meta" hold no values, so whatever needs one, and would make a GPU wait, fails."""
    for seed in range(5):
        assert augment(pictures(64).to("meta"), seeded(seed)).shape == (64, 3, 32, 32)


@every
def test_the_layout_in_memory_changes_nothing(augment):
    images = pictures(40)
    other = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(augment(images, seeded()), augment(other, seeded()))


def test_half_of_the_pictures_are_mirrored():
    images = pictures(1, 3, 4, 5).expand(4000, -1, -1, -1)
    flipped = random_flip(images, seeded())
    mirrored = (flipped == images.flip(-1)).flatten(1).all(1)
    assert torch.equal(flipped[~mirrored], images[~mirrored])
    assert abs(mirrored.sum() - 2000) < 4 * math.sqrt(1000)


def test_a_crop_takes_every_place_alike_and_none_from_outside():
    image = torch.arange(1, 26, dtype=torch.int16).view(1, 1, 5, 5)
    padded = torch.nn.functional.pad(image, (2,) * 4)
    cropped = random_crop(image.expand(5000, -1, -1, -1), 2, seeded())
    counts = [
        (cropped == padded[..., top : top + 5, left : left + 5]).flatten(1).all(1).sum().item()
        for top in range(5)
        for left in range(5)
    ]
    assert sum(counts) == 5000
    assert all(abs(count - 200) < 5 * math.sqrt(200) for count in counts)


def boxes(count, height, width, probability=1.0, **options):
    """Top, left, height, width (erased, 4) of the boxes, which have to be boxes, and how many pictures have one."""
    filled = random_erasing(torch.zeros(count, 1, height, width), probability, seeded(), fill=(1.0,), **options)[:, 0]
    filled = filled[filled.flatten(1).any(1)]
    rows, columns = filled.any(2), filled.any(1)
    assert torch.equal(filled, rows[:, :, None].float() * columns[:, None, :].float())
    top, left, heights, widths = rows.int().argmax(1), columns.int().argmax(1), rows.sum(1), columns.sum(1)
    last = height - rows.flip(1).int().argmax(1), width - columns.flip(1).int().argmax(1)
    assert torch.equal(last[0] - top, heights)
    assert torch.equal(last[1] - left, widths)
    return torch.stack((top, left, heights, widths), 1).double()


def literal_box(height, width, area, aspect, generator):
    while True:
        pixels = generator.uniform(*area) * height * width
        ratio = generator.uniform(*aspect)
        box = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if box[0] < height and box[1] < width:
            return generator.randint(0, height - box[0]), generator.randint(0, width - box[1]), *box


@pytest.mark.parametrize("size", [(32, 32), (20, 40)])
def test_boxes_are_those_of_the_definition(size):
    """Mean and spread of place and sides, against one picture at a time; the tolerance is five standard errors."""
    generator, area, aspect = random.Random(0), (0.02, 0.4), (0.3, 1 / 0.3)
    literal = torch.tensor([literal_box(*size, area, aspect, generator) for _ in range(6000)]).double()
    drawn = boxes(6000, *size)
    assert len(drawn) == 6000
    for moment in (lambda x: x, lambda x: (x - literal.mean(0)) ** 2):
        error = (moment(literal).var(0) + moment(drawn).var(0)).div(6000).sqrt()
        assert ((moment(drawn).mean(0) - moment(literal).mean(0)).abs() < 5 * error).all()


def test_area_and_aspect_are_what_is_asked():
    _, _, height, width = boxes(500, 100, 100, area=(0.1, 0.1), aspect=(2.0, 2.0)).unbind(1)
    assert (height == 45).all()
    assert (width == 22).all()


def test_erasing_has_its_probability_and_its_colour():
    assert abs(len(boxes(4000, 8, 8, 0.25)) - 1000) < 5 * math.sqrt(750)
    assert len(boxes(100, 8, 8, 0.0)) == 0
    images = torch.zeros(50, 3, 16, 16, dtype=torch.float64)
    erased = random_erasing(images, 1.0, seeded(), fill=(0.1, 0.2, 0.3))
    assert erased.dtype == torch.float64
    assert (erased.amax((2, 3)) == torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)).all()


def test_a_picture_that_no_box_fits_stays():
    assert len(boxes(20, 1, 50)) == 0


def test_pixels_and_normalised_pictures_are_not_mistaken():
    """The order is fixed: pixels are flipped, cropped and auto-augmented, then normalised, erased and mixed."""
    with pytest.raises(AssertionError, match="normalised"):
        auto_augment(pictures(2).float(), seeded())
    with pytest.raises(AssertionError, match="normalised"):
        random_erasing(pictures(2), 1.0, seeded(), fill=(0.0,) * 3)
    options = {"mixup_alpha": 1.0, "cutmix_alpha": 1.0, "probability": 1.0, "label_smoothing": 0.1}
    with pytest.raises(AssertionError, match="normalised"):
        mix(pictures(2), torch.zeros(2, dtype=torch.int64), 10, generator=seeded(), **options)
