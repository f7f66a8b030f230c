"""Learning from pictures with their classes: the model, its first weights, the data, loss and figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo import hub, registry
from zoo.data import ImageArrays, open_dataset
from zoo.data.augment import to_device
from zoo.data.preprocessing import Preprocessing
from zoo.errors import UsageError
from zoo.loading import facts, load
from zoo.training import result
from zoo.training.augmentation import augmented
from zoo.training.evaluate import evaluate
from zoo.training.job import Job
from zoo.training.recipes import ImageRecipe, of_kind
from zoo.training.task import Task

# Arguments of an architecture that decide the shape of its weights in a way that loading can adapt.
_ADAPTED = ("img_size", "in_chans")


class ImageTask(Task):
    """Pictures of an image set and their classes; cross-entropy, and the share of right answers."""

    library: ClassVar[str] = "timm"
    samples: ClassVar[str] = "pictures"
    unit: ClassVar[str] = "images"
    split: ClassVar[str] = "test"

    def __init__(self, job: Job, *, resumed: bool = False) -> None:
        self.job, self.recipe = job, of_kind(ImageRecipe, job.recipe, job.recipe_name, job.name)
        self.model, self.data, self.test = model_and_data(job, resumed=resumed)
        self.preprocessing = Preprocessing.of(self.model)
        self.size, self.repeats = len(self.data), self.recipe.repeats
        self.data_facts = {
            "labels": list(self.data.labels),
            "pictures": self.size,
            "sha256": self.data.sha256(),
            "test": self.test.sha256(),
        }

    def to(self, device: torch.device) -> None:
        """Move the pictures to learn from."""
        self.data = self.data.to(device)

    def describe(self) -> str:
        """Such as "mnist: 60000 training and 10000 test pictures, 10 classes"."""
        sizes = f"{self.size} training and {len(self.test)} test pictures"
        return f"{self.job.dataset}: {sizes}, {len(self.data.labels)} classes"

    def difference(self, found: Mapping[str, Any]) -> str:
        """Classes, number, the pictures themselves, or those to test on."""
        if found["labels"] != self.data_facts["labels"]:
            first = ", ".join(found["labels"][:5])
            return f"its classes were {len(found['labels'])} ({first}), other ones than now"
        if found["pictures"] != self.size:
            return f"it had {found['pictures']} training pictures, now {self.size}"
        if found["sha256"] != self.data_facts["sha256"]:
            return "its pictures, their order or their classes were others"
        return "its test pictures were others"

    def loss(self, model: nn.Module, index: Tensor, generator: torch.Generator) -> Tensor:
        """Cross-entropy in nats of the pictures `index`, augmented."""
        index = to_device(index, self.data.images.device)
        images, targets = augmented(
            self.data.images[index],
            self.data.targets[index],
            len(self.data.labels),
            self.recipe,
            self.preprocessing,
            generator,
        )
        # Soft targets are smoothed already.
        smoothing = 0.0 if targets.is_floating_point() else self.recipe.label_smoothing
        return nn.functional.cross_entropy(model(images).float(), targets, label_smoothing=smoothing)

    def figures(self) -> dict[str, Any]:
        """Of the test set, or of what is held out of the training set."""
        return evaluate(self.model, self.test).to_dict()

    def headline(self, figures: Mapping[str, Any]) -> str:
        """Top-1 and loss."""
        return f"top-1 {figures['top1']:.2f} %, loss {figures['loss']:.4f}"

    def save(self, folder: Path) -> None:
        """Weights and timm's configuration."""
        result.save_weights(self.model, folder / hub.WEIGHTS_FILE, getattr(torch, self.recipe.storage))
        result.save_config(self.model, folder / "config.json")

    def results(self, folder: Path) -> dict[str, Any]:
        """The test set's figures, or those of what was held out."""
        return {
            "labels": list(self.test.labels),
            "split": "held-out training pictures" if self.recipe.holdout else "test",
            **evaluate(load(str(folder.resolve())), self.test).to_dict(),
        }


def model_and_data(job: Job, *, resumed: bool = False) -> tuple[nn.Module, ImageArrays, ImageArrays]:
    """The model in training mode, the pictures to learn from, and those to test on.

    `resumed`: a checkpoint will bring the weights, so those of `job.init` are not asked for.

    Raises
    ------
    NotFoundError, DamagedError, UsageError
        What `zoo.load` and `zoo.data.open_dataset` raise; weights to start from that are another architecture's.
    """
    recipe = of_kind(ImageRecipe, job.recipe, job.recipe_name, job.name)
    arguments = dict(job.model_args)
    if recipe.drop_path is not None:
        arguments.setdefault("drop_path_rate", recipe.drop_path)
    torch.manual_seed(recipe.seed)
    try:
        model = load(job.name, pretrained=False, **arguments)
    except UsageError as error:
        if not job.model_args:
            raise
        raise UsageError(f"{error}; settings of a recipe are {', '.join(recipe.__struct_fields__)}") from error
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
