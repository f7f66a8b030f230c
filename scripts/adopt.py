"""Take finished trainings into the checkout: `python scripts/adopt.py runs/osa-vit-mnist ...`.

Copies each folder to `weights/NAME/` and writes size, sha256 and measured figure into the entry in `registry.yaml`.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from zoo import hub, registry
from zoo.files import copy, write_json, write_text
from zoo.training import recipes, result
from zoo.training.card import card

ROOT = Path(__file__).resolve().parents[1]


def adopt(folder: Path) -> None:
    """Copy one finished folder and state its facts."""
    facts = json.loads((folder / result.FILE).read_text(encoding="utf-8"))
    weights = folder / "model.safetensors"
    if hub.sha256_of(weights) != facts["sha256"]:
        raise SystemExit(f"{weights} is not the file that {folder / result.FILE} was measured on")
    recipe = registry.get(facts["name"]).recipe
    words = shlex.split(facts["trained_by"])
    if "--init" in words:  # where a training starts is no part of its recipe
        start = words.index("--init")
        del words[start : start + 2]
    if words[3:] not in ([], ["--recipe", recipe]):
        raise SystemExit(f"{folder} was trained by `{facts['trained_by']}`, which is not the recipe of its entry")
    if recipes.stored(facts["recipe_name"], facts["recipe"]) != recipes.recipe(recipe):
        raise SystemExit(f"{folder} was trained by another state of recipe {facts['recipe_name']} than the present one")
    # In the checkout the entry's name means these weights, so that is what measures them from now on.
    facts["command"] = f"zoo eval {facts['name']}"
    target = ROOT / "weights" / facts["name"]
    for name in result.FILES:
        if (folder / name).is_file():
            copy(folder / name, target / name)
    write_text(target / "README.md", card(facts))
    write_json(target / result.FILE, facts)
    state(facts)


def state(facts: dict[str, object]) -> None:
    """Replace the lines `weights` and `ours` of the entry, leaving the rest of the file as it is."""
    path = ROOT / "registry.yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    start = lines.index(f"{facts['name']}:")
    end = next((i for i in range(start + 1, len(lines)) if lines[i][:1] not in ("", " ", "#")), len(lines))
    while not lines[end - 1].strip():
        end -= 1
    kept = [line for line in lines[start:end] if not line.startswith(("  weights:", "  ours:"))]
    kept.append(f"  weights: {{sha256: {facts['sha256']}, bytes: {facts['bytes']}}}")
    metric = "top1" if "top1" in facts else "perplexity"
    kept.append(f"  ours: {{metric: {metric}, value: {facts[metric]:.6g}, command: {facts['command']}}}")
    write_text(path, "\n".join([*lines[:start], *kept, *lines[end:]]) + "\n")


if __name__ == "__main__":
    if not sys.argv[1:]:
        raise SystemExit(__doc__)
    for argument in sys.argv[1:]:
        adopt(Path(argument))
