"""What every training of a language model starts from, and the part of its folder that transformers reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from zoo import hub
from zoo.data.tokenizers import tokenizer_of
from zoo.errors import UsageError
from zoo.files import write_json
from zoo.loading import load
from zoo.modes import check_context
from zoo.training import result
from zoo.training.job import Job
from zoo.training.recipes import TextRecipe, of_kind
from zoo.training.task import Task


def language_model(
    job: Job, recipe: TextRecipe, tokenizer: PreTrainedTokenizerFast | None = None, *, resumed: bool
) -> Any:
    """The job's model in training mode, its weights drawn from the recipe's seed or those of `job.init`.

    `resumed`: a checkpoint will bring the weights, so those of `job.init` are not asked for.
    UsageError for a context that the model does not have, or weights to start from of another architecture or with
    another tokenizer than `tokenizer`.
    """
    torch.manual_seed(recipe.seed)
    model: Any = load(job.name, pretrained=False, **job.model_args)
    check_context(model, recipe.context)
    if job.init is not None and not resumed:
        _start_from(model, job, tokenizer)
    if not recipe.fused_attention:
        model.set_attn_implementation("eager")
    if recipe.checkpointing:
        model.activation_checkpointing_enable()
    return model.train()


class LanguageTask(Task):
    """What the trainings of a language model share: what they count in, and what transformers reads of the folder."""

    library: ClassVar[str] = "transformers"
    samples: ClassVar[str] = "sequences"
    unit: ClassVar[str] = "tokens"
    split: ClassVar[str] = "validation"

    def __init__(self, job: Job) -> None:
        self.job, self.recipe = job, of_kind(TextRecipe, job.recipe, job.recipe_name, job.name)
        self.per_sample = self.recipe.context

    def save(self, folder: Path) -> None:
        """Weights, configuration and generation defaults, each atomically."""
        model: Any = self.model
        result.save_weights(model, folder / hub.WEIGHTS_FILE, getattr(torch, self.recipe.storage))
        architecture = {"architectures": [type(model).__name__], "dtype": self.recipe.storage}
        write_json(folder / "config.json", model.config.to_diff_dict() | architecture)
        write_json(folder / "generation_config.json", model.generation_config.to_diff_dict())

    def read_back(self, folder: Path) -> nn.Module:
        """The model as `folder` has it, where it was trained: elsewhere figures could take longer than others wait."""
        return load(str(folder.resolve()), device=next(self.model.parameters()).device)


# Of a configuration: what changes nothing of what given weights compute, or may be another while they are trained on.
_NO_MATTER = {
    *("_name_or_path", "architectures", "dtype", "transformers_version", "zoo"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "attention_dropout", "max_position_embeddings"),
}


def _start_from(model: nn.Module, job: Job, tokenizer: PreTrainedTokenizerFast | None) -> None:
    assert job.init is not None
    origin = load(job.init)
    source, own = origin.state_dict(), model.state_dict()
    shapes = [{key: value.shape for key, value in state.items()} for state in (own, source)]
    strange = [key for key in {**own, **source} if shapes[0].get(key) != shapes[1].get(key)]
    if strange:
        raise UsageError(
            f"the weights of {job.init} are no start for {job.name}: they differ in {strange[0]}, for one; those of an"
            " earlier training of it would be"
        )
    configs: list[Any] = [origin.config, model.config]
    was, here = (config.to_dict() for config in configs)
    for key in sorted(here.keys() - _NO_MATTER):
        if was.get(key) != here[key]:
            one, other = json.dumps(was.get(key)), json.dumps(here[key])
            raise UsageError(
                f"the weights of {job.init} were trained with {key}={one}, {job.name} has {other} here; --set"
                f" {key}={one} would be right"
            )
    if tokenizer is not None:
        theirs, ours = (one.backend_tokenizer.to_str() for one in (tokenizer_of(origin, job.data_dir), tokenizer))
        if theirs != ours:
            raise UsageError(f"the weights of {job.init} learned with another tokenizer than {job.name} has here")
    model.load_state_dict(source)
