"""Augmentations of whole batches on the device they are on."""

from __future__ import annotations

import torch
from torch import Tensor


def random_shift(images: Tensor, pixels: int, generator: torch.Generator | None = None) -> Tensor:
    """Move each picture by up to `pixels` pixels in each direction, the gap filled with zeros (black).

    images: (N, C, H, W), any dtype -> the same shape and dtype. The generator is a CPU one, so that every device
    draws the same shifts.
    """
    if pixels == 0 or images.shape[0] == 0:
        return images
    count, channels, height, width = images.shape
    dy, dx = torch.randint(0, 2 * pixels + 1, (2, count, 1), generator=generator).to(images.device)
    padded = torch.nn.functional.pad(images, (pixels,) * 4)
    rows = (torch.arange(height, device=images.device) + dy)[:, None, :, None]
    columns = (torch.arange(width, device=images.device) + dx)[:, None, None, :]
    sample = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[sample, channel, rows, columns]
