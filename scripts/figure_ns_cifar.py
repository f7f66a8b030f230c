"""Write docs/results/ns-cifar.md's tables and picture from what lies beside it.

    python scripts/figure_ns_cifar.py                collect nothing, write tables and picture from what is there
    python scripts/figure_ns_cifar.py --runs DIR     first take over logs and results of DIR/NAME, DIR/longer/NAME and
                                                     DIR/further/NAME, measure the spectra
    python scripts/figure_ns_cifar.py --check        write nothing; fail where a table is not what the files say

The models are trained with `zoo train NAME --recipe cifar-cpu --output DIR/NAME`, `zoo train NAME --recipe
cifar-cpu-12 --output DIR/longer/NAME`, and from there `zoo train NAME --recipe cifar-cpu-12 --init DIR/longer/NAME
--output DIR/further/NAME`, seed 0; those that are not in DIR keep what is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import msgspec
from tables import NOT_YET, command, save_picture, stored, table, take_over, with_tables

import zoo
from zoo import analysis, registry
from zoo.data import open_dataset
from zoo.data.preprocessing import Preprocessing
from zoo.files import write_json
from zoo.training import log, recipes

ROOT = Path(__file__).resolve().parent.parent
PAGE, DATA = ROOT / "docs/results/ns-cifar.md", ROOT / "docs/results/ns-cifar"
PICTURES = 160  # the first so many test pictures, as section 3.4 of the source has it
# Family and data set: names of the twin and the model, as the zoo has them.
PAIRS = {
    ("ViT", "CIFAR-10"): ("vit-cifar10", "ns-vit-cifar10"),
    ("ViT", "CIFAR-100"): ("vit-cifar100", "ns-vit-cifar100"),
    ("Swin", "CIFAR-10"): ("swin-cifar10", "ns-swin-cifar10"),
    ("Swin", "CIFAR-100"): ("swin-cifar100", "ns-swin-cifar100"),
}
NAMES = [name for names in PAIRS.values() for name in names]
LONGER = {"longer/ns-swin-cifar10": "twelve epochs", "further/ns-swin-cifar10": "twelve more"}
# Of the source (arXiv 2609.27735): the differences of table 1 as stated there, of unrounded means; section 3.4.
SOURCE_DIFFERENCE = {
    ("ViT", "CIFAR-10"): "+0.38",
    ("ViT", "CIFAR-100"): "+0.82",
    ("Swin", "CIFAR-10"): "+0.25",
    ("Swin", "CIFAR-100"): "+0.83",
}
SOURCE_SPECTRA = {  # p_1 and effective rank: twin, then model
    ("ViT", "CIFAR-10"): ((0.72, 2.53), (0.62, 2.91)),
    ("ViT", "CIFAR-100"): ((0.72, 2.49), (0.61, 3.00)),
    ("Swin", "CIFAR-10"): ((0.78, 2.21), (0.64, 3.04)),
    ("Swin", "CIFAR-100"): ((0.79, 2.19), (0.61, 3.13)),
}


def accuracy_table() -> str:
    """One line a pair: ours and the source's table 1."""
    rows = []
    for pair, names in PAIRS.items():
        found = [stored(DATA / name, "results.json") for name in names]
        top1 = [f"{one['top1']:.2f}" if one else NOT_YET for one in found]
        difference = f"{found[1]['top1'] - found[0]['top1']:+.2f}" if found[0] and found[1] else NOT_YET
        theirs = re.findall(r"[\d.]+ \+- [\d.]+", registry.get(names[1]).paper.figure)  # the model's, then the twin's
        source = [figure.replace("+-", "±") for figure in reversed(theirs)]
        rows.append([" ".join(pair), *top1, difference, *source, SOURCE_DIFFERENCE[pair]])
    head = ["Model and data", "ours: softmax", "ours: NS", "difference"]
    return table([*head, "source: softmax", "source: NS", "difference"], rows)


def runs_table(names: Iterable[str]) -> str:
    """One line a training: what it cost."""
    rows = []
    for name in names:
        found = stored(DATA / name, "results.json")
        if found is None:
            rows.append([f"`{Path(name).name}`", *[NOT_YET] * 6])
            continue
        samples = found["steps"] * found["recipe"]["batch_size"]
        cost = [f"{found['steps']:,}", f"{samples:,}", f"{found['training_seconds'] / 60:.0f}"]
        init = log.read(DATA / name / log.FILE)[0]["init"]
        trained = f"zoo train {found['name']} --recipe {found['recipe_name']}" + (f" --init {init}" if init else "")
        rows.append([f"`{found['name']}`", *cost, f"{found['top1']:.2f}", f"{found['loss']:.3f}", f"`{trained}`"])
    return table(["Training", "steps", "samples", "minutes", "top-1 in %", "test loss", "command"], rows, left=(0, 6))


def spectra_table() -> str:
    """p_1 and the effective rank of every model, beside the source's."""
    rows = []
    for pair, names in PAIRS.items():
        for name, label, source in zip(names, ("softmax", "NS"), SOURCE_SPECTRA[pair], strict=True):
            rows.append(_spectra_row(name, f"{' '.join(pair)}, {label}", source))
            for longer, epochs in LONGER.items():
                if Path(longer).name == name:
                    rows.append(_spectra_row(longer, f"{' '.join(pair)}, {label}, {epochs}", source))
    return table(["Model", "p₁", "effective rank", "matrices", "source: p₁", "source: effective rank"], rows)


def _spectra_row(name: str, label: str, source: tuple[float, float]) -> list[str]:
    ours = stored(DATA / name, "spectra.json")
    measured = [NOT_YET] * 3
    if ours is not None:
        measured = [f"{ours['leading']:.2f}", f"{ours['effective_rank']:.2f}", f"{ours['matrices']:,}"]
    return [label, *measured, *(f"{value:.2f}" for value in source)]


def selection_table() -> str:
    """One line a run on held-out training pictures."""
    rows = []
    present = msgspec.to_builtins(recipes.recipe("cifar-cpu"))
    for run in json.loads((DATA / "selection.json").read_text(encoding="utf-8")):
        recipe = msgspec.convert(run["recipe"], recipes.ImageRecipe)
        augmentation = f"flip, shift {recipe.shift}, smoothing {recipe.label_smoothing:g}"
        settings = [f"{recipe.lr:g}", str(recipe.batch_size), augmentation, f"{recipe.epochs} x {recipe.samples:,}"]
        changed = [  # how often something is written changes no result
            f"--set {key}={value}"
            for key, value in msgspec.to_builtins(recipe).items()
            if value != present[key] and not key.endswith("_every")
        ]
        trained = f"`zoo train {run['name']} {' '.join(changed)}`"
        rows.append([run["name"], *settings, f"{run['top1']:.2f}", f"{run['loss']:.3f}", trained])
    head = ["Model", "rate", "batch", "augmentation", "samples", "top-1 in %", "loss", "command"]
    return table(head, rows, left=(0, 3, 7))


def page() -> str:
    """The page with its tables written anew."""
    tables = {"accuracy": accuracy_table(), "runs": runs_table(NAMES), "longer": runs_table(LONGER)}
    return with_tables(PAGE, {**tables, "spectra": spectra_table(), "selection": selection_table()})


def picture() -> None:
    """The mean spectra of all models, one panel a pair."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "ns-cifar"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(14, 3.4), sharey=True)
    for axis, (pair, names) in zip(axes, PAIRS.items(), strict=True):
        for name, label, colour in zip(names, ("softmax", "Newton-Schulz"), ("C0", "C3"), strict=True):
            found = stored(DATA / name, "spectra.json")
            if found is None:
                continue
            values = found["spectrum"]
            axis.plot(range(1, len(values) + 1), values, marker="o", markersize=3, color=colour, label=label)
        axis.set(title=" ".join(pair), xlabel="i", yscale="log")
        axis.grid(visible=True, which="both", alpha=0.2)
    axes[0].set_ylabel("mean pᵢ")
    if axes[0].lines:
        axes[0].legend(fontsize=8)
    figure.tight_layout()
    save_picture(figure, PAGE.with_suffix(".svg"))


def collect(runs: Path) -> None:
    """Take over log and results of every training in `runs`, and measure the spectra of its weights.

    `runs`/selection has the trainings by which the recipe was chosen.
    """
    chosen = [json.loads(path.read_text(encoding="utf-8")) for path in runs.glob("selection/*/results.json")]
    if chosen:
        kept = ("name", "top1", "loss", "recipe")
        choices = [{key: run[key] for key in kept} for run in sorted(chosen, key=lambda run: run["top1"])]
        write_json(DATA / "selection.json", choices)
    for name in [*NAMES, *LONGER]:
        if not (runs / name / "results.json").is_file():
            continue
        results = take_over(runs, name, DATA)
        model = zoo.load(runs / name)
        images = open_dataset(results["dataset"], "test").first(PICTURES).images
        found = analysis.head_spectra(model, Preprocessing.of(model).normalize(images))
        write_json(DATA / name / "spectra.json", asdict(found))


if __name__ == "__main__":
    command(__doc__, PAGE, page, collect, picture)()
