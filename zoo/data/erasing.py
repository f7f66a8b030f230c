"""Random erasing: a box of each picture is filled with one colour."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.data.augment import to_device

_ATTEMPTS = 100  # as the public code has it; 19 of 20 boxes of its areas and aspects fit at the first


def random_erasing(
    images: Tensor,
    probability: float,
    generator: torch.Generator | None = None,
    *,
    fill: Sequence[float],
    area: tuple[float, float] = (0.02, 0.4),
    aspect: tuple[float, float] = (0.3, 1 / 0.3),
) -> Tensor:
    """Fill a box of each picture, with `probability` (arXiv 1708.04896).

    Area and aspect are uniform, sides √(area · aspect) and √(area / aspect) rounded, smaller than the picture's; the
    place is uniform among those inside the picture. Where no box fits in 100 attempts the picture stays as it is.

    Parameters
    ----------
    images : (N, C, H, W), floating point, normalised.
    generator : on the CPU.
    fill : a number for each channel, in the units of `images`. The public code of arXiv 2112.13492 puts the data
        set's mean, of values from 0 to 1, into pictures that are normalised already, so a box there is about half a
        standard deviation brighter than the mean; for the same, give `Preprocessing.mean`. The mean itself is 0.
    area : least and greatest share of the picture.
    aspect : least and greatest height / width.
    """
    assert images.is_floating_point(), "pictures are erased after they are normalised"
    count, channels, height, width = images.shape
    assert len(fill) == channels, "fill has a number for each channel"
    chance, down, across = torch.rand(3, count, 1, generator=generator)
    share, ratio = torch.rand(2, count, _ATTEMPTS, generator=generator)
    pixels = (area[0] + (area[1] - area[0]) * share) * (height * width)
    ratio = aspect[0] + (aspect[1] - aspect[0]) * ratio
    heights, widths = (pixels * ratio).sqrt().round(), (pixels / ratio).sqrt().round()
    fits = (heights < height) & (widths < width)
    first = fits.int().argmax(1, keepdim=True)
    erased = (chance < probability) & fits.gather(1, first)
    rows = _within(height, heights.gather(1, first), down) & erased
    columns = _within(width, widths.gather(1, first), across)
    box = to_device(rows, images.device)[:, None, :, None] & to_device(columns, images.device)[:, None, None, :]
    return torch.where(box, to_device(torch.tensor(fill, dtype=images.dtype), images.device)[:, None, None], images)


def _within(size: int, length: Tensor, place: Tensor) -> Tensor:
    """(N, size) bool: a span of `length` (N, 1), its start at `place` (N, 1), from 0 to 1, among all possible."""
    start = (place * (size - length + 1)).floor()
    pixel = torch.arange(size)
    return (pixel >= start) & (pixel < start + length)
