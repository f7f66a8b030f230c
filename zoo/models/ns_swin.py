"""Swin Transformers on Newton-Schulz Attention (arXiv 2609.27735), and their softmax twins.

timm's Swin with the source's sizes and start: every second block shifts its windows by half of one, except where the
map is one window. The transformation is applied to every window and head. A state dict of a model loads into its twin.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from timm.models import register_model
from timm.models.swin_transformer import SwinTransformer, checkpoint_filter_fn
from torch import nn

from zoo.layers import NewtonSchulzWindowAttention
from zoo.models._build import build_vision_model

_CIFAR = {
    "img_size": 32,
    "patch_size": 2,
    "window_size": 4,
    "embed_dim": 96,
    "depths": (2, 6, 4),
    "num_heads": (3, 6, 12),
    "mlp_ratio": 2.0,
    "drop_path_rate": 0.0,
}
_TINY_224 = {"img_size": 224, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24), "drop_path_rate": 0.0}
_TEST = {**_CIFAR, "patch_size": 4, "embed_dim": 12, "depths": (2, 2), "num_heads": (3, 6)}


class CifarSwinTransformer(SwinTransformer):
    """timm's `SwinTransformer` with the source's start.

    images: (batch, channels, height, width) -> logits: (batch, classes).
    """

    @torch.no_grad()
    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """Torch's own for every matrix: the code of arXiv 2112.13492 never calls the Swin's 0.02."""
        super().init_weights(mode, needs_reset)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()


class _NewtonSchulz:
    """Mixed into a `SwinTransformer`: Newton-Schulz Attention with `ns_steps`, the number K of iterations."""

    def __init__(self, *, ns_steps: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for stage in self.layers:  # type: ignore[attr-defined]
            for block in stage.blocks:
                block.attn = NewtonSchulzWindowAttention.like(block.attn, ns_steps)


class NsSwinTransformer(_NewtonSchulz, CifarSwinTransformer):
    """`CifarSwinTransformer` with Newton-Schulz Attention; `ns_steps` is the number K of iterations."""


class _NsTimmSwinTransformer(_NewtonSchulz, SwinTransformer):
    """timm's own with Newton-Schulz Attention."""


_build = partial(
    build_vision_model,
    first_conv="patch_embed.proj",
    classifier="head.fc",
    pretrained_filter_fn=checkpoint_filter_fn,
)


@register_model
def ns_swin_cifar10(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """7.1 M parameters for 32 x 32 pictures: patch 2, windows of 4 x 4, depths 2, 6, 4, widths 96, 192, 384."""
    return _build(NsSwinTransformer, "ns_swin_cifar10", pretrained, **{**_CIFAR, **kwargs})


@register_model
def swin_cifar10(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The twin of `ns_swin_cifar10` with softmax attention alone."""
    return _build(CifarSwinTransformer, "swin_cifar10", pretrained, **{**_CIFAR, **kwargs})


@register_model
def ns_swin_cifar100(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """`ns_swin_cifar10` with 100 classes."""
    return _build(NsSwinTransformer, "ns_swin_cifar100", pretrained, **{**_CIFAR, **kwargs})


@register_model
def swin_cifar100(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The twin of `ns_swin_cifar100` with softmax attention alone."""
    return _build(CifarSwinTransformer, "swin_cifar100", pretrained, **{**_CIFAR, **kwargs})


@register_model
def ns_swin_tiny_224(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The sizes of timm's `swin_tiny_patch4_window7_224`, whose state dict it takes, on Newton-Schulz Attention."""
    return _build(_NsTimmSwinTransformer, "ns_swin_tiny_224", pretrained, **{**_TINY_224, **kwargs})


@register_model
def swin_tiny_224(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The twin of `ns_swin_tiny_224`: timm's `swin_tiny_patch4_window7_224`."""
    return _build(SwinTransformer, "swin_tiny_224", pretrained, **{**_TINY_224, **kwargs})


@register_model
def test_ns_swin(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """`ns_swin_cifar10` shrunk for tests: patch 4, widths 12 and 24, two blocks each."""
    return _build(NsSwinTransformer, "test_ns_swin", pretrained, **{**_TEST, **kwargs})


@register_model
def test_cifar_swin(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The twin of `test_ns_swin`."""
    return _build(CifarSwinTransformer, "test_cifar_swin", pretrained, **{**_TEST, **kwargs})
