"""The augmentations of a recipe, applied to one batch on the device where the data are."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.data.augment import random_crop, random_flip
from zoo.data.auto_augment import auto_augment
from zoo.data.erasing import random_erasing
from zoo.data.mixing import mix
from zoo.data.preprocessing import Preprocessing
from zoo.training.recipes import ImageRecipe


def augmented(
    images: Tensor,
    targets: Tensor,
    classes: int,
    recipe: ImageRecipe,
    preprocessing: Preprocessing,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """(B, C, H, W) uint8 and (B,) int64 -> (B, C, H, W) float32 normalised, and (B,) int64 or soft (B, classes).

    Soft targets, where the recipe mixes pictures, hold its label smoothing already. All is drawn from `generator`, on
    the CPU.
    """
    if recipe.flip:
        images = random_flip(images, generator)
    images = random_crop(images, recipe.shift, generator)
    if recipe.auto_augment:
        images = auto_augment(images, generator)
    x = preprocessing.normalize(images)
    if recipe.erasing:
        x = random_erasing(x, recipe.erasing, generator, fill=preprocessing.mean)
    if not (recipe.mixup or recipe.cutmix):
        return x, targets
    return mix(
        x,
        targets,
        classes,
        mixup_alpha=recipe.mixup,
        cutmix_alpha=recipe.cutmix,
        probability=recipe.mix_probability,
        label_smoothing=recipe.label_smoothing,
        generator=generator,
    )
