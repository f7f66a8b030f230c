"""Augmentations of whole batches on the device they are on.

All random numbers come from a CPU generator, so that every device draws the same, and what they decide is sent to the
device: it is never asked anything, and nothing waits for it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def random_flip(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Mirror each picture left to right with a probability of one half.

    images: (N, C, H, W), any dtype -> the same shape and dtype. `generator`: on the CPU.
    """
    flipped = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(to_device(flipped, images.device)[:, None, None, None], images.flip(-1), images)


def random_crop(images: Tensor, padding: int, generator: torch.Generator | None = None) -> Tensor:
    """Pad each picture by `padding` zeros (black) on all sides and cut its own size out of that at a random place.

    The same as to move it by up to `padding` pixels in each direction.

    images: (N, C, H, W), any dtype -> the same shape and dtype. `generator`: on the CPU.
    """
    if padding == 0 or images.shape[0] == 0:
        return images
    count, channels, height, width = images.shape
    dy, dx = to_device(torch.randint(0, 2 * padding + 1, (2, count, 1), generator=generator), images.device)
    padded = functional.pad(images, (padding,) * 4)
    rows = (torch.arange(height, device=images.device) + dy)[:, None, :, None]
    columns = (torch.arange(width, device=images.device) + dx)[:, None, None, :]
    sample = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[sample, channel, rows, columns]


def to_device(drawn: Tensor, device: torch.device) -> Tensor:
    """What was drawn on the CPU, on `device`, without waiting for what CUDA has still to do.

    CUDA takes a copy of pageable memory before it returns, so `drawn` may be freed at once; no other device says so.
    """
    return drawn.to(device, non_blocking=device.type == "cuda")
