"""What an exported model is checked on: real images where the caller has some, else noise in their range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from zoo.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from zoo.data.preprocessing import Preprocessing

ENOUGH = 23  # images that batches of 1, 2, 3 and 17 take together


class _Images(Protocol):
    """What `zoo.data.open_dataset` gives: uint8 images of shape (count, channels, height, width)."""

    @property
    def images(self) -> Tensor: ...


def samples_of(dataset: _Images, preprocessing: Preprocessing, count: int = ENOUGH) -> Tensor:
    """The first `count` images of `dataset` as a model with `preprocessing` takes them.

    Returns float32 of shape (count, channels, height, width), or fewer where the data set is smaller. Images
    that have the model's size already are normalised as they are; others go through its whole geometry.

    Raises
    ------
    UsageError
        The data set is empty, or `count` is not positive.
    """
    import torch

    images = dataset.images[: max(count, 0)]
    if len(images) == 0:
        raise UsageError("samples need at least one image of the data set")
    if tuple(images.shape[1:]) == tuple(preprocessing.input_size):
        return preprocessing.normalize(images)
    from PIL import Image

    pictures = [Image.fromarray(image.permute(1, 2, 0).squeeze(-1).numpy()) for image in images]
    return torch.stack([preprocessing(picture) for picture in pictures])


def noise(config: Mapping[str, Any], count: int = ENOUGH, seed: int = 0, contrast: float = 1.0) -> Tensor:
    """`count` images of random pixels, normalised as `config` (a model's `pretrained_cfg`) says.

    Returns float32 of shape (count, *input_size); the same for the same seed. The global random state is left
    alone. `contrast` scales the distance of the pixels from the data's mean.

    Raises
    ------
    UsageError
        `config` does not say input_size, mean and std.
    """
    import torch

    size = config.get("input_size")
    if not size or len(size) != 3 or not all(isinstance(side, int) and side > 0 for side in size):
        raise UsageError("the model does not say its input_size; hand over samples=, images as it takes them")
    given = config.get("mean"), config.get("std")
    if not all(values is not None and len(values) in (1, size[0]) for values in given):
        raise UsageError(
            "the model does not say mean and std of its pixels, one for each channel;"
            " hand over samples=, images as it takes them"
        )
    mean, std = (torch.tensor(values, dtype=torch.float32).expand(size[0]).view(-1, 1, 1) for values in given)
    pixels = torch.rand(count, *size, generator=torch.Generator().manual_seed(seed))
    return contrast * (pixels - mean) / std


def noise_for(model: nn.Module, count: int = ENOUGH) -> tuple[Tensor, str]:
    """Noise that `model` answers with numbers, on the CPU, and what it is in words.

    White noise is further from the data than any picture. A model whose attention covers a limited range
    answers NaN beyond it, so the contrast is halved until it does not, three times at most.
    """
    import torch

    config = getattr(model, "pretrained_cfg", None) or {}
    place = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    for contrast in (1.0, 0.5, 0.25, 0.125):
        images = noise(config, count, contrast=contrast)
        with torch.no_grad():
            answer = model(images.to(place))
        if not isinstance(answer, torch.Tensor) or bool(answer.isfinite().all()):
            break
    return images, f"{count} images of noise" + (f" at contrast {contrast:g}" if contrast < 1 else "")
