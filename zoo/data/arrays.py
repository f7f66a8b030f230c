"""A labelled image set that fits in memory, and its batches."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
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

    def sha256(self) -> str:
        """Hex digest of pictures and targets in their order, which two sets share only where they are the same."""
        digest = hashlib.sha256()
        for tensor in (self.images, self.targets):
            digest.update(tensor.contiguous().numpy(force=True).data)
        return digest.hexdigest()


def joined(parts: Iterable[tuple[np.ndarray, np.ndarray]], labels: tuple[str, ...]) -> ImageArrays:
    """The set of several files: pictures (N, C, H, W) uint8 and targets (N,) int64 of each, one after another."""
    images, targets = zip(*parts, strict=True)
    return ImageArrays(torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(targets)), labels)


def steps_per_epoch(total: int, batch_size: int, repeats: int = 1) -> int:
    """How many whole batches one epoch over `total` pictures has, each picture taken `repeats` times; 0 if none."""
    return total * repeats // batch_size


def batch_of_step(
    total: int, batch_size: int, step: int, *, seed: int, repeats: int = 1, rank: int = 0, world: int = 1
) -> Tensor:
    """Indices, int64, of the batch that training step `step` (from 0) takes from `total` pictures.

    Each epoch goes through all pictures in an order that only `seed` and the epoch decide; the last, partial batch is
    dropped. With `repeats` above 1 each picture comes that many times in a row, to be augmented differently each time
    (repeated augmentation, arXiv 1901.09335), so an epoch is as many times longer. A function of its arguments alone,
    so a resumed training needs no state of a sampler. `batch_size` is that of all processes together: process `rank`
    of `world` gets every `world`-th index of it.
    """
    epoch, position = divmod(step, steps_per_epoch(total, batch_size, repeats))
    begin = position * batch_size
    places = torch.arange(begin + rank, begin + batch_size, world)
    return _order(total, seed, epoch)[places // repeats]


@functools.lru_cache(maxsize=2)
def _order(total: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(total, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
