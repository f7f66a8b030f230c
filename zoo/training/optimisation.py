"""The optimiser of a recipe, and the learning rate of every step."""

from __future__ import annotations

import math
from typing import Any

from timm.optim import param_groups_weight_decay
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from zoo.training.recipes import Recipe

# Where "warm-up-cosine" starts and ends.
MIN_LR = 1e-6


def optimizer_of(model: nn.Module, recipe: Recipe) -> AdamW:
    """AdamW with the weight decay of `recipe` where it belongs."""
    groups: list[dict[str, Any]]
    if recipe.decay_all:
        groups = [{"params": list(model.parameters()), "weight_decay": recipe.weight_decay}]
    else:
        spared: set[str] = getattr(model, "no_weight_decay", set)()  # vectors and scalars are spared anyhow
        groups = param_groups_weight_decay(model, recipe.weight_decay, no_weight_decay_list=spared)
    return AdamW(groups, lr=recipe.lr, fused=True)


def schedule_of(optimizer: Optimizer, recipe: Recipe, total: int) -> LRScheduler:
    """The schedule of `recipe` over `total` steps; it is stepped once a batch."""
    rise = recipe.warmup * total
    if recipe.schedule == "one-cycle":
        share = 0.0 if math.isclose(rise, 1.0) else recipe.warmup  # torch divides by the steps of the rise less one
        return OneCycleLR(optimizer, recipe.lr, total_steps=total, pct_start=share, cycle_momentum=False)
    least = MIN_LR / recipe.lr

    def factor(step: int) -> float:
        if step < rise:
            return least + (1 - least) * step / rise
        return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * (step - rise) / (total - rise)))

    return LambdaLR(optimizer, factor)
