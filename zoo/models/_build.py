"""What every vision architecture of the zoo shares: facts from the registry, weights through the zoo's own gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timm.models import build_model_with_cfg
from torch import nn

from zoo import hub, registry
from zoo.errors import UsageError

_SOURCES = ("file", "url", "hf_hub_id", "state_dict")
# What timm's strict configuration has no field for travels beside it, on the model and in `config.json` under "zoo".
OWN_FACTS = ("zoo_name", "dataset", "framing")


def timm_cfg(entry: registry.Entry) -> dict[str, Any]:
    """The entry's facts in the words of timm's `PretrainedCfg`."""
    pre = entry.preprocessing
    assert pre is not None  # the registry refuses an image classifier without it
    named = {"label_names": entry.labels} if entry.labels else {}
    return {
        "architecture": entry.architecture,
        "input_size": pre.input_size,
        "mean": pre.mean,
        "std": pre.std,
        "interpolation": pre.interpolation,
        "crop_pct": pre.crop_pct,
        "crop_mode": pre.crop_mode,
        "num_classes": entry.classes or len(entry.labels),
        **named,
        "license": entry.license,
    }


def own_facts(entry: registry.Entry) -> dict[str, Any]:
    """The entry's facts that timm has no words for."""
    assert entry.preprocessing is not None
    return {"zoo_name": entry.name, "dataset": entry.dataset, "framing": entry.preprocessing.framing}


def build_vision_model(
    model_cls: Callable[..., nn.Module],
    architecture: str,
    pretrained: bool,
    *,
    first_conv: str,
    classifier: str,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: dict[str, Any] | None = None,
    **kwargs: Any,
) -> nn.Module:
    """timm's `build_model_with_cfg` with the facts of the first registry entry so built, under those of the overlay.

    `pretrained=True` without a source asks the zoo's hub, like `zoo.load`, and raises what `zoo.hub.find_weights`
    raises. A configuration that timm read from a folder or the Hub is taken as it is.
    """
    overlay = dict(pretrained_cfg_overlay or {})
    own: dict[str, Any] = {}
    if not pretrained_cfg:
        entry = registry.by_architecture(architecture)
        own = own_facts(entry)
        pretrained_cfg = {**timm_cfg(entry), "first_conv": first_conv, "classifier": classifier}
        if pretrained and not any(overlay.get(source) for source in _SOURCES):
            overlay["file"] = str(hub.find_weights(entry, cache_dir=kwargs.get("cache_dir")))
    model = build_model_with_cfg(
        model_cls,
        architecture,
        pretrained,
        pretrained_cfg=pretrained_cfg,
        pretrained_cfg_overlay=overlay,
        feature_cfg={"out_indices": 3, "feature_cls": "getter"},
        **kwargs,
    )
    cfg: dict[str, Any] = {**model.pretrained_cfg, **own}
    if overlay.get("file"):
        del cfg["file"]  # where the weights lay on this machine is nobody's business later
    if cfg.get("label_names") and len(cfg["label_names"]) != getattr(model, "num_classes", None):
        del cfg["label_names"]  # the head was replaced: these labels are no longer its classes
    model.pretrained_cfg = model.default_cfg = cfg
    if hasattr(model, "patch_embed"):
        _fit_input(model, cfg)
    return model


def _fit_input(model: Any, cfg: dict[str, Any]) -> None:
    """Let the preprocessing follow a model that was built for pictures of another size or number of channels.

    UsageError for a size that is no multiple of the patch: timm's would leave out what remains at two of the edges.
    """
    shape, patch = model.patch_embed.img_size, model.patch_embed.patch_size
    if any(length % each for length, each in zip(shape, patch, strict=True)) and not model.patch_embed.dynamic_img_pad:
        raise UsageError(
            f"img_size {shape} is no multiple of the patch {patch}: the last rows or columns would never be seen"
        )
    size = (model.patch_embed.proj.in_channels, *model.patch_embed.img_size)
    if size != tuple(cfg["input_size"]):
        same = size[0] == len(cfg["mean"])
        spread = {key: cfg[key] if same else (sum(cfg[key]) / len(cfg[key]),) * size[0] for key in ("mean", "std")}
        cfg.update(spread, input_size=size)  # a framing for another size stays, and `Preprocessing` refuses it
