"""One preprocessing: timm's own bit for bit, and a frame as MNIST's around any picture of a digit."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform

from zoo.data.images import open_image
from zoo.data.preprocessing import Preprocessing, transform
from zoo.errors import UsageError

DIGITS = Path(__file__).resolve().parents[1] / "assets" / "digits"
MNIST = Preprocessing((1, 28, 28), (0.1307,), (0.3081,), framing="digit")
FACTS = {"input_size": (3, 32, 32), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}


def picture(width: int, height: int, mode: str) -> Image.Image:
    noise = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(noise).convert(mode)


# --- timm's transform -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (100, 60), (28, 28), (9, 40), (224, 224)])
@pytest.mark.parametrize(
    ("channels", "shape", "interpolation", "crop_pct", "crop_mode"),
    [
        (3, (32, 32), "bilinear", 1.0, "center"),
        (3, (32, 32), "bicubic", 0.875, "center"),
        (3, (48, 32), "bicubic", 0.9, "center"),
        (3, (32, 32), "bilinear", 0.95, "squash"),
        (3, (32, 40), "bicubic", 1.0, "border"),
        (1, (28, 28), "bilinear", 1.0, "center"),
        (1, (28, 28), "nearest", 0.8, "border"),
    ],
)
def test_pixels_and_numbers_are_timms(size, channels, shape, interpolation, crop_pct, crop_mode):
    mean, std = FACTS["mean"][:channels], FACTS["std"][:channels]
    ours = Preprocessing((channels, *shape), mean, std, interpolation, crop_pct, crop_mode)
    same = {"interpolation": interpolation, "crop_pct": crop_pct, "crop_mode": crop_mode, "mean": mean, "std": std}
    image = picture(*size, "RGB" if channels == 3 else "L")
    pixels = ours.pixels(image)
    assert pixels.dtype == torch.uint8
    assert torch.equal(pixels, create_transform((channels, *shape), normalize=False, **same)(image))
    theirs = create_transform((channels, *shape), **same)(image)
    assert torch.allclose(ours(image), theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_model_decides_how_many_channels(mode, channels):
    image = picture(40, 30, "RGB").convert(mode)
    pixels = Preprocessing((channels, 32, 32), (0.5,) * channels, (0.5,) * channels).pixels(image)
    assert pixels.shape == (channels, 32, 32)


def test_normalize_is_the_equation_in_any_batch_shape():
    ours = Preprocessing.from_config(FACTS)
    pixels = torch.randint(0, 256, (2, 5, 3, 32, 32), dtype=torch.uint8)
    mean, std = (torch.tensor(FACTS[key], dtype=torch.float64).view(3, 1, 1) for key in ("mean", "std"))
    found = ours.normalize(pixels)
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), (pixels.double() / 255 - mean) / std, atol=1e-6)
    assert torch.equal(found[1, 3], ours.normalize(pixels[1, 3]))


def test_only_pixels_are_normalized():
    with pytest.raises(UsageError, match="uint8"):
        MNIST.normalize(torch.rand(1, 28, 28))


# --- facts ------------------------------------------------------------------------------------------------------------


def test_of_a_model():
    model = torch.nn.Identity()
    model.pretrained_cfg = {**FACTS, "interpolation": "bicubic", "crop_pct": None, "architecture": "some", "url": ""}
    ours = Preprocessing.of(model)
    assert ours == transform(model) == Preprocessing((3, 32, 32), FACTS["mean"], FACTS["std"], "bicubic")
    assert hash(ours) == hash(transform(model))


@pytest.mark.parametrize("missing", FACTS)
def test_a_model_that_does_not_say_is_not_guessed_at(missing):
    with pytest.raises(UsageError, match=missing):
        Preprocessing.from_config({key: value for key, value in FACTS.items() if key != missing})
    with pytest.raises(UsageError):
        Preprocessing.of(torch.nn.Identity())


@pytest.mark.parametrize(
    "change",
    [
        {"input_size": (2, 32, 32)},
        {"input_size": (3, 32)},
        {"input_size": (3, 0, 32)},
        {"input_size": "3x32x32"},
        {"mean": (0.5,)},
        {"mean": "imagenet"},
        {"mean": (0.5, 0.4, float("nan"))},
        {"std": (0.5, 0.5)},
        {"std": ["a", "b", "c"]},
        {"std": (0.5, 0.5, 0.0)},
        {"crop_pct": 1.5},
        {"crop_pct": 0},
        {"crop_pct": "0.9"},
        {"crop_pct": -1.0},
        {"interpolation": "cubic"},
        {"crop_mode": "middle"},
        {"framing": "letter"},
        {"framing": "digit"},
    ],
)
def test_facts_that_make_no_sense(change):
    with pytest.raises(UsageError) as error:
        Preprocessing.from_config({**FACTS, **change})
    assert "\n" not in str(error.value)


# --- golden -----------------------------------------------------------------------------------------------------------

GOLDEN = {
    "0.png": "37c2ab6feb728e3b",
    "1.png": "226433bf6e2d3e78",
    "2.png": "7188603cf9115fb7",
    "3.png": "742649818f99f16e",
    "7.png": "5dbadee7093a6795",
}


def digest(pixels: torch.Tensor) -> str:
    return hashlib.sha256(pixels.numpy().tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_pixels(name):
    assert digest(MNIST.pixels(open_image(DIGITS / name))) == GOLDEN[name]


def test_golden_pixels_of_timms_transform():
    ours = Preprocessing((3, 32, 32), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic", 0.9)
    assert digest(ours.pixels(open_image(DIGITS / "5.gif"))) == "8431ab2ed5910c09"
