"""Vision Transformers on Newton-Schulz Attention (arXiv 2609.27735), and their softmax twins.

The source's ViT for CIFAR is the one of arXiv 2112.13492: class token, no bias of queries, keys and values, pre-norm,
the same drop path on both branches of every block. A state dict of a model loads into its twin.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from timm.models import register_model
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn
from torch import nn

from zoo.errors import UsageError
from zoo.layers import NewtonSchulzAttention
from zoo.models._build import build_vision_model
from zoo.ops.newton_schulz import check_iteration

_CIFAR = {
    "img_size": 32,
    "patch_size": 4,
    "embed_dim": 192,
    "depth": 9,
    "num_heads": 12,
    "mlp_ratio": 2.0,
    "qkv_bias": False,
}
_SMALL_224 = {"img_size": 224, "patch_size": 16, "embed_dim": 384, "depth": 12, "num_heads": 6}
_TEST = {**_CIFAR, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}


class CifarVisionTransformer(VisionTransformer):
    """timm's `VisionTransformer` with the source's start and its drop path, which is the same in every block.

    images: (batch, channels, height, width) -> logits: (batch, classes).
    """

    def __init__(self, *, drop_path_rate: float = 0.0, **kwargs: Any) -> None:
        if drop_path_rate and "block_fn" in kwargs:
            raise UsageError("drop_path_rate is that of this model's own blocks; a block_fn has to bring its own")
        super().__init__(**{"block_fn": _with_drop_path(drop_path_rate), **kwargs})

    @torch.no_grad()
    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """Xavier-normal matrices, zero biases, standard normal positions and class token."""
        super().init_weights(mode, needs_reset)
        for parameter in (self.pos_embed, self.cls_token):
            if parameter is not None:
                nn.init.normal_(parameter)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.xavier_normal_(module.weight.view(len(module.weight), -1))  # a patch is one vector
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


class _NewtonSchulz:
    """Mixed into a `VisionTransformer`: Newton-Schulz Attention with `ns_steps`, the number K of iterations."""

    def __init__(self, *, ns_steps: int = 1, **kwargs: Any) -> None:
        check_iteration(ns_steps)
        if "attn_layer" in kwargs:
            raise UsageError("this model is its attention; take its twin for another attn_layer")
        super().__init__(**{"attn_layer": NewtonSchulzAttention, **kwargs})
        for block in self.blocks:  # type: ignore[attr-defined]  # timm hands no argument of its own to attn_layer
            block.attn.ns_steps = ns_steps


class NsVisionTransformer(_NewtonSchulz, CifarVisionTransformer):
    """`CifarVisionTransformer` with Newton-Schulz Attention; `ns_steps` is the number K of iterations."""


class _NsTimmVisionTransformer(_NewtonSchulz, VisionTransformer):
    """timm's own with Newton-Schulz Attention."""


def _with_drop_path(rate: float) -> Callable[..., nn.Module]:
    def block(*args: Any, **kwargs: Any) -> nn.Module:
        return Block(*args, **{**kwargs, "drop_path": rate})

    return block


_build = partial(
    build_vision_model,
    first_conv="patch_embed.proj",
    classifier="head",
    pretrained_filter_fn=checkpoint_filter_fn,
)


@register_model
def ns_vit_cifar10(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """2.7 M parameters for 32 x 32 pictures: width 192, depth 9, 12 heads, patch 4, 65 tokens, class token."""
    return _build(NsVisionTransformer, "ns_vit_cifar10", pretrained, **{**_CIFAR, **kwargs})


@register_model
def vit_cifar10(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The twin of `ns_vit_cifar10` with softmax attention alone."""
    return _build(CifarVisionTransformer, "vit_cifar10", pretrained, **{**_CIFAR, **kwargs})


@register_model
def ns_vit_cifar100(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """`ns_vit_cifar10` with 100 classes."""
    return _build(NsVisionTransformer, "ns_vit_cifar100", pretrained, **{**_CIFAR, **kwargs})


@register_model
def vit_cifar100(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The twin of `ns_vit_cifar100` with softmax attention alone."""
    return _build(CifarVisionTransformer, "vit_cifar100", pretrained, **{**_CIFAR, **kwargs})


@register_model
def ns_vit_small_224(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The sizes of timm's `vit_small_patch16_224`, whose state dict it takes, on Newton-Schulz Attention."""
    return _build(_NsTimmVisionTransformer, "ns_vit_small_224", pretrained, **{**_SMALL_224, **kwargs})


@register_model
def vit_small_224_cls(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The twin of `ns_vit_small_224`: the sizes of timm's `vit_small_patch16_224`."""
    return _build(VisionTransformer, "vit_small_224_cls", pretrained, **{**_SMALL_224, **kwargs})


@register_model
def test_ns_vit(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """`ns_vit_cifar10` shrunk for tests: width 24, depth 2, 3 heads, patch 8, 17 tokens."""
    return _build(NsVisionTransformer, "test_ns_vit", pretrained, **{**_TEST, **kwargs})


@register_model
def test_cifar_vit(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The twin of `test_ns_vit`."""
    return _build(CifarVisionTransformer, "test_cifar_vit", pretrained, **{**_TEST, **kwargs})
