"""The folder a training ends in: weights, configuration, card, results. It is what the Hub will hold."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
import timm
import torch
from timm.models._hub import save_config_for_hf
from torch import nn

import zoo
from zoo import hub, registry
from zoo.data import ImageArrays
from zoo.errors import DamagedError
from zoo.files import atomic, write_json, write_text
from zoo.loading import load
from zoo.models._build import OWN_FACTS
from zoo.training.evaluate import evaluate
from zoo.training.recipes import Recipe

FILE = "results.json"
FILES = ("model.safetensors", "config.json", "README.md", FILE, "log.jsonl")


def write(
    folder: Path,
    model: nn.Module,
    name: str,
    recipe: Recipe,
    dataset: str,
    test: ImageArrays,
    *,
    steps: int,
    seconds: float,
) -> None:
    """Write the finished folder. `results.json` comes last and is measured on the model as it is read back."""
    save_weights(model, folder / "model.safetensors")
    save_config(model, name, dataset, folder / "config.json")
    figures = evaluate(load(str(folder.resolve())), test)
    document = {
        "name": name,
        "dataset": dataset,
        "split": "test",
        **figures.to_dict(),
        "command": f"zoo eval {name}",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "sha256": hub.sha256_of(folder / "model.safetensors"),
        "bytes": (folder / "model.safetensors").stat().st_size,
        "recipe": msgspec.to_builtins(recipe),
        "steps": steps,
        "training_seconds": round(seconds, 1),
        "environment": {
            "zoo": zoo.__version__,
            "torch": torch.__version__,
            "timm": timm.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
        },
    }
    write_text(folder / "README.md", card(document))
    write_json(folder / FILE, document)


def read(folder: Path) -> dict[str, Any]:
    """What `results.json` in `folder` says."""
    try:
        return json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DamagedError(f"{folder / FILE} cannot be read: {error}") from None


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the state dict as safetensors, atomically, with the metadata that other loaders look for."""
    metadata = {"format": "pt", "zoo_version": zoo.__version__}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with atomic(path) as temporary:
        safetensors.torch.save_file(tensors, temporary, metadata=metadata)


def save_config(model: nn.Module, name: str, dataset: str, path: Path) -> None:
    """Write `config.json` in timm's form, what timm has no field for under the key "zoo"."""
    own = {key: model.pretrained_cfg.pop(key, None) for key in OWN_FACTS}
    try:
        with atomic(path) as temporary:
            save_config_for_hf(model, str(temporary))
            config = json.loads(temporary.read_text(encoding="utf-8"))
            # transformers hands num_classes to timm itself; a second one among the arguments makes it fail.
            config.get("model_args", {}).pop("num_classes", None)
            config["zoo"] = {"name": name, "dataset": dataset, "framing": own.get("framing")}
            temporary.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    finally:
        model.pretrained_cfg.update(own)


def card(results: dict[str, Any]) -> str:
    """The model card: metadata for the Hub, what the model is, how it was made, what was measured and how."""
    entry = registry.get(results["name"])
    recipe = results["recipe"]
    settings = ", ".join(f"{key} {value}" for key, value in recipe.items() if key not in ("log_every", "save_every"))
    paper = f"\nThe source's figure: {entry.paper.figure} ({entry.paper.source}).\n" if entry.paper else ""
    return f"""---
license: apache-2.0
library_name: timm
pipeline_tag: image-classification
tags:
- attention-zoo
- {entry.mechanism}
datasets:
- {"ylecun/mnist" if results["dataset"] == "mnist" else results["dataset"]}
metrics:
- accuracy
model-index:
- name: {results["name"]}
  results:
  - task:
      type: image-classification
    dataset:
      name: {results["dataset"]}
      type: {results["dataset"]}
      split: {results["split"]}
    metrics:
    - type: accuracy
      value: {results["top1"] / 100:.4f}
---
# {results["name"]}

{entry.summary[0].upper() + entry.summary[1:]}.

| what | figure | measured by |
| --- | --- | --- |
| top-1 on {results["dataset"]} {results["split"]} | {results["top1"]:.2f} % ({results["correct"]} of {results["total"]}) | `{results["command"]}` |
| cross-entropy | {results["loss"]:.4f} nats | the same |
| parameters | {results["parameters"]:,} | `zoo info {results["name"]}` |
{paper}
## Use

```python
import zoo

model = zoo.load("{results["name"]}")
zoo.predict(model, "picture.png")  # [(label, probability), ...]
```

## Training

`zoo train {results["name"]}`: recipe `{entry.recipe}` ({settings}), {results["steps"]} steps in
{results["training_seconds"]:.0f} s with torch {results["environment"]["torch"]} on {results["environment"]["threads"]} CPU threads.
The log is in `log.jsonl`, all figures in `results.json`.
"""
