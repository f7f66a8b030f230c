"""Recipes: everything that decides a training, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from zoo.errors import NotFoundError, UsageError

Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """AdamW on a one-cycle schedule (linear-cosine of `torch.optim.lr_scheduler.OneCycleLR`), stepped once a batch.

    `batch_size` is that of all processes together. `warmup` is the share of the steps in which the rate rises to `lr`.
    `clip` bounds the gradient's norm. `shift` moves every picture by up to that many pixels. `samples` uses the first
    pictures of the training set only. `log_every`, `save_every` are steps.
    """

    epochs: Count
    batch_size: Count = 128
    lr: Positive = 1e-3
    warmup: Share = 0.3
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.05
    clip: Positive | None = 1.0
    label_smoothing: Share = 0.0
    shift: Annotated[int, msgspec.Meta(ge=0)] = 0
    samples: Count | None = None
    precision: Literal["no", "bf16", "fp16"] = "no"
    seed: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    log_every: Count = 50
    save_every: Count = 500


RECIPES = {
    "mnist": Recipe(epochs=16, lr=1e-3, warmup=0.1, shift=1),
    "test-mnist": Recipe(epochs=1, batch_size=32, lr=2e-3, shift=1, samples=320, log_every=2, save_every=4),
}


def recipe(name: str | None) -> Recipe:
    """The recipe called `name`."""
    if name not in RECIPES:
        raise NotFoundError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def override(base: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """`base` with some fields replaced, texts read as the field's type; UsageError names what does not fit."""
    unknown = sorted(set(settings) - set(base.__struct_fields__))
    if unknown:
        raise UsageError(f"a recipe has no {unknown[0]!r}; it has {', '.join(base.__struct_fields__)}")
    try:
        return msgspec.convert({**msgspec.structs.asdict(base), **settings}, Recipe, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"this setting does not fit: {error}") from None
