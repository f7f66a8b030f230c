"""Vision Transformers on Orthogonal Self-Attention (arXiv 2602.05996), their softmax twins, and controls.

One block is X <- MLP(M-OSA(X)): no skip, no norm, anywhere. The twin of the same sizes is timm's pre-norm ViT; the
controls of the source's figure 1 are the twin without skips, and without skips and norms.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from timm.layers import LayerNorm
from timm.models import register_model
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from zoo.layers import GELU_GAIN, OrthogonalMlp, OrthogonalSelfAttention, scaled_uniform_orthogonal_
from zoo.layers.orthogonal import refuse_useless
from zoo.models._build import build_vision_model

# "Pool over tokens, no class token": with attention near the identity at the start, a class token would see nothing.
_POOLED = {"class_token": False, "global_pool": "avg", "qkv_bias": False}
_MNIST = {"img_size": 28, "patch_size": 4, "in_chans": 1, "embed_dim": 64, "depth": 6, "num_heads": 4, "mlp_ratio": 2.0}
_SMALL_224 = {"img_size": 224, "patch_size": 16, "embed_dim": 384, "depth": 12, "num_heads": 6, "mlp_ratio": 4.0}
_POS_EMBED_SCALE = 0.5
_TEST = {**_MNIST, "patch_size": 7, "embed_dim": 16, "depth": 2, "num_heads": 2}


# What timm's `VisionTransformer` chooses for its blocks; everything else that it hands over has to be off.
_CHOSEN = ("proj_bias", "norm_layer", "mlp_layer", "attn_layer", "depth")


class OrthogonalBlock(nn.Module):
    """X <- MLP(M-OSA(X)), equation of section 2 of the source. x: (batch, tokens, dim) -> the same shape.

    Takes the arguments that timm's `VisionTransformer` hands to a block. UsageError for those about skips, norms and
    the softmax's dropout, unless they are off.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = False,
        act_layer: type[nn.Module] = nn.GELU,
        *,
        alpha: float = 0.01,
        basis: str = "gram",
        steps: int | None = None,
        max_norm: float | None = 8.0,
        act_gain: float = GELU_GAIN,
        proj_drop: float = 0.0,
        device: Any = None,
        dtype: Any = None,
        **others: Any,
    ) -> None:
        super().__init__()
        refuse_useless(
            "a block without skip and norm", {key: value for key, value in others.items() if key not in _CHOSEN}
        )
        dd = {"device": device, "dtype": dtype}
        self.attn = OrthogonalSelfAttention(
            dim, num_heads, qkv_bias=qkv_bias, alpha=alpha, basis=basis, steps=steps, max_norm=max_norm, **dd
        )
        self.mlp = OrthogonalMlp(
            dim, int(dim * mlp_ratio), act_layer=act_layer, drop=proj_drop, act_gain=act_gain, **dd
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attn(x))


class OsaVisionTransformer(VisionTransformer):
    """timm's `VisionTransformer` with orthogonal blocks and nothing that normalises or skips.

    Parameters beyond timm's: `alpha`, `basis`, `steps`, `max_norm` of the attention, `act_gain` of the MLP (both in
    `zoo.layers`), and `pos_embed_scale`, the standard deviation of the position embedding at the start.
    images: (batch, channels, height, width) -> logits: (batch, classes).
    """

    def __init__(
        self,
        *,
        alpha: float = 0.01,
        basis: str = "gram",
        steps: int | None = None,
        max_norm: float | None = 8.0,
        act_gain: float = GELU_GAIN,
        pos_embed_scale: float = _POS_EMBED_SCALE,
        **kwargs: Any,
    ) -> None:
        self.pos_embed_scale = pos_embed_scale
        block = partial(OrthogonalBlock, alpha=alpha, basis=basis, steps=steps, max_norm=max_norm, act_gain=act_gain)
        super().__init__(**{**_POOLED, **kwargs}, final_norm=False, block_fn=block, weight_init="skip")
        self.init_weights(needs_reset=False)

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """Scaled uniform orthogonal patches, small head; the blocks draw their own (anew if `needs_reset`)."""
        _draw_ends(self, self.pos_embed_scale)
        if needs_reset:
            for block in self.blocks:
                block.attn.reset_parameters()
                block.mlp.reset_parameters()

    def no_weight_decay(self) -> set[str]:
        """timm's list (position embedding, class token), and every alpha."""
        return super().no_weight_decay() | {f"blocks.{i}.attn.alpha" for i in range(len(self.blocks))}


_build = partial(
    build_vision_model,
    first_conv="patch_embed.proj",
    classifier="head",
    pretrained_filter_fn=checkpoint_filter_fn,
)


@register_model
def osa_vit_mnist(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """0.2 M parameters for 28 x 28 digits: width 64, depth 6, 4 heads, patch 4, 49 tokens, mean pooling."""
    return _build(OsaVisionTransformer, "osa_vit_mnist", pretrained, **{**_MNIST, **kwargs})


@register_model
def vit_mnist(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The twin of `osa_vit_mnist`: timm's pre-norm ViT with softmax attention, of the same sizes."""
    return _build(_Twin, "vit_mnist", pretrained, **{**_MNIST, **kwargs})


@register_model
def osa_vit_small_224(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The sizes of timm's `vit_small_patch16_224`: width 384, depth 12, 6 heads, patch 16; 196 tokens, mean pooling."""
    return _build(OsaVisionTransformer, "osa_vit_small_224", pretrained, **{**_SMALL_224, **kwargs})


@register_model
def vit_small_224(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The twin of `osa_vit_small_224`: timm's `vit_small_patch16_224` without class token and qkv bias."""
    return _build(_Twin, "vit_small_224", pretrained, **{**_SMALL_224, **kwargs})


@register_model
def test_osa_vit(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """`osa_vit_mnist` shrunk for tests: width 16, depth 2, 2 heads, patch 7, 16 tokens."""
    return _build(OsaVisionTransformer, "test_osa_vit", pretrained, **{**_TEST, **kwargs})


@register_model
def test_zoo_vit(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The twin of `test_osa_vit`."""
    return _build(_Twin, "test_zoo_vit", pretrained, **{**_TEST, **kwargs})


@register_model
def vit_mnist_noskip(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """A control: `vit_mnist` without skips, X <- MLP(LN(MHSA(LN(X)))); initialised as the twin is."""
    return _build(_Twin, "vit_mnist_noskip", pretrained, **{**_MNIST, "block_fn": NoSkipBlock, **kwargs})


@register_model
def vit_mnist_noskip_nonorm(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """A control: `vit_mnist` without skips and without any norm, X <- MLP(MHSA(X)); initialised as the twin is."""
    bare = {"block_fn": NoSkipBlock, "norm_layer": nn.Identity, "final_norm": False}
    return _build(_Twin, "vit_mnist_noskip_nonorm", pretrained, **{**_MNIST, **bare, **kwargs})


class NoSkipBlock(Block):
    """timm's pre-norm block without its two skips. x: (batch, tokens, dim) -> the same shape."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        x = self.drop_path1(self.ls1(self.attn(self.norm1(x), attn_mask=attn_mask, is_causal=is_causal)))
        return self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


class _Twin(VisionTransformer):
    """timm's `VisionTransformer` with this file's defaults.

    `orthogonal_init` draws the weights as `OsaVisionTransformer` does: what has neither skips nor norms starts with
    features of 1e-22 from timm's own weights, which are made for networks that have both.
    """

    def __init__(self, *, orthogonal_init: bool = False, **kwargs: Any) -> None:
        super().__init__(**{**_POOLED, "norm_layer": LayerNorm, **kwargs})
        if orthogonal_init:
            _draw_ends(self, _POS_EMBED_SCALE)
            for block in self.blocks:
                for weight in block.attn.qkv.weight.chunk(3):
                    scaled_uniform_orthogonal_(weight)
                scaled_uniform_orthogonal_(block.attn.proj.weight)
                scaled_uniform_orthogonal_(block.mlp.fc1.weight)
                scaled_uniform_orthogonal_(block.mlp.fc2.weight, GELU_GAIN)


@torch.no_grad()
def _draw_ends(model: VisionTransformer, pos_embed_scale: float) -> None:
    """What stands before and after the blocks: scaled uniform orthogonal patches, positions, a small head."""
    scaled_uniform_orthogonal_(model.patch_embed.proj.weight)
    nn.init.zeros_(model.patch_embed.proj.bias)
    nn.init.normal_(model.pos_embed, std=pos_embed_scale)
    if isinstance(model.head, nn.Linear):
        nn.init.trunc_normal_(model.head.weight, std=0.02)
        nn.init.zeros_(model.head.bias)
