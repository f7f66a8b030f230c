"""Write docs/results/osa-mnist.md's tables and picture from the logs beside it.

    python scripts/figure_osa_mnist.py                collect nothing, write tables and picture from what is there
    python scripts/figure_osa_mnist.py --runs DIR     first take over logs and results of DIR/ARM and measure ||S||
    python scripts/figure_osa_mnist.py --check        write nothing; fail where a table is not what the logs say

The arms, and the command that trains each, stand in `ARMS`; train them with `--output DIR/ARM`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tables import command, save_picture, table, take_over, with_tables
from torch import Tensor, nn

import zoo
from zoo.data import open_dataset
from zoo.data.preprocessing import Preprocessing
from zoo.files import write_json
from zoo.ops import skew_norm

ROOT = Path(__file__).resolve().parent.parent
PAGE, DATA = ROOT / "docs/results/osa-mnist.md", ROOT / "docs/results/osa-mnist"
NEWTON_SCHULZ = "osa-vit-mnist-newton-schulz"
ARMS = {  # arm: label and colour
    "vit-mnist": ("ViT", "C0"),
    "vit-mnist-noskip": ("ViT, no skips", "C1"),
    "vit-mnist-noskip-nonorm": ("ViT, no skips, no norms", "C2"),
    "osa-vit-mnist": ("OSA (QR = basis-free)", "C3"),
    NEWTON_SCHULZ: ("OSA, Newton-Schulz", "C4"),
    "vit-mnist-noskip-orthogonal": ("ViT, no skips, orthogonal init", "C8"),
    "vit-mnist-noskip-nonorm-orthogonal": ("ViT, no skips, no norms, orthogonal init", "C9"),
}


def log_of(arm: str) -> list[dict[str, Any]]:
    """The lines of an arm's log."""
    return [json.loads(line) for line in (DATA / arm / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def arms_table() -> str:
    """One line an arm: the losses, the accuracy after the first and the last epoch, and its command."""
    rows = []
    for arm, (label, _) in ARMS.items():
        results = json.loads((DATA / arm / "results.json").read_text(encoding="utf-8"))
        log = log_of(arm)
        train = [row["loss"] for row in log if "loss" in row][-1]
        tests = [row["test"] for row in log if "test" in row]
        cells = [f"{train:.3f}", f"{tests[-1]['loss']:.3f}", f"{tests[0]['top1']:.2f} %", f"{results['top1']:.2f} %"]
        rows.append([label, *cells, f"`{results['trained_by']}`"])
    head = ["Arm", "train loss", "test loss", "top-1 after epoch 1", "top-1", "Trained by"]
    return table(head, rows, left=(0, 5))


def norms_table() -> str:
    """The largest ||S||_2 by layer."""
    norms = json.loads((DATA / "norms.json").read_text(encoding="utf-8"))
    layers = len(next(iter(norms.values())))
    rows = [[name, *(f"{value:.2f}" for value in values)] for name, values in norms.items()]
    return table(["Weights", *(f"layer {i}" for i in range(1, layers + 1))], rows)


def page() -> str:
    """The page with its tables written anew."""
    return with_tables(PAGE, {"arms": arms_table(), "norms": norms_table()})


def picture() -> None:
    """Train and test loss of all arms."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "osa-mnist"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for arm, (label, colour) in ARMS.items():
        log, style = log_of(arm), "--" if arm.endswith("orthogonal") else "-"
        train = [(row["epoch"], row["loss"]) for row in log if "loss" in row]
        test = [(row["epoch"], row["test"]["loss"]) for row in log if "test" in row]
        axes[0].plot(*zip(*train, strict=True), style, color=colour, linewidth=1.2, label=label)
        axes[1].plot(*zip(*test, strict=True), style, color=colour, marker="o", markersize=3, linewidth=1.2)
    for axis, title in zip(axes, ("training loss (mean of 50 steps)", "test loss"), strict=True):
        axis.set(title=title, xlabel="epoch", yscale="log")
        axis.grid(visible=True, which="both", alpha=0.2)
    axes[0].set_ylabel("cross entropy")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    save_picture(figure, PAGE.with_suffix(".svg"))


@torch.no_grad()
def largest_norms(model: nn.Module, images: Tensor) -> list[float]:
    """The largest ||S||_2 of every layer, over all heads and `images`."""
    found: list[float] = []

    def watch(attention: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0]
        q, k, _ = (
            attention.qkv(x).unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # type: ignore[operator]
        )
        found.append(float(skew_norm(q, k, attention.alpha).max()))  # type: ignore[arg-type]

    hooks = [block.attn.register_forward_pre_hook(watch) for block in model.blocks]  # type: ignore[union-attr]
    model(images)
    for hook in hooks:
        hook.remove()
    return found


def collect(runs: Path) -> None:
    """Take over logs and results of the arms, and measure ||S|| before and after training."""
    for arm in ARMS:
        take_over(runs, arm, DATA)
    torch.manual_seed(0)
    models = {
        "at initialisation (seed 0)": zoo.load("osa-vit-mnist", pretrained=False),
        "after 6 epochs": zoo.load(runs / "osa-vit-mnist"),
        "after 6 epochs, Newton-Schulz": zoo.load(runs / NEWTON_SCHULZ),
        "the published weights, 16 epochs": zoo.load("osa-vit-mnist"),
    }
    images = Preprocessing.of(models["after 6 epochs"]).normalize(open_dataset("mnist", "test").first(2000).images)
    write_json(DATA / "norms.json", {name: largest_norms(model, images) for name, model in models.items()})


if __name__ == "__main__":
    command(__doc__, PAGE, page, collect, picture)()
