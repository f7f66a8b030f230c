"""What a training starts from: the model, its first weights, and the pictures to learn from and to test on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zoo import registry
from zoo.data import ImageArrays, open_dataset
from zoo.data.preprocessing import Preprocessing
from zoo.errors import UsageError
from zoo.loading import facts, load
from zoo.training.recipes import Recipe

# Arguments of an architecture that decide the shape of its weights in a way that loading can adapt.
_ADAPTED = ("img_size", "in_chans")


@dataclass(frozen=True)
class Job:
    """What is trained, on what, how, and where to.

    `data` is a data set's name or "imagefolder:DIR", None the entry's own; `init` whose weights it starts from, None
    the architecture's own initialisation.
    """

    name: str
    recipe: Recipe
    recipe_name: str
    model_args: dict[str, Any]
    folder: Path
    data_dir: str | Path | None = None
    data: str | None = None
    init: str | None = None

    @property
    def dataset(self) -> str:
        """The data set that is trained on; UsageError where neither the entry nor the caller names one."""
        dataset = self.data or registry.get(self.name).dataset
        if dataset is None:
            raise UsageError(
                f"{self.name} has no data set in the registry; name one with --data, such as imagefolder:DIR"
            )
        return dataset


def model_and_data(job: Job) -> tuple[nn.Module, ImageArrays, ImageArrays]:
    """The model in training mode, the pictures to learn from, and those to test on.

    Raises
    ------
    NotFoundError, DamagedError, UsageError
        What `zoo.load` and `zoo.data.open_dataset` raise; weights to start from that are another architecture's.
    """
    recipe = job.recipe
    arguments = dict(job.model_args)
    if recipe.drop_path is not None:
        arguments.setdefault("drop_path_rate", recipe.drop_path)
    torch.manual_seed(recipe.seed)
    model = load(job.name, pretrained=False, **arguments)
    pixels = Preprocessing.of(model).pixels
    data, test = (open_dataset(job.dataset, split, job.data_dir, pixels=pixels) for split in ("train", "test"))
    if recipe.holdout:
        data, test = _hold_out(data, recipe.holdout)
    data = data.first(recipe.samples or len(data))
    if len(data.labels) != model.num_classes:
        if job.data is None:
            raise UsageError(f"{job.dataset} has {len(data.labels)} classes, the model {model.num_classes}")
        torch.manual_seed(recipe.seed)
        model = load(job.name, pretrained=False, **{**arguments, "num_classes": len(data.labels)})
    if job.data is not None:
        named = job.data if job.data == registry.get(job.name).dataset else None  # a path says nothing to others
        facts(model).update(dataset=named, label_names=list(data.labels))
    if job.init is not None:
        _start_from(model, job)
    for module in model.modules():
        if not recipe.fused_attention and hasattr(module, "fused_attn"):
            module.fused_attn = False  # type: ignore[assignment]
    return model.train(), data, test


def _hold_out(data: ImageArrays, count: int) -> tuple[ImageArrays, ImageArrays]:
    kept = len(data) - count
    if kept < 1:
        raise UsageError(f"holdout {count} leaves nothing of the {len(data)} training pictures")
    return data.first(kept), ImageArrays(data.images[kept:], data.targets[kept:], data.labels)


def _start_from(model: nn.Module, job: Job) -> None:
    """Load the weights of `job.init`, all but a head of another number of classes."""
    assert job.init is not None
    source = load(job.init, **{key: value for key, value in job.model_args.items() if key in _ADAPTED}).state_dict()
    own = model.state_dict()
    head = f"{facts(model)['classifier']}."
    new = {key for key in own if key.startswith(head) and key in source and own[key].shape != source[key].shape}
    strange = [key for key in own if key not in new and (key not in source or own[key].shape != source[key].shape)]
    if strange or source.keys() - own.keys():
        first = (strange or sorted(source.keys() - own.keys()))[0]
        raise UsageError(f"the weights of {job.init} are no start for {job.name}: they differ in {first}, for one")
    model.load_state_dict({key: own[key] if key in new else value for key, value in source.items()})
