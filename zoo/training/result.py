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
from zoo.training.material import Job

FILE = "results.json"
FILES = (hub.WEIGHTS_FILE, "config.json", "README.md", FILE, "log.jsonl")


def write(job: Job, model: nn.Module, test: ImageArrays, *, steps: int, seconds: float, device: str) -> None:
    """Write the finished folder. `results.json` comes last and is measured on the model as it is read back."""
    folder, recipe = job.folder, job.recipe
    save_weights(model, folder / hub.WEIGHTS_FILE, getattr(torch, recipe.storage))
    save_config(model, folder / "config.json")
    figures = evaluate(load(str(folder.resolve())), test)
    data = [] if job.data is None else ["--data", job.data]
    document = {
        "name": job.name,
        "dataset": job.dataset,
        "split": "held-out training pictures" if recipe.holdout else "test",
        **figures.to_dict(),
        "command": shlex.join(["zoo", "eval", str(folder), *data]),
        "trained_by": training_command(job),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "sha256": hub.sha256_of(folder / hub.WEIGHTS_FILE),
        "bytes": (folder / hub.WEIGHTS_FILE).stat().st_size,
        "model_args": job.model_args,
        "recipe_name": job.recipe_name,
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


def training_command(job: Job) -> str:
    """The command that trains this again: recipe, data and start where they are not the entry's, and every setting."""
    usual = msgspec.to_builtins(recipes.recipe(job.recipe_name))
    changed = {key: value for key, value in msgspec.to_builtins(job.recipe).items() if value != usual[key]}
    changed |= job.model_args
    other = job.recipe_name if job.recipe_name != registry.get(job.name).recipe else None
    options = {"--recipe": other, "--data": job.data, "--init": job.init}
    words = [word for key, value in options.items() if value is not None for word in (key, value)]
    return shlex.join(
        ["zoo", "train", job.name, *words, *(f"--set={key}={json.dumps(changed[key])}" for key in changed)]
    )


def read(folder: Path) -> dict[str, Any]:
    """What `results.json` in `folder` says."""
    try:
        return json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DamagedError(f"{folder / FILE} cannot be read: {error}") from None


def save_weights(model: nn.Module, path: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write the state dict as safetensors in `dtype`, atomically, with the metadata that other loaders look for."""
    metadata = {"format": "pt", "zoo_version": zoo.__version__}
    tensors = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
        for name, tensor in model.state_dict().items()
    }
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
