"""Mixup and CutMix: batches whose pictures are mixed in pairs, with soft targets to match."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from zoo.data.augment import to_device


def mix(
    images: Tensor,
    targets: Tensor,
    classes: int,
    *,
    mixup_alpha: float,
    cutmix_alpha: float,
    probability: float,
    label_smoothing: float,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Mix a batch with a permutation of itself, with `probability`; the targets become soft in any case.

    Mixup (arXiv 1710.09412) adds: λ x_i + (1 - λ) x_j. CutMix (arXiv 1905.04899) puts a box of x_j into x_i, at a
    uniform centre, with sides √(1 - λ) of the picture's before it is clipped to it; λ is then the share of x_i that is
    left. Targets are λ t_i + (1 - λ) t_j. The whole batch shares one λ ~ Beta(α, α) and one box.

    Parameters
    ----------
    images : (B, C, H, W) floating point, normalised.
    targets : (B,) int64, from 0 to classes - 1.
    mixup_alpha, cutmix_alpha : α of the two; 0 is never that one. If both are above 0 each is as likely.
    probability : that the batch is mixed at all.
    label_smoothing : ε; (1 - ε) one-hot + ε / classes, as `torch.nn.functional.cross_entropy` has it.
    generator : on the CPU.

    Returns
    -------
    images (B, C, H, W), and targets (B, classes) float32, whose rows sum to 1: cross_entropy takes them as they are,
    without label_smoothing.
    """
    assert images.is_floating_point(), "pixels are mixed after they are normalised"
    rest = label_smoothing / classes
    soft = torch.full((len(images), classes), rest, dtype=torch.float32, device=images.device)
    soft.scatter_(1, targets[:, None], 1 - label_smoothing + rest)
    # All is drawn whether it is used or not: a change of one setting leaves the other draws as they are.
    whether, which, centre_y, centre_x = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
    seed = int(torch.randint(2**62, (), generator=generator))
    partner = to_device(torch.randperm(len(images), generator=generator), images.device)
    if whether >= probability or not (mixup_alpha or cutmix_alpha):
        return images, soft
    cut = which < 0.5 if mixup_alpha and cutmix_alpha else bool(cutmix_alpha)
    alpha = cutmix_alpha if cut else mixup_alpha
    share = float(np.random.default_rng(seed).beta(alpha, alpha))  # torch's Beta takes no generator
    if cut:
        height, width = images.shape[2:]
        rows, columns = _span(height, centre_y, share), _span(width, centre_x, share)
        images = images.clone()
        images[:, :, rows, columns] = images[partner, :, rows, columns]
        share = 1 - len(range(height)[rows]) * len(range(width)[columns]) / (height * width)
    else:
        images = torch.lerp(images[partner], images, share)
    return images, torch.lerp(soft[partner], soft, share)


def _span(size: int, centre: float, share: float) -> slice:
    """Where the box lies along one side of `size` pixels: `centre` from 0 to 1, clipped to the picture."""
    half, middle = int(size * math.sqrt(1 - share)) // 2, int(size * centre)
    return slice(max(middle - half, 0), min(middle + half, size))
