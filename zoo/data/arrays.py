"""A labelled image set that fits in memory, and its batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageArrays:
    """Pictures as they are stored: `images` (N, C, H, W) uint8, `targets` (N,) int64, `labels` the class names."""

    images: Tensor
    targets: Tensor
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device | str) -> ImageArrays:
        """The same arrays on a device, where batches are then cut without any worker process."""
        return ImageArrays(self.images.to(device), self.targets.to(device), self.labels)

    def first(self, count: int) -> ImageArrays:
        """The first `count` pictures."""
        return ImageArrays(self.images[:count], self.targets[:count], self.labels)


def shuffled_batches(
    total: int, batch_size: int, *, seed: int, epoch: int, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[Tensor]:
    """Index batches of one epoch in an order that only `seed` and `epoch` decide; the last, partial one is dropped.

    `batch_size` is that of all processes together: process `rank` of `world` gets every `world`-th index of it.
    `start` skips that many batches, which is how a resumed epoch goes on.
    """
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
    for begin in range(start * batch_size, total - batch_size + 1, batch_size):
        yield order[begin : begin + batch_size][rank::world]
