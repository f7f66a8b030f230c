"""Operations on whole batches of pictures, each picture with a parameter of its own.

They do to each picture what torchvision's function of the same name does to one tensor, in the same arithmetic.
Pictures: (N, C, H, W) uint8, 1 or 3 channels, on any device; the same comes back. Parameters: (N,) or more, on the CPU,
in float64, because torchvision's are Python numbers; they go to the device without waiting for it, and nothing comes
back.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from zoo.data.augment import to_device


def affine(images: Tensor, theta: Tensor, fill: int = 0) -> Tensor:
    """Take each pixel from the nearest one to θ (x, y, 1), from `fill` where that is outside of the picture.

    theta: (N, 2, 3), in `torch.nn.functional.affine_grid`'s coordinates, from -1 to 1 over the picture's sides.
    """
    grid = functional.affine_grid(_parameter(theta, images), list(images.shape), align_corners=False)
    shifted = images.float() - fill  # so that what grid_sample puts outside, zero, is `fill` in the end
    return (functional.grid_sample(shifted, grid, mode="nearest", align_corners=False) + fill).to(torch.uint8)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Black at factor 0, the picture itself at 1."""
    return _blend(images, torch.zeros_like(images), factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Grey at factor 0, the picture itself at 1; a grey picture stays as it is."""
    return _blend(images, _gray(images), factor) if images.shape[1] == 3 else images


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """The mean grey of the picture at factor 0, the picture itself at 1."""
    return _blend(images, _gray(images).float().mean((1, 2, 3), keepdim=True), factor)


def adjust_sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Smoothed at factor 0, the picture itself at 1. The outermost pixels are never smoothed.

    A pixel is smoothed over itself, with weight 5, and its eight neighbours, with weight 1 each.
    """
    if min(images.shape[2:]) <= 2:
        return images
    rows = images.short()  # 13 · 255 fits
    columns = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]
    total = columns[..., :-2] + columns[..., 1:-1] + columns[..., 2:] + 4 * rows[:, :, 1:-1, 1:-1]
    smooth = images.clone()
    smooth[:, :, 1:-1, 1:-1] = (total / 13).round().to(torch.uint8)  # never near a tie: 13 is odd
    return _blend(images, smooth, factor)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the `bits` highest of eight bits."""
    return images & to_device((256 - 2 ** (8 - bits)).to(torch.uint8), images.device)[:, None, None, None]


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values from `threshold` up; 0 inverts all."""
    return torch.where(images >= _parameter(threshold, images)[:, None, None, None], 255 - images, images)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to 0 .. 255; one that has a single value stays as it is."""
    darkest, brightest = (value.float() for value in (images.amin((2, 3), True), images.amax((2, 3), True)))
    flat = darkest == brightest
    scale = torch.where(flat, 1, 255 / (brightest - darkest))
    return ((images - torch.where(flat, 0, darkest)) * scale).clamp(0, 255).to(torch.uint8)


def equalize(images: Tensor) -> Tensor:
    """Spread the values of each channel so that all are about equally frequent."""
    values = images.flatten(2).long()
    histogram = torch.zeros(*values.shape[:2], 256, dtype=torch.int32, device=images.device)
    histogram.scatter_add_(2, values, torch.ones_like(values, dtype=torch.int32))
    step = (values.shape[2] - histogram.gather(2, values.amax(2, keepdim=True))) // 255
    below = histogram.cumsum(2, dtype=torch.int32) - histogram
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step == 0, torch.arange(256, device=images.device, dtype=torch.int32), table)
    return table.to(torch.uint8).gather(2, values).view_as(images)


def _gray(images: Tensor) -> Tensor:
    """(N, 3, H, W) -> (N, 1, H, W), luma by ITU-R BT.601, cut to whole levels; grey stays as it is."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, 1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).to(torch.uint8)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """factor · images + (1 - factor) · other, cut to whole levels from 0 to 255."""
    kept, rest = _parameter(torch.stack((factor, 1 - factor)), images)[..., None, None, None]
    return (kept * images + rest * other).clamp(0, 255).to(torch.uint8)


def _parameter(value: Tensor, images: Tensor) -> Tensor:
    return to_device(value.float(), images.device)
