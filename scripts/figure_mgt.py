"""Write docs/results/mgt.md's tables and picture from what lies beside it.

    python scripts/figure_mgt.py                collect nothing, write tables and picture from what is there
    python scripts/figure_mgt.py --runs DIR     first take over logs and results of DIR/NAME and DIR/copy/NAME, and
                                                measure ranks and updates by depth
    python scripts/figure_mgt.py --check        write nothing; fail where a table is not what the files say

The models are trained with `zoo train NAME --output DIR/NAME` and, on the copy task, `zoo train NAME --data copy
--recipe copy --output DIR/copy/NAME`, seed 0; those that are not in DIR keep what is there.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tables import NOT_YET, command, save_picture, stored, table, take_over, with_tables

import zoo
from zoo import analysis
from zoo.files import write_json
from zoo.training import log
from zoo.training.corpus import corpus

ROOT = Path(__file__).resolve().parent.parent
PAGE, DATA = ROOT / "docs/results/mgt.md", ROOT / "docs/results/mgt"
SEQUENCES = 32  # the first so many of the test split
# As the paper has its four arms, and the standard one in both norms.
ARMS = {
    "std-lm-12L-post": "standard, post-norm",
    "std-lm-12L": "standard, pre-norm",
    "mgt-lm-12L-mhc": "soft projection (mHC)",
    "mgt-lm-12L-ddl": "delta update (DDL)",
    "mgt-lm-12L": "both (MGT)",
}
DEEP = {
    "std-lm-48L": "standard, pre-norm",
    "mgt-lm-48L-mhc": "soft projection (mHC)",
    "mgt-lm-48L-ddl": "delta update (DDL)",
    "mgt-lm-48L": "both (MGT)",
}
COLOURS = dict(zip(ARMS.values(), ("C7", "C0", "C2", "C1", "C3"), strict=True))


def text_table(names: dict[str, str]) -> str:
    """One line a training on text: what it cost and what it knows."""
    rows = []
    for name, arm in names.items():
        found = stored(DATA / name, "results.json")
        if found is None:
            rows.append([f"`{name}`", arm, *[NOT_YET] * 7])
            continue
        seen = found["steps"] * found["recipe"]["batch_size"] * found["recipe"]["context"]
        speed = statistics.median(row["tokens_per_second"] for row in log.read(DATA / name / log.FILE) if "loss" in row)
        cost = [f"{found['parameters']:,}", f"{found['steps']:,}", f"{seen:,}", f"{speed:,.0f}"]
        measured = [found["validation"]["perplexity"], found["perplexity"], found["word_perplexity"]]
        rows.append([f"`{name}`", arm, *cost, *(f"{value:.2f}" for value in measured)])
    head = ["Training", "arm", "parameters", "steps", "tokens", "tokens/s"]
    if names is ARMS:
        trigram = stored(DATA, "trigram.json")
        splits = (("validation", "perplexity"), ("test", "perplexity"), ("test", "word_perplexity"))
        measured = [f"{trigram[split][key]:.2f}" for split, key in splits] if trigram else [NOT_YET] * 3
        rows.append(["interpolated trigram", *[""] * 5, *measured])
    return table([*head, "validation, a token", "test, a token", "test, a word"], rows, left=(0, 1))


def copy_table() -> str:
    """One line a training on the copy task."""
    rows = []
    for name, arm in ARMS.items():
        found = stored(DATA / "copy" / name, "results.json")
        if found is None:
            rows.append([f"`{name}`", arm, *[NOT_YET] * 4])
            continue
        logged = log.read(DATA / "copy" / name / log.FILE)
        below = next((row["step"] for row in logged if row.get("loss", 9.0) < 0.1), None)
        first = "never" if below is None else f"{below:,}"
        rows.append(
            [f"`{name}`", arm, f"{found['steps']:,}", first, f"{found['accuracy']:.2f}", f"{found['loss']:.4f}"]
        )
    head = ["Training", "arm", "steps", "loss below 0.1 after", "copied right in %", "test loss"]
    return table(head, rows, left=(0, 1))


def depth_table() -> str:
    """One line a model: effective rank by depth, at the start and trained, and what its controllers say."""
    rows = []
    for name, arm in {**ARMS, **DEEP}.items():
        found = stored(DATA / name, "depth.json")
        label = f"{arm}, {len(found['trained']['ranks']) - 1}" if found else arm
        if found is None:
            rows.append([f"`{name}`", label, *[NOT_YET] * 8])
            continue
        start, trained = found["start"], found["trained"]
        ranks = [f"{one['ranks'][0]:.3f} → {one['ranks'][-1]:.3f}" for one in (start, trained)]
        rates = [f"{trained['preservation']:.2f}", f"{min(trained['ranks']):.3f}", f"{trained['decay']:+.4f}"]
        betas = trained["betas"]
        shown = ["", "", ""]
        if betas:
            means = [one["mean"] for one in betas]
            shown = [
                f"{sum(means) / len(means):.2f} ({min(means):.2f} to {max(means):.2f})",
                f"{sum(one['variance'] for one in betas) / len(betas):.3f}",
                f"{100 * sum(one['negative'] for one in betas) / len(betas):.1f}",
            ]
        rows.append([f"`{name}`", label, *ranks, *rates, *shown])
    head = ["Model", "arm, layers", "rank at the start, first → last", "rank trained, first → last", "ρ", "least"]
    return table([*head, "log slope a layer", "β: mean", "variance", "below 0 in %"], rows, left=(0, 1))


def synergy_table() -> str:
    """The source's synergy of the two halves, in nats of the validation loss, for both standard arms."""
    rows = []
    for base in ("std-lm-12L", "std-lm-12L-post"):
        names = (base, "mgt-lm-12L", "mgt-lm-12L-mhc", "mgt-lm-12L-ddl")
        found = [stored(DATA / name, "results.json") for name in names]
        if any(one is None for one in found):
            rows.append([ARMS[base], *[NOT_YET] * 4])
            continue
        first, *others = (one["validation"]["loss"] for one in found)
        both, gate, delta = (first - other for other in others)
        rows.append([ARMS[base], *(f"{value:+.3f}" for value in (gate, delta, both, both - gate - delta))])
    return table(["gain over", "soft projection", "delta update", "both", "synergy"], rows)


def selection_table() -> str:
    """One line a run by which the recipe was chosen."""
    rows = []
    for run in stored(DATA, "selection.json") or []:
        recipe, validation = run["recipe"], run["validation"]
        settings = " ".join(f"--set {key}={recipe[key]:g}" for key in ("epochs", "samples", "lr"))
        measured = ["stopped"] * 2
        if validation:
            measured = [f"{validation['loss']:.4f}", f"{validation['perplexity']:.2f}"]
        cells = [f"{recipe['lr']:g}", f"{run['steps']:,}", f"{run['training_loss']:.2f}", *measured]
        rows.append([*cells, f"`zoo train {run['name']} {settings}`"])
    head = ["rate", "steps", "training loss", "validation loss", "perplexity", "command"]
    return table(head, rows, left=(5,))


def page() -> str:
    """The page with its tables written anew."""
    tables = {"text": text_table(ARMS), "deep": text_table(DEEP), "copy": copy_table(), "depth": depth_table()}
    return with_tables(PAGE, {**tables, "synergy": synergy_table(), "selection": selection_table()})


def picture() -> None:
    """Training loss at 12 and at 48 layers, and the effective rank by depth."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "mgt"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(16, 3.8))
    for axis, names, title in ((axes[0], ARMS, "12 layers"), (axes[1], DEEP, "48 layers")):
        for name, arm in names.items():
            rows = log.read(DATA / name / log.FILE)
            losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
            if losses:
                axis.plot(*zip(*losses, strict=True), color=COLOURS[arm], linewidth=1, label=arm)
            tests = [(row["step"], row["validation"]["loss"]) for row in rows if "validation" in row]
            if tests:
                axis.plot(*zip(*tests, strict=True), color=COLOURS[arm], marker="o", markersize=4, linestyle="none")
        axis.set(title=f"{title}: loss in nats, ● validation", xlabel="step", ylim=(3.6, 7.2))
    for axis, names, title in ((axes[2], ARMS, "12 layers"), (axes[3], DEEP, "48 layers")):
        for name, arm in names.items():
            found = stored(DATA / name, "depth.json")
            if found:
                axis.plot(found["trained"]["ranks"], color=COLOURS[arm], marker=".", markersize=4, label=arm)
                axis.plot(found["start"]["ranks"], color=COLOURS[arm], linewidth=1, linestyle=":")
        axis.set(title=f"{title}: effective rank, ⋯ at the start", xlabel="after layer", ylim=(0, 1))
    for axis in axes:
        axis.grid(visible=True, alpha=0.2)
    for axis in (axes[0], axes[1]):
        if axis.lines:
            axis.legend(fontsize=8)
    figure.tight_layout()
    save_picture(figure, PAGE.with_suffix(".svg"))


def collect(runs: Path) -> None:
    """Take over log and results of every training in `runs` and in `runs`/copy, and measure what depth does.

    `runs`/selection has the trainings by which the recipe was chosen.
    """
    chosen = [_choice(path) for path in runs.glob("selection/*/log.jsonl")]
    if chosen:
        write_json(DATA / "selection.json", sorted(chosen, key=lambda run: run["recipe"]["lr"]))
    for name in ARMS:
        if (runs / "copy" / name / "results.json").is_file():
            take_over(runs, f"copy/{name}", DATA)
    for name in (*ARMS, *DEEP):
        if not (runs / name / "results.json").is_file():
            continue
        results = take_over(runs, name, DATA)
        trained, context = zoo.load(runs / name), results["recipe"]["context"]
        ids = corpus(results["dataset"], "test", zoo.tokenizer(trained))[0]
        ids = ids[: SEQUENCES * context].long().view(SEQUENCES, context)
        torch.manual_seed(results["recipe"]["seed"])
        drawn = zoo.load(name, pretrained=False, **log.read(runs / name / log.FILE)[0]["model_args"])
        models = {"start": drawn, "trained": trained}
        profiles = {when: asdict(analysis.depth_profile(model, ids)) for when, model in models.items()}
        write_json(DATA / name / "depth.json", profiles)


def _choice(path: Path) -> dict[str, Any]:
    """What the log of a run says by which the recipe was chosen; `validation` None where it did not come to its end."""
    rows = log.read(path)
    loss = [row["loss"] for row in rows if "loss" in row][-1]
    facts = {"name": rows[0]["name"], "steps": rows[-1]["step"], "recipe": rows[0]["recipe"], "training_loss": loss}
    return {**facts, "validation": rows[-1].get("validation")}


if __name__ == "__main__":
    command(__doc__, PAGE, page, collect, picture)()
