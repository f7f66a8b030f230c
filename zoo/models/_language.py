"""Language models by transformers' Auto classes, facts from the registry, weights checked before anything is built."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from zoo import registry
from zoo.errors import DamagedError, UsageError, one_line
from zoo.models.decoder import DecoderConfig


class Own(msgspec.Struct, kw_only=True):
    """What travels in `config.json` under "zoo": `context` is the length of the sequences learned from."""

    zoo_name: str | None = None
    dataset: str | None = None
    tokenizer: str | None = None
    context: registry.Size | None = None


# What transformers is told beside the configuration, in which nothing of it is kept.
_HOW = ("attn_implementation",)


def from_entry(entry: registry.Entry, arguments: dict[str, Any]) -> PreTrainedModel:
    """The entry's architecture with `arguments` and its own initialisation; UsageError where they make none."""
    model = _build(entry.architecture, {**entry.arguments, **arguments}, entry.name)
    model.config.zoo = {"zoo_name": entry.name, "dataset": entry.dataset, "tokenizer": entry.tokenizer, "context": None}
    return model


def from_config(folder: Path, config: dict[str, Any], arguments: dict[str, Any]) -> PreTrainedModel:
    """The model whose `config.json` in `folder` says `config`, with `arguments` and its own initialisation."""
    kind = config["model_type"]
    dropped = ("model_type", "architectures", "transformers_version", "dtype")
    stated = {key: value for key, value in config.items() if key not in dropped}
    stated.pop("zoo", None)
    own = own_of(config)
    model = _build(str(kind), {**stated, **arguments}, str(folder), known=stated)
    named = own.zoo_name if registry.is_name(own.zoo_name) else folder.resolve().name
    model.config.zoo = {**msgspec.structs.asdict(own), "zoo_name": named}
    return model


def is_language(config: dict[str, Any]) -> bool:
    """Whether a `config.json` is a language model's: transformers' form, and none that holds timm's."""
    return isinstance(config.get("model_type"), str) and "pretrained_cfg" not in config


def take_over(model: PreTrainedModel, config: dict[str, Any]) -> None:
    """What `config`, which stands beside the weights, says of their use: their context, their special tokens."""
    model.config.zoo["context"] = own_of(config).context
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if key in config:
            setattr(model.config, key, config[key])
            setattr(model.generation_config, key, config[key])


def own_of(config: dict[str, Any]) -> Own:
    """What a `config.json` says under "zoo"; ValueError where it is of another kind."""
    return msgspec.convert(config.get("zoo") or {}, Own)


def _build(kind: str, arguments: dict[str, Any], shown: str, known: Any = ()) -> PreTrainedModel:
    how = {key: arguments.pop(key) for key in _HOW if key in arguments}
    try:
        blank = AutoConfig.for_model(kind)
    except ValueError:
        raise UsageError(f"{shown}: {kind!r} is no model type of transformers or the zoo") from None
    # Of the zoo's own kinds what they declare themselves: not what transformers keeps beside it, nor the special
    # tokens, which are the tokenizer's.
    own = isinstance(blank, DecoderConfig)
    taken = {*known, *(blank.arguments() if own else {*vars(blank), *(field.name for field in fields(blank))})}
    for key in arguments:
        if key not in taken:
            raise UsageError(f"{shown} does not take these arguments: it has no {key!r}")
    try:
        config: PreTrainedConfig = type(blank)(**arguments)
        return AutoModelForCausalLM.from_config(config, **how)
    except UsageError:
        raise
    except Exception as error:  # transformers checks what it is given in many ways
        given = {key: value for key, value in arguments.items() if key not in known}
        how_built = f" with {given}" if given else ""
        raise UsageError(f"{shown} cannot be built{how_built}: {one_line(error)[:300]}") from error


def fill(model: nn.Module, path: Path) -> None:
    """Fill `model` from a safetensors file, in which a tied weight is stored once; DamagedError where it does not fit.

    The folder is remembered, for the tokenizer that belongs to the weights is in it.
    """
    try:
        safetensors.torch.load_model(model, path)
    except (RuntimeError, safetensors.SafetensorError) as error:
        raise DamagedError(f"the weights in {path} do not fit: {one_line(error)[:300]}") from error
    model.zoo_folder = path.parent.absolute()  # type: ignore[assignment]
