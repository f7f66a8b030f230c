"""What a training starts from: the model, its first weights, and the pictures to learn from and to test on."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from zoo import registry
from zoo.data import ImageArrays, open_dataset
from zoo.data.preprocessing import Preprocessing
from zoo.errors import UsageError
from zoo.loading import facts, load
from zoo.training.job import Job
from zoo.training.recipes import Recipe

# Arguments of an architecture that decide the shape of its weights in a way that loading can adapt.
_ADAPTED = ("img_size", "in_chans")


def model_and_data(job: Job, *, resumed: bool = False) -> tuple[nn.Module, ImageArrays, ImageArrays]:
    """The model in training mode, the pictures to learn from, and those to test on.

    `resumed`: a checkpoint will bring the weights, so those of `job.init` are not asked for.

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
    try:
        model = load(job.name, pretrained=False, **arguments)
    except UsageError as error:
        if not job.model_args:
            raise
        raise UsageError(f"{error}; settings of a recipe are {', '.join(Recipe.__struct_fields__)}") from error
    preprocessing = Preprocessing.of(model)
    data, test = (
        open_dataset(job.dataset, split, job.data_dir, pixels=preprocessing.pixels) for split in ("train", "test")
    )
    if recipe.holdout:
        data, test = _hold_out(data, recipe.holdout)
    data = data.first(recipe.samples or len(data))
    held, taken = tuple(data.images.shape[1:]), tuple(preprocessing.input_size)
    if held != taken:
        raise UsageError(
            f"{job.dataset} holds pictures of {held} (channels, height, width), the model takes {taken}; a folder of"
            " pictures, --data imagefolder:DIR, is brought to the model's size"
        )
    side = min(taken[1:])
    if recipe.shift >= side:
        raise UsageError(f"shift {recipe.shift} moves pictures of {side} pixels out of themselves; {side - 1} at most")
    if len(data.labels) != model.num_classes:
        if job.data is None or "num_classes" in arguments:
            raise UsageError(f"{job.dataset} has {len(data.labels)} classes, the model {model.num_classes}")
        torch.manual_seed(recipe.seed)
        model = load(job.name, pretrained=False, **{**arguments, "num_classes": len(data.labels)})
    if job.data is not None:
        named = job.data if job.data == registry.get(job.name).dataset else None  # a path says nothing to others
        facts(model).update(dataset=named, label_names=list(data.labels), num_classes=len(data.labels))
    if job.init is not None and not resumed:
        _start_from(model, job)
    if not recipe.fused_attention:
        unfuse_attention(model)
    return model.train(), data, test


def unfuse_attention(model: nn.Module) -> None:
    """Let timm's attentions in `model` compute two products and a softmax, whose backward is faster on a CPU."""
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False  # type: ignore[assignment]


def _hold_out(data: ImageArrays, count: int) -> tuple[ImageArrays, ImageArrays]:
    kept = len(data) - count
    if kept < 1:
        raise UsageError(f"holdout {count} leaves nothing of the {len(data)} training pictures")
    return data.first(kept), ImageArrays(data.images[kept:], data.targets[kept:], data.labels)


def _start_from(model: nn.Module, job: Job) -> None:
    """Load the weights of `job.init`, all but the head where it has other classes, in number or by name."""
    assert job.init is not None
    arguments = {**registry.get(job.name).arguments, **job.model_args}
    origin = load(job.init, **{key: value for key, value in arguments.items() if key in _ADAPTED})
    source, own = origin.state_dict(), model.state_dict()
    head = f"{facts(model)['classifier']}."
    theirs, ours = (list(facts(one).get("label_names") or ()) for one in (origin, model))
    others = bool(theirs and ours and theirs != ours)
    new = {
        key for key in own if key.startswith(head) and key in source and (others or own[key].shape != source[key].shape)
    }
    strange = [key for key in own if key not in new and (key not in source or own[key].shape != source[key].shape)]
    if strange or source.keys() - own.keys():
        first = (strange or sorted(source.keys() - own.keys()))[0]
        raise UsageError(
            f"the weights of {job.init} are no start for {job.name}: they differ in {first}, for one; those of its twin"
            " or of an earlier training of it would be"
        )
    model.load_state_dict({key: own[key] if key in new else value for key, value in source.items()})


def refuse_reserved(model_args: Mapping[str, Any]) -> None:
    """UsageError for a setting that is no argument of an architecture, but one of `zoo.load` itself."""
    reserved = set(inspect.signature(load).parameters) - {"model_args"}
    for key in sorted(reserved & model_args.keys()):
        raise UsageError(f"{key} is no setting of a recipe or an architecture; `zoo train --help` shows the options")
