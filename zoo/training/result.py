"""The folder a training ends in: weights, configuration, card, results. It is what the Hub will hold."""

from __future__ import annotations

import json
import platform
import shlex
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
from zoo.loading import facts, load
from zoo.models._build import OWN_FACTS
from zoo.training import recipes
from zoo.training.card import card
from zoo.training.evaluate import evaluate
from zoo.training.recipes import Recipe

FILE = "results.json"
FILES = (hub.WEIGHTS_FILE, "config.json", "README.md", FILE, "log.jsonl")


def write(
    folder: Path,
    model: nn.Module,
    name: str,
    recipe: Recipe,
    model_args: dict[str, Any],
    dataset: str,
    test: ImageArrays,
    steps: int,
    seconds: float,
    device: str,
) -> None:
    """Write the finished folder. `results.json` comes last and is measured on the model as it is read back."""
    save_weights(model, folder / hub.WEIGHTS_FILE)
    save_config(model, folder / "config.json")
    figures = evaluate(load(str(folder.resolve())), test)
    document = {
        "name": name,
        "dataset": dataset,
        "split": "test",
        **figures.to_dict(),
        "command": f"zoo eval {folder}",
        "trained_by": training_command(name, recipe, model_args),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "sha256": hub.sha256_of(folder / hub.WEIGHTS_FILE),
        "bytes": (folder / hub.WEIGHTS_FILE).stat().st_size,
        "model_args": model_args,
        "recipe": msgspec.to_builtins(recipe),
        "steps": steps,
        "training_seconds": round(seconds, 1),
        "environment": {
            "zoo": zoo.__version__,
            "torch": torch.__version__,
            "timm": timm.__version__,
            "python": platform.python_version(),
            "device": device,
            "threads": torch.get_num_threads(),
        },
    }
    write_text(folder / "README.md", card(document))
    write_json(folder / FILE, document)


def training_command(name: str, recipe: Recipe, model_args: dict[str, Any]) -> str:
    """The command that trains this again: the entry's recipe, and every setting that differs from it."""
    usual = msgspec.to_builtins(recipes.recipe(registry.get(name).recipe))
    changed = {key: value for key, value in msgspec.to_builtins(recipe).items() if value != usual[key]} | model_args
    return shlex.join(["zoo", "train", name, *(f"--set={key}={json.dumps(changed[key])}" for key in changed)])


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


def save_config(model: nn.Module, path: Path) -> None:
    """Write `config.json` in timm's form, what timm has no field for under the key "zoo"."""
    own = {key: facts(model).pop(key, None) for key in OWN_FACTS}
    try:
        with atomic(path) as temporary:
            save_config_for_hf(model, str(temporary))
            config = json.loads(temporary.read_text(encoding="utf-8"))
            # transformers hands num_classes to timm itself; a second one among the arguments makes it fail.
            config.get("model_args", {}).pop("num_classes", None)
            if "label_names" in config["pretrained_cfg"]:  # where transformers looks for them
                config["label_names"] = config["pretrained_cfg"]["label_names"]
            config["zoo"] = own
            temporary.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    finally:
        facts(model).update(own)
