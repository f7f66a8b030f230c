"""The one preprocessing that training, evaluation, prediction and export share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any

import msgspec
import torch
from PIL import Image
from torch import Tensor, nn

from zoo.data.digits import SIDE, frame_digit
from zoo.data.images import to_mode
from zoo.errors import DamagedError, UsageError
from zoo.modes import takes_text

_MODES = {1: "L", 3: "RGB"}
_INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
_CROP_MODES = ("center", "squash", "border")
_Numbers = tuple[Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)], ...]  # bounds, so that NaN is none


@dataclass(frozen=True)
class Preprocessing:
    """From a picture to the tensor that a model's weights were trained on.

    `pixels` decides geometry and colours, `normalize` the numbers; calling does both. Pixels that a data set stores
    in the model's size need `normalize` alone, and `pixels` leaves such pictures as they are.

    Attributes
    ----------
    input_size : (channels, height, width); 1 channel is grey, 3 are RGB.
    mean, std : of each channel, of values from 0 to 1.
    interpolation, crop_pct, crop_mode : of timm's evaluation transform (resize, crop), which is used as it is.
    framing : "digit" frames a handwritten digit as MNIST does (`zoo.data.digits`), ink on paper or white on black,
        in place of timm's transform; None is timm's.
    """

    input_size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"
    crop_pct: float = 1.0
    crop_mode: str = "center"
    framing: str | None = None

    def __post_init__(self) -> None:
        size = tuple(self.input_size)
        if len(size) != 3 or size[0] not in _MODES or min(size) < 1:
            raise UsageError(f"input_size is (1 or 3 channels, height, width), got {size}")
        if len(self.mean) != size[0] or len(self.std) != size[0]:
            raise UsageError(f"mean and std have one number for each of {size[0]} channels")
        if min(self.std) <= 0:
            raise UsageError(f"std has to be above 0, got {self.std}")
        if not 0 < self.crop_pct <= 1:
            raise UsageError(f"crop_pct has to be above 0 and at most 1, got {self.crop_pct}")
        for name, value, known in (
            ("interpolation", self.interpolation, _INTERPOLATIONS),
            ("crop_mode", self.crop_mode, _CROP_MODES),
        ):
            if value not in known:
                raise UsageError(f"unknown {name} {value!r}; there are {', '.join(known)}")
        if self.framing not in (None, "digit"):
            raise UsageError(f"unknown framing {self.framing!r}; there is 'digit', or none")
        if self.framing == "digit" and size != (1, SIDE, SIDE):
            raise UsageError(f"framing 'digit' makes pictures of (1, {SIDE}, {SIDE}), the model takes {size}")

    @classmethod
    def of(cls, model: nn.Module) -> Preprocessing:
        """The preprocessing that belongs to the model's weights, from its `pretrained_cfg`.

        UsageError for a model without one, such as a language model.
        """
        if takes_text(model):
            raise UsageError("this is a language model: it takes text, not pictures")
        return cls.from_config(getattr(model, "pretrained_cfg", None) or {})

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Preprocessing:
        """From a mapping with timm's names; UsageError if it does not say size, mean and standard deviation."""
        missing = [key for key in ("input_size", "mean", "std") if not config.get(key)]
        if missing:
            raise UsageError(f"nothing says the model's {missing[0]}, so its pictures cannot be prepared")
        return cls(
            input_size=_read(config, "input_size", tuple[int, int, int]),
            mean=_read(config, "mean", _Numbers),
            std=_read(config, "std", _Numbers),
            interpolation=config.get("interpolation") or "bilinear",
            crop_pct=1.0 if config.get("crop_pct") is None else _read(config, "crop_pct", float),
            crop_mode=config.get("crop_mode") or "center",
            framing=config.get("framing"),
        )

    def pixels(self, image: Image.Image) -> Tensor:
        """A PIL image of any mode and size -> uint8 (channels, height, width); DamagedError for a blank digit."""
        if self.framing == "digit":
            framed = frame_digit(image)
            if not framed.any():
                raise DamagedError("the picture shows nothing: no stroke stands out from its background")
            return torch.from_numpy(framed).unsqueeze(0)
        return self._geometry(to_mode(image, _MODES[self.input_size[0]]))

    def normalize(self, pixels: Tensor) -> Tensor:
        """uint8 (..., channels, height, width) -> float32 of the same shape: (x / 255 - mean) / std.

        UsageError for any other dtype: what is normalised already, or scaled to 0..1, would be scaled twice.
        """
        if pixels.dtype != torch.uint8:
            raise UsageError(f"pixels are uint8, 0 to 255, got {pixels.dtype}")
        return (pixels.float() / 255 - _column(self.mean, pixels.device)) / _column(self.std, pixels.device)

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
            mean=self.mean,  # "border" fills with it
            normalize=False,
        )


def _read(config: Mapping[str, Any], key: str, kind: Any) -> Any:
    try:
        return msgspec.convert(config[key], kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"the model's {key} cannot be read: {error}") from None


@lru_cache(maxsize=32)
def _column(values: tuple[float, ...], device: torch.device) -> Tensor:
    """(channels, 1, 1) on `device`; kept, because a copy from the CPU would make every batch wait for the device."""
    with torch.inference_mode(False):  # an inference tensor could not take part in a later training
        return torch.tensor(values, device=device).view(-1, 1, 1)


def transform(model: nn.Module) -> Preprocessing:
    """The preprocessing that belongs to the model's weights: call it on a PIL image."""
    return Preprocessing.of(model)
