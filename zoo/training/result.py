"""The folder a training ends in: weights, configuration, card, results. It is what the Hub will hold."""

from __future__ import annotations

import json
import platform
import shlex
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
import torch
from timm.models._hub import save_config_for_hf
from torch import nn

import zoo
from zoo import hub
from zoo.errors import DamagedError, UsageError
from zoo.files import atomic, write_json, write_text
from zoo.loading import facts
from zoo.models._build import OWN_FACTS
from zoo.training import log
from zoo.training.card import card
from zoo.training.task import Task

FILE = "results.json"
# What a finished folder holds; of a language model the last three too.
FILES = (
    *(hub.WEIGHTS_FILE, "config.json", "README.md", FILE, log.FILE),
    *("generation_config.json", *hub.TOKENIZER_FILES),
)


def write(task: Task, *, steps: int, seconds: float, device: str) -> None:
    """Write the finished folder. `results.json` comes last and is measured on the model as it is read back."""
    job = task.job
    folder = job.folder
    task.save(folder)
    shared = replace(job, data=job.public_data, init=job.public_init)
    training = shlex.join(shared.command())
    data = [] if shared.data is None else ["--data", shared.data]
    evaluation = shlex.join(["zoo", "eval", str(folder), *data])
    figures = task.results(folder)
    held_out = figures["split"] not in ("test", "validation")
    document = {
        "name": job.name,
        "dataset": shared.dataset,
        **figures,
        "command": training if held_out else evaluation,  # a slice that was held out is measured there alone
        "trained_by": training,
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "sha256": hub.sha256_of(folder / hub.WEIGHTS_FILE),
        "bytes": (folder / hub.WEIGHTS_FILE).stat().st_size,
        "model_args": job.model_args,
        "recipe_name": job.recipe_name,
        "recipe": msgspec.to_builtins(job.recipe),
        "steps": steps,
        "training_seconds": round(seconds, 1),
        "environment": {
            "zoo": zoo.__version__,
            "torch": torch.__version__,
            task.library: version(task.library),
            "python": platform.python_version(),
            "device": device,
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


def save_weights(model: nn.Module, path: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write the state dict as safetensors in `dtype`, atomically, with the metadata that other loaders look for.

    A weight that has two names is stored under its first; `zoo.load` and transformers tie the other to it.
    """
    # One key only: several are written in a random order, and the hash of equal weights would differ.
    metadata = {"format": "pt"}
    others = dict(model.named_parameters(remove_duplicate=False)).keys() - dict(model.named_parameters()).keys()
    tensors = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
        for name, tensor in model.state_dict().items()
        if name not in others
    }
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UsageError(f"{name} has values beyond the range of {tensor.dtype}; add --set storage=float32")
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
