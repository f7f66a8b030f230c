"""A name, a folder or a Hub id -> a model with its verified weights."""

from __future__ import annotations

import json
import os
import re
import textwrap
import warnings
from pathlib import Path
from typing import Any, cast

import msgspec
import timm
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from zoo import hub, registry
from zoo.errors import DamagedError, DeviceError, NotFoundError, UsageError, ZooError
from zoo.models import _language
from zoo.models._build import OWN_FACTS, own_facts, timm_cfg

HUB_PREFIX = "hf-hub:"


class _Shown(msgspec.Struct, kw_only=True):
    """What a stranger's `pretrained_cfg` says of pictures and classes, where it says it, in types that can be meant."""

    input_size: tuple[registry.Size, registry.Size, registry.Size] | None = None
    mean: tuple[float, ...] | float | None = None
    std: tuple[registry.Above, ...] | registry.Above | None = None
    crop_pct: registry.Above | None = None
    interpolation: str | None = None
    num_classes: int | None = None
    label_names: list[str] | dict[str, str] | None = None


def load(
    name: str | Path,
    *,
    pretrained: bool = True,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    revision: str | None = None,
    verify: bool = True,
    local_files_only: bool = False,
    cache_dir: str | Path | None = None,
    **model_args: Any,
) -> nn.Module:
    """Build a model and load its weights, verified against the registry; in eval mode.

    Parameters
    ----------
    name : a registry name (always means the registry), a folder as `zoo train` writes it, or
        "hf-hub:org/name@revision".
    pretrained : False gives the architecture with its own initialisation.
    dtype : of the parameters; weights stored in half precision come up in it too.
    device : "cpu", "cuda", "cuda:1", "mps".
    revision : another commit of the Hub's repository than the registry's.
    verify : compare the file's sha256 with the registry's; a folder or a Hub id of your own has none to compare with.
    local_files_only, cache_dir : stay offline; another place for the cache.
    model_args : arguments of the architecture, such as `num_classes=5` or `max_norm=16.0`.

    Raises
    ------
    NotFoundError
        Unknown name (with the three nearest), missing folder, no weights.
    DamagedError
        The weights are not what the registry means, or do not fit.
    UsageError
        An argument that the architecture does not know; a bare weights file, whose preprocessing nobody knows.
    DeviceError
        The device is not there.

    Warns
    -----
    UserWarning
        `num_classes` is not that of the weights, so that the head has none of them.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"dtype has to be a floating-point torch.dtype such as torch.float32, got {dtype!r}")
    place = resolve_device(device)
    text = str(name)
    if text.startswith(HUB_PREFIX):
        folder = _hub_folder(text.removeprefix(HUB_PREFIX), revision, pretrained, local_files_only, cache_dir)
        model = _from_folder(folder, pretrained, model_args)
    elif text not in registry.entries() and text.strip() and os.path.isdir(text):
        if revision is not None:
            raise UsageError(f"a folder such as {text} has no revisions; only what comes from the Hub has")
        model = _from_folder(Path(text), pretrained, model_args)
    elif os.path.isfile(text):
        raise UsageError(f"{text} is a single file, which says nothing of its preprocessing; name its folder")
    elif "/" in text or "\\" in text:
        raise NotFoundError(f"there is no folder {text}; for the Hub write {HUB_PREFIX}org/name")
    else:
        entry = registry.get(text)
        path = None
        if pretrained:
            path = hub.find_weights(
                entry,
                revision=revision,
                verify=verify,
                local_files_only=local_files_only,
                cache_dir=cache_dir,
                beside=("config.json", *hub.TOKENIZER_FILES) if entry.task == "text-generation" else (),
            )
        model = _from_entry(entry, path, model_args)
    had, has = facts(model).get("num_classes"), getattr(model, "num_classes", None)
    if pretrained and has and has != had:
        warnings.warn(
            f"the head of {facts(model)['zoo_name']} was replaced: {has} classes instead of {had}, not trained",
            stacklevel=2,
        )
    return model.to(device=place, dtype=dtype).eval()


def facts(model: nn.Module) -> dict[str, Any]:
    """What travels with a model: `zoo_name` and `dataset`; with an image model timm's words and `framing` too.

    It is `model.pretrained_cfg` of an image model, `model.config.zoo` of a language model.
    """
    cfg: Any = getattr(model, "pretrained_cfg", None)
    config: Any = getattr(model, "config", None)
    return cast(dict[str, Any], config.zoo if cfg is None and config is not None else model.pretrained_cfg)


def resolve_device(device: str | torch.device) -> torch.device:
    """`device` as torch knows it, once it is certain that it is there; else a DeviceError, never another device."""
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        raise DeviceError(f"unknown device {str(device)!r}; use cpu, cuda, cuda:N or mps") from None
    index = place.index or 0
    if place.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise DeviceError(f"no CUDA device is available for {str(device)!r}; `zoo env` says what is, or use cpu")
        if index >= count:
            raise DeviceError(f"there is no device cuda:{index}; this machine has cuda:0 to cuda:{count - 1}")
    elif place.type == "mps":
        if not torch.backends.mps.is_available() or index:
            raise DeviceError(f"no device {str(device)!r} is available; `zoo env` says what is, or use cpu")
    elif place.type != "cpu":
        raise DeviceError(f"device {str(device)!r} is not supported; use cpu, cuda, cuda:N or mps")
    return place


def _from_entry(entry: registry.Entry, path: Path | None, model_args: dict[str, Any]) -> nn.Module:
    if entry.task == "text-generation":
        model = _language.from_entry(entry, model_args)
        if path is not None:
            _fill(model, path)
            if (path.parent / "config.json").is_file():
                _language.take_over(model, _config(path.parent))
        return model
    overlay = timm_cfg(entry) | ({} if path is None else {"file": str(path)})
    arguments = {**entry.arguments, **model_args}
    model = _create(entry.architecture, path is not None, arguments, pretrained_cfg_overlay=overlay)
    facts(model).update(own_facts(entry))
    return model


def _fill(model: nn.Module, path: Path) -> None:
    _check_types(model, path)
    _language.fill(model, path)


def _from_folder(folder: Path, pretrained: bool, model_args: dict[str, Any]) -> nn.Module:
    config = _config(folder)
    if pretrained:
        if (folder / f"{hub.WEIGHTS_FILE}.index.json").is_file():
            raise NotFoundError(
                f"the weights in {folder} lie in several files, which only transformers reads; in one file they can be"
                ' loaded here: AutoModelForCausalLM.from_pretrained(...).save_pretrained(..., max_shard_size="100GB")'
            )
        hub.check_safetensors(folder / hub.WEIGHTS_FILE)
    language = _language.is_language(config)
    try:
        if language:
            model: nn.Module = _language.from_config(folder, config, model_args)
        else:
            model = _create(f"local-dir:{folder}", pretrained, model_args, shown=config["architecture"])
    except UsageError as error:
        if model_args:
            raise
        raise DamagedError(f"{folder / 'config.json'} describes no model: {error}") from error
    if language:
        if pretrained:
            _fill(model, folder / hub.WEIGHTS_FILE)
        return model
    if pretrained:
        _check_types(model, folder / hub.WEIGHTS_FILE)
    own = dict(config.get("zoo", {}))
    if not registry.is_name(own.get("zoo_name")):  # it becomes part of paths; a stranger's file may hold anything
        own["zoo_name"] = folder.resolve().name
    facts(model).update({key: own.get(key) for key in OWN_FACTS})
    return model


def _config(folder: Path) -> dict[str, Any]:
    """What `config.json` in `folder` says, in transformers' form or in timm's."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if _language.is_language(config):
            _language.own_of(config)
            return config
        cfg, architecture = config["pretrained_cfg"], config["architecture"]
        if not isinstance(architecture, str) or not isinstance(cfg, dict):
            raise TypeError("architecture is a text and pretrained_cfg a mapping")
        if not isinstance(config.get("model_args", {}), dict) or not isinstance(config.get("zoo", {}), dict):
            raise TypeError("model_args and zoo are mappings")
        msgspec.convert({key: cfg[key] for key in _Shown.__struct_fields__ if cfg.get(key) is not None}, _Shown)
        named, classes = cfg.get("label_names"), cfg.get("num_classes")
        if named is not None and classes is not None and len(named) != classes:
            raise ValueError(f"{len(named)} label_names for {classes} classes")
        if not timm.is_model(architecture):
            raise ValueError(f"there is no architecture {architecture!r}")
        return config
    except FileNotFoundError:
        if (folder / "checkpoint.pt").is_file():
            raise NotFoundError(f"the training in {folder} is not finished; `zoo train ... --resume` goes on") from None
        raise NotFoundError(f"{folder} holds no config.json; a folder as `zoo train` writes it is needed") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} is no model configuration ({type(error).__name__}: {error})") from None


def _check_types(model: nn.Module, path: Path) -> None:
    """DamagedError where `path` has whole numbers for weights: quantised ones, which a cast would turn into others."""
    state = model.state_dict()
    with safe_open(path, framework="pt") as file:
        kinds = {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118
    for key, kind in kinds.items():
        if key in state and state[key].is_floating_point() and not kind.startswith(("F", "BF")):
            raise DamagedError(f"{path} holds {key} as {kind}; weights are floating-point numbers, not quantised ones")


def _create(name: str, pretrained: bool, model_args: dict[str, Any], shown: str = "", **kwargs: Any) -> nn.Module:
    """timm's `create_model`, its errors turned into lines for the person at the keyboard."""
    shown = shown or name
    if "checkpoint_path" in model_args:
        raise UsageError("checkpoint_path is none of these arguments; name the folder that holds the weights instead")
    classes = model_args.get("num_classes", 0)
    if classes is not None and (not isinstance(classes, int) or classes < 0):
        raise UsageError(f"num_classes has to be a whole number from 0 on, got {classes!r}")
    dropped = sorted(key for key, value in model_args.items() if value is None)
    if dropped:  # timm leaves such arguments out without a word, and the default would be taken for what was asked
        raise UsageError(f"{dropped[0]} cannot be None here; leave it out, and {shown} has its default")
    try:
        return timm.create_model(name, pretrained=pretrained, **model_args, **kwargs)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        why = f"it has no {unknown[1]!r}" if unknown else _line(error)
        raise UsageError(f"{shown} does not take these arguments: {why}") from error
    except ZooError:
        raise
    except (AssertionError, ValueError, LookupError, AttributeError) as error:
        raise UsageError(f"{shown} cannot be built with {model_args}: {_line(error)}") from error
    except SafetensorError as error:
        raise DamagedError(f"the weights of {shown} cannot be read: {_line(error)}; fetch them again") from error
    except RuntimeError as error:
        if pretrained:
            raise DamagedError(f"the weights do not fit {shown} built with {model_args}: {_line(error)}") from error
        raise UsageError(f"{shown}: {_line(error)}") from error


def _hub_folder(
    text: str, revision: str | None, pretrained: bool, local_files_only: bool, cache_dir: str | Path | None
) -> Path:
    repository, _, pinned = text.partition("@")

    def fetched(file: str) -> Path:
        return hub.fetch(
            repository,
            file,
            revision=revision or pinned or None,
            local_files_only=local_files_only,
            cache_dir=cache_dir,
        )

    folder = fetched("config.json").parent
    if pretrained:
        fetched(hub.WEIGHTS_FILE)
        config = _config(folder)
        # A model of the zoo says whether it has a tokenizer; of anybody else's a folder without one is of no use here.
        if _language.is_language(config) and ("zoo" not in config or _language.own_of(config).tokenizer is not None):
            for file in hub.TOKENIZER_FILES:
                fetched(file)
    return folder


def _line(error: Exception) -> str:
    """The error on one line of bearable length."""
    return textwrap.shorten(str(error), 300, placeholder=" ...")
