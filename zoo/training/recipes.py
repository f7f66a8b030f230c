"""Recipes: everything that decides a training, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from zoo.errors import NotFoundError, UsageError

Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e38)]
Whole = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e38)]


R = TypeVar("R", bound="Recipe")


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """AdamW, its rate stepped once a batch.

    Optimiser: `batch_size` is that of all processes together, in pictures or sequences; `accumulate` cuts it into so
    many parts, one after another. `schedule` is "one-cycle" (up and down by a cosine,
    `torch.optim.lr_scheduler.OneCycleLR`) or "warm-up-cosine" (linearly from 1e-6 to `lr`, by a cosine back to 1e-6);
    `warmup` is the share of the steps in which the rate rises. `decay_all`: weight decay on every parameter, else on
    the matrices that the model does not spare. `clip` bounds the gradient's norm.

    `samples` uses the first pictures or sequences of the training set only. `compile` hands the model to
    `torch.compile`. `log_every`, `save_every` are steps, `test_every` epochs. `storage` is the type of the published
    weights; figures are measured on them as they are stored.
    """

    epochs: Count
    batch_size: Count = 128
    accumulate: Count = 1
    lr: Positive = 1e-3
    schedule: Literal["one-cycle", "warm-up-cosine"] = "one-cycle"
    warmup: Share = 0.3
    weight_decay: NotNegative = 0.05
    decay_all: bool = False
    clip: Positive | None = 1.0
    samples: Count | None = None
    compile: bool = False
    precision: Literal["no", "bf16", "fp16"] = "no"
    seed: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    log_every: Count = 50
    save_every: Count = 500
    test_every: Count = 1
    storage: Literal["float32", "float16", "bfloat16"] = "float32"


class ImageRecipe(Recipe, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How pictures are learned from, beside what every recipe says.

    Augmentation, in this order: `repeats` takes each picture so many times in a row, `flip` mirrors half of them,
    `shift` moves each by up to that many pixels, `auto_augment` is AutoAugment's policy for CIFAR-10, `erasing` the
    probability of random erasing; `mixup` and `cutmix` are the alphas of the two, of which one happens with
    `mix_probability` a batch; `label_smoothing`. `drop_path` is the model's rate, None the model's own.

    `holdout` leaves the last pictures of the training set out and tests on them. `fused_attention` off computes
    attention as two products and a softmax, whose backward is faster on a CPU.
    """

    repeats: Count = 1
    flip: bool = False
    shift: Whole = 0
    auto_augment: bool = False
    erasing: Probability = 0.0
    mixup: NotNegative = 0.0
    cutmix: NotNegative = 0.0
    mix_probability: Probability = 0.5
    label_smoothing: Share = 0.0
    drop_path: Share | None = None
    holdout: Whole = 0
    fused_attention: bool = True


class TextRecipe(Recipe, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How text is learned from, beside what every recipe says.

    The tokens of the text are cut into sequences of `context`, with nothing left empty. `fused_attention` off computes
    attention as two products and a softmax. `checkpointing` keeps the blocks' inputs only and computes the rest again
    for the backward pass.
    """

    context: Count = 256
    fused_attention: bool = True
    checkpointing: bool = False


# What arXiv 2609.27735 does to its pictures and targets.
_HEAVY: dict[str, Any] = {
    "flip": True,
    "shift": 4,
    "auto_augment": True,
    "erasing": 0.25,
    "mixup": 1.0,
    "cutmix": 1.0,
    "label_smoothing": 0.1,
}

_CIFAR_CPU: dict[str, Any] = {
    "batch_size": 32,
    "lr": 5e-4,
    "warmup": 0.2,
    "flip": True,
    "drop_path": 0.0,
    "fused_attention": False,
    "precision": "bf16",
    "log_every": 100,
    "save_every": 250,
    "test_every": 6,
    "storage": "float16",
}

RECIPES: dict[str, ImageRecipe | TextRecipe] = {
    "mnist": ImageRecipe(epochs=16, lr=1e-3, warmup=0.1, shift=1),
    # Every number of arXiv 2609.27735, its gaps filled from the code it follows, that of arXiv 2112.13492; where this
    # differs from that code is said in docs/newton-schulz.md.
    "ns-cifar": ImageRecipe(
        epochs=100,
        schedule="warm-up-cosine",
        warmup=0.1,
        decay_all=True,
        clip=None,
        repeats=3,
        **_HEAVY,
        drop_path=0.1,
        storage="float16",
    ),
    # What one CPU core does in about an hour. Rate, batch and augmentation were chosen on held-out training pictures
    # and are the same for all arms: docs/results/ns-cifar.md.
    "cifar-cpu": ImageRecipe(epochs=6, **_CIFAR_CPU),
    # Twice as long, and with small shifts, as the networks know their pictures after six epochs without.
    "cifar-cpu-12": ImageRecipe(epochs=12, shift=2, **_CIFAR_CPU),
    "test-cifar": ImageRecipe(
        epochs=1,
        batch_size=32,
        lr=2e-3,
        repeats=2,
        **_HEAVY,
        samples=160,
        log_every=2,
        save_every=4,
        storage="float16",
    ),
    "test-mnist": ImageRecipe(epochs=1, batch_size=32, lr=2e-3, shift=1, samples=320, log_every=2, save_every=4),
    # What arXiv 2601.01014 states of its second experiment, at 48 layers: epochs, batch and rate; of its first, at 12
    # to 100 layers, it states the same epochs. Optimiser, schedule, warm-up, decay, clipping and context are not stated
    # there; its experiments on WikiText-103 and at 100 layers have 100 epochs.
    "mgt": TextRecipe(
        epochs=50, batch_size=64, lr=1e-3, schedule="warm-up-cosine", warmup=0.02, weight_decay=0.1, context=1024
    ),
    # What one CPU core does in about an hour at 12 layers. The rate is the source's and was compared with others, the
    # same for all arms: docs/results/mgt.md.
    "lm-cpu": TextRecipe(
        epochs=2,
        batch_size=4,
        lr=1e-3,
        warmup=0.1,
        weight_decay=0.1,
        context=256,
        fused_attention=False,
        precision="bf16",
        log_every=100,
        save_every=500,
        storage="bfloat16",
    ),
    # The copy task, the same for all arms.
    "copy": TextRecipe(
        epochs=1,
        batch_size=32,
        lr=1e-3,
        warmup=0.1,
        samples=32_000,
        context=64,
        precision="bf16",
        storage="bfloat16",
    ),
    "test-text": TextRecipe(
        epochs=1, batch_size=8, lr=2e-3, context=32, samples=80, log_every=2, save_every=4, storage="bfloat16"
    ),
}


def recipe(name: str | None) -> ImageRecipe | TextRecipe:
    """The recipe called `name`."""
    if name not in RECIPES:
        raise NotFoundError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def of_kind(kind: type[R], given: Recipe, recipe_name: str, name: str) -> R:
    """`given`; UsageError where it is no recipe of the `kind` that the entry `name` learns by."""
    if not isinstance(given, kind):
        other, own = ("text", "pictures") if kind is ImageRecipe else ("pictures", "text")
        raise UsageError(f"recipe {recipe_name} is for {other}, and {name} learns from {own}")
    return given


def fields_of(name: str) -> tuple[str, ...]:
    """What the recipe called `name` decides."""
    return recipe(name).__struct_fields__


def stored(name: str, values: Mapping[str, Any]) -> ImageRecipe | TextRecipe:
    """The state of the recipe called `name` that was written down as `values`; what was added since has its default."""
    return msgspec.convert(values, type(recipe(name)))


def override(base: R, settings: Mapping[str, Any]) -> R:
    """`base` with some fields replaced, texts read as the field's type; UsageError names what does not fit."""
    unknown = sorted(set(settings) - set(base.__struct_fields__))
    if unknown:
        raise UsageError(f"a recipe has no {unknown[0]!r}; it has {', '.join(base.__struct_fields__)}")
    if settings.get("precision") is False:  # YAML's reading of `no`
        settings = {**settings, "precision": "no"}
    try:
        return msgspec.convert({**msgspec.structs.asdict(base), **settings}, type(base), strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"this setting does not fit: {error}") from None
