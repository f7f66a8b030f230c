"""The one preprocessing that training, evaluation, prediction and export share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from zoo.data.digits import frame_digit
from zoo.data.images import to_mode
from zoo.errors import UsageError

_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Preprocessing:
    """From a picture to the tensor that a model's weights were trained on.

    `pixels` decides geometry and colours, `normalize` the numbers; calling does both. `framing` "digit" frames a
    handwritten digit as MNIST does (`zoo.data.digits`); None is timm's evaluation transform: resize, crop.
    """

    input_size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"
    crop_pct: float = 1.0
    crop_mode: str = "center"
    framing: str | None = None

    def __post_init__(self) -> None:
        if self.input_size[0] not in _MODES:
            raise UsageError(f"pictures have 1 or 3 channels, this model wants {self.input_size[0]}")
        if self.framing not in (None, "digit") or (self.framing and tuple(self.input_size) != (1, 28, 28)):
            raise UsageError(f"framing {self.framing!r} does not go with input_size {self.input_size}")

    @classmethod
    def of(cls, model: nn.Module) -> Preprocessing:
        """The preprocessing that belongs to the model's weights, from its `pretrained_cfg`."""
        return cls.from_config(getattr(model, "pretrained_cfg", None) or {})

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Preprocessing:
        """From a mapping with timm's names; UsageError if it does not say size, mean and standard deviation."""
        missing = [key for key in ("input_size", "mean", "std") if not config.get(key)]
        if missing:
            raise UsageError(f"nothing says the model's {missing[0]}, so its pictures cannot be prepared")
        return cls(
            input_size=tuple(config["input_size"]),
            mean=tuple(config["mean"]),
            std=tuple(config["std"]),
            interpolation=config.get("interpolation") or "bilinear",
            crop_pct=config.get("crop_pct") or 1.0,
            crop_mode=config.get("crop_mode") or "center",
            framing=config.get("framing"),
        )

    def pixels(self, image: Image.Image) -> Tensor:
        """A PIL image of any mode and size -> uint8 (channels, height, width)."""
        if self.framing == "digit":
            return torch.from_numpy(frame_digit(image)).unsqueeze(0)
        return self._geometry(to_mode(image, _MODES[self.input_size[0]]))

    def normalize(self, pixels: Tensor) -> Tensor:
        """uint8 (..., channels, height, width) -> float32 of the same shape: (x / 255 - mean) / std."""
        mean, std = (torch.tensor(part, device=pixels.device).view(-1, 1, 1) for part in (self.mean, self.std))
        return (pixels.float() / 255 - mean) / std

    def __call__(self, image: Image.Image) -> Tensor:
        """A PIL image -> float32 (channels, height, width), as the model takes it in a batch."""
        return self.normalize(self.pixels(image))

    @cached_property
    def _geometry(self) -> Any:
        from timm.data import create_transform

        return create_transform(
            input_size=self.input_size,
            interpolation=self.interpolation,
            crop_pct=self.crop_pct,
            crop_mode=self.crop_mode,
            normalize=False,
        )


def transform(model: nn.Module) -> Preprocessing:
    """The preprocessing that belongs to the model's weights: call it on a PIL image."""
    return Preprocessing.of(model)
