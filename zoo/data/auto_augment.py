"""AutoAugment with the policy that was found for CIFAR-10 (arXiv 1805.09501), on whole batches."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from zoo.data import batch_operations
from zoo.data.augment import to_device

# The 25 sub-policies: two operations after another, each with its probability and its level, of ten.
CIFAR10 = (
    (("Invert", 0.1, 0), ("Contrast", 0.2, 6)),
    (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
    (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
    (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.5, 0), ("Equalize", 0.9, 0)),
    (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
    (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
    (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
    (("Equalize", 0.6, 0), ("Equalize", 0.5, 0)),
    (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
    (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
    (("Equalize", 0.3, 0), ("AutoContrast", 0.4, 0)),
    (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
    (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
    (("Solarize", 0.5, 2), ("Invert", 0.0, 0)),
    (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.2, 0), ("Equalize", 0.6, 0)),
    (("Color", 0.9, 9), ("Equalize", 0.6, 0)),
    (("AutoContrast", 0.8, 0), ("Solarize", 0.2, 8)),
    (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
    (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 0)),
    (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.9, 0), ("Solarize", 0.8, 3)),
    (("Equalize", 0.8, 0), ("Invert", 0.1, 0)),
    (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0)),
)

_GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_OTHERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # of pictures and their magnitudes
    "Brightness": lambda images, magnitude: batch_operations.adjust_brightness(images, 1 + magnitude),
    "Color": lambda images, magnitude: batch_operations.adjust_saturation(images, 1 + magnitude),
    "Contrast": lambda images, magnitude: batch_operations.adjust_contrast(images, 1 + magnitude),
    "Sharpness": lambda images, magnitude: batch_operations.adjust_sharpness(images, 1 + magnitude),
    "Posterize": batch_operations.posterize,
    "Solarize": batch_operations.solarize,
    "Invert": batch_operations.solarize,  # with threshold 0
    "AutoContrast": lambda images, magnitude: batch_operations.autocontrast(images),
    "Equalize": lambda images, magnitude: batch_operations.equalize(images),
}
OPERATIONS = (*_GEOMETRIC, *_OTHERS)
_ENHANCING = ("Brightness", "Color", "Contrast", "Sharpness")  # by a factor of 1 ± magnitude

# (operations,) and (25, 2): names by their place in OPERATIONS. On the CPU wherever the import happens to run.
_SIGNED = torch.tensor([name in (*_GEOMETRIC, *_ENHANCING) for name in OPERATIONS], device="cpu")
_OPERATION = torch.tensor([[OPERATIONS.index(name) for name, _, _ in sub] for sub in CIFAR10], device="cpu")
_PROBABILITY = torch.tensor([[probability for _, probability, _ in sub] for sub in CIFAR10], device="cpu")
_LEVEL = torch.tensor([[level for _, _, level in sub] for sub in CIFAR10], device="cpu")


def auto_augment(images: Tensor, generator: torch.Generator | None = None, fill: int = 0) -> Tensor:
    """Apply a sub-policy of the CIFAR-10 policy to each picture, drawn for it alone.

    The same operations, probabilities and magnitudes as torchvision's `AutoAugment(AutoAugmentPolicy.CIFAR10)`.

    images: (N, C, H, W) uint8 with 1 or 3 channels, before they are normalised -> the same shape and dtype.
    `generator`: on the CPU. `fill`: the value, 0 to 255, of pixels that come from outside of the picture.
    """
    assert images.dtype == torch.uint8, "AutoAugment takes pixels, 0 to 255, that are not normalised yet"
    assert images.shape[1] in (1, 3), "AutoAugment takes grey or RGB pictures"
    count = len(images)
    policy = torch.randint(len(CIFAR10), (count,), generator=generator)
    chance = torch.rand(2, count, generator=generator)
    sign = torch.randint(0, 2, (2, count), generator=generator) * 2 - 1
    for stage in range(2):
        operation = _OPERATION[policy, stage].where(chance[stage] < _PROBABILITY[policy, stage], -1)
        images = apply(images, operation, _LEVEL[policy, stage], sign[stage], fill)
    return images


def apply(images: Tensor, operation: Tensor, level: Tensor, sign: Tensor, fill: int = 0) -> Tensor:
    """One operation on each picture: `operation` (N,) is its place in OPERATIONS, or -1 for none.

    level: (N,), 0 to 9. sign: (N,), 1 or -1. All three int64, on the CPU.
    """
    height, width = images.shape[2:]
    magnitude = _magnitudes(height, width)[operation, level]
    magnitude = torch.where(_SIGNED[operation], magnitude * sign, magnitude)
    result = images.clone()

    def act(function: Callable[[Tensor, Tensor], Tensor], chosen: Tensor, parameter: Tensor) -> None:
        places = chosen.nonzero()[:, 0]  # on the CPU, so the device need not be asked how many there are
        if len(places):
            index = to_device(places, images.device)
            result.index_copy_(0, index, function(images.index_select(0, index), parameter[places]))

    amounts = torch.stack([torch.where(operation == number, magnitude, 0) for number in range(len(_GEOMETRIC))])
    moved = (operation >= 0) & (operation < len(_GEOMETRIC))
    act(functools.partial(batch_operations.affine, fill=fill), moved, _theta(amounts, height, width))
    for number, function in enumerate(_OTHERS.values(), len(_GEOMETRIC)):
        act(function, operation == number, magnitude)
    return result


def _magnitudes(height: int, width: int) -> Tensor:
    """(operations, 10) float64: what each level means. Pixels, degrees, bits, thresholds, or changes of a factor."""
    # float32 first, as torchvision has it, so that pixels are cut and thresholds met at the same levels
    greatest = {"ShearX": 0.3, "ShearY": 0.3, "Rotate": 30.0} | dict.fromkeys(_ENHANCING, 0.9)
    table = {name: torch.linspace(0, value, 10) for name, value in greatest.items()}
    table |= {
        "TranslateX": torch.linspace(0, 150 / 331 * width, 10).trunc(),
        "TranslateY": torch.linspace(0, 150 / 331 * height, 10).trunc(),
        "Posterize": 8 - (torch.arange(10) / (9 / 4)).round(),
        "Solarize": torch.linspace(255, 0, 10),
    }
    return torch.stack([table.get(name, torch.zeros(10)) for name in OPERATIONS]).double()


def _theta(amounts: Tensor, height: int, width: int) -> Tensor:
    """(5, N) amounts of the geometric operations, at most one of a picture not 0 -> (N, 2, 3), for `affine`.

    Where each pixel comes from: x + s (y + H/2) and y + s (x + W/2) for the shears, about the upper left corner;
    x - t or y - t for the translations; counter-clockwise about the centre for the rotation. x from -W/2 to W/2.
    """
    shear_x, shear_y, right, down, degrees = amounts
    angle = degrees.deg2rad()
    cos, sin = angle.cos(), angle.sin()
    x = torch.stack((cos, (shear_x - sin) * (height / width), (shear_x * height - 2 * right) / width), -1)
    y = torch.stack(((shear_y + sin) * (width / height), cos, (shear_y * width - 2 * down) / height), -1)
    return torch.stack((x, y), -2)
