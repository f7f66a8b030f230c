"""Time a whole training step of a model against its twin's: `python scripts/bench_training_step.py osa-vit-mnist`.

Forward, loss, backward, clipping and AdamW on random pictures of the model's size, both arms in turn in one process.
Prints one JSON document; `ratio` is model / twin, median over the rounds with the quartiles. With `--recipe` the
augmentations of that recipe take turns with the two, and `input_share` is their time over the model's step.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import click
import torch
from torch import nn

import zoo
from zoo.bench import environment
from zoo.bench.protocol import measure, paired_ratio, summarize, synchronizer
from zoo.data.preprocessing import Preprocessing
from zoo.loading import resolve_device
from zoo.training import recipes
from zoo.training.augmentation import augmented
from zoo.training.pictures import unfuse_attention


def arm(name: str, batch_size: int, device: torch.device, precision: str, fused: bool) -> Callable[[], None]:
    """One training step of a fresh model, to be called again and again."""
    torch.manual_seed(0)
    model = zoo.load(name, pretrained=False, device=device).train()
    if not fused:
        unfuse_attention(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    images = torch.randn(batch_size, *model.pretrained_cfg["input_size"], device=device)
    targets = torch.randint(model.num_classes, (batch_size,), device=device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = model(images)
        nn.functional.cross_entropy(logits.float(), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def pipeline(name: str, batch_size: int, device: torch.device, recipe: str) -> Callable[[], None]:
    """The augmentations of a batch of pictures that lie on the device."""
    model = zoo.load(name, pretrained=False)
    images = torch.randint(256, (batch_size, *model.pretrained_cfg["input_size"]), dtype=torch.uint8, device=device)
    targets = torch.randint(model.num_classes, (batch_size,), device=device)
    generator = torch.Generator().manual_seed(0)
    given = (model.num_classes, recipes.recipe(recipe), Preprocessing.of(model), generator)

    def batch() -> None:
        augmented(images, targets, *given)

    return batch


@click.command(help=__doc__)
@click.argument("name")
@click.option("--batch-size", default=128, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--precision", type=click.Choice(["no", "bf16"]), default="no", show_default=True)
@click.option("--fused/--unfused", default=True, help="Attention fused, or as two products and a softmax.")
@click.option("--recipe", help="Measure this recipe's augmentations too.")
@click.option("--repeats", default=30, show_default=True)
@click.option("--warmup", default=5, show_default=True)
def main(
    name: str,
    batch_size: int,
    device: str,
    precision: str,
    fused: bool,
    recipe: str | None,
    repeats: int,
    warmup: int,
) -> None:
    """Measure and print."""
    place, twin = resolve_device(device), zoo.info(name).twin
    if twin is None:
        raise click.UsageError(f"{name} has no twin")
    arms = {each: arm(each, batch_size, place, precision, fused) for each in (name, twin)}
    if recipe is not None:
        arms["input"] = pipeline(name, batch_size, place, recipe)
    times = measure(arms, repeats=repeats, warmup=warmup, synchronize=synchronizer(place))
    ratio = dict(zip(("p50", "p25", "p75"), paired_ratio(times[name], times[twin]), strict=True))
    share = {"input_share": paired_ratio(times["input"], times[name])[0]} if recipe is not None else {}
    document = {
        "ratio": ratio,
        **share,
        **{each: {"p50_ms": summarize(times[each]).p50_ms, "spread": summarize(times[each]).spread} for each in arms},
        "settings": {
            "batch_size": batch_size,
            "device": str(place),
            "precision": precision,
            "fused_attention": fused,
            "recipe": recipe,
            "repeats": repeats,
        },
        "environment": environment(),
    }
    click.echo(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
