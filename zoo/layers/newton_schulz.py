"""Attention whose output every head transforms before the heads are merged (Newton-Schulz Attention, arXiv 2609.27735).

Shapes: B batch (of windows, in a Swin), N tokens, D features, H heads, d = D / H features a head.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import Attention
from timm.models.swin_transformer import WindowAttention
from torch import Tensor
from torch.nn import functional

from zoo import ops
from zoo.ops import naive
from zoo.ops.newton_schulz import check_iteration


class _Transforming:
    """`literal`, set on a module, has it compute Algorithm 1 as it is written; it is there to be timed against."""

    ns_steps: int
    literal = False

    def __init__(self, *args: Any, ns_steps: int = 1, **kwargs: Any) -> None:
        check_iteration(ns_steps)
        super().__init__(*args, **kwargs)
        self.ns_steps = ns_steps

    def extra_repr(self) -> str:
        return f"ns_steps={self.ns_steps}"

    def _transformed(self, y: Tensor) -> Tensor:
        """y: (B, H, N, d) -> the same."""
        return (naive.newton_schulz if self.literal else ops.newton_schulz)(y, steps=self.ns_steps)


class NewtonSchulzAttention(_Transforming, Attention):
    """timm's `Attention` with `zoo.ops.newton_schulz` on (B, H, N, d) between the values' aggregation and the merge.

    Parameters and state dict are timm's; `ns_steps`, the number of iterations, is the only argument beyond them.
    UsageError for a number of steps that is none.
    """

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """x: (B, N, D) -> (B, N, D); masks as in timm's `Attention`."""
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.fused_attn:
            dropout = self.attn_drop.p if self.training else 0.0
            y = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=attn_mask, dropout_p=dropout, is_causal=is_causal
            )
        else:
            scores = (q * self.scale) @ k.mT
            if is_causal:
                scores = scores + scores.new_full((tokens, tokens), -torch.inf).triu(1)
            elif attn_mask is not None and attn_mask.dtype == torch.bool:
                scores = scores.masked_fill(~attn_mask, -torch.inf)
            elif attn_mask is not None:
                scores = scores + attn_mask
            y = self.attn_drop(scores.softmax(-1)) @ v
        y = self._transformed(y)
        y = self.norm(y.transpose(1, 2).reshape(batch, tokens, self.attn_dim))
        if self.gate is not None:
            y = y * self.gate(x).sigmoid()
        out: Tensor = self.proj_drop(self.proj(y))
        return out


class NewtonSchulzWindowAttention(_Transforming, WindowAttention):
    """timm's `WindowAttention` of the Swin with `zoo.ops.newton_schulz` on every window and head before the merge.

    Parameters and state dict are timm's. UsageError for a number of steps that is none.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.head_dim = self.proj.in_features // self.num_heads

    @classmethod
    def like(cls, plain: WindowAttention, ns_steps: int) -> NewtonSchulzWindowAttention:
        """The layer with the sizes, dropouts and weights of `plain`."""
        weight = plain.qkv.weight
        new = cls(
            plain.dim,
            plain.num_heads,
            head_dim=weight.shape[0] // (3 * plain.num_heads),
            window_size=plain.window_size,
            qkv_bias=plain.qkv.bias is not None,
            attn_drop=plain.attn_drop.p,
            proj_drop=plain.proj_drop.p,
            ns_steps=ns_steps,
            device=weight.device,
            dtype=weight.dtype,
        )
        new.load_state_dict(plain.state_dict())
        return new

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x: (B, N, D) windows, mask: (windows of one picture, N, N) of 0 and -100, or None -> (B, N, D)."""
        batch = x.shape[0]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self._get_rel_pos_bias()
        if mask is not None:
            windows = mask.shape[0]
            bias = (bias + mask[:, None]).repeat(batch // windows, 1, 1, 1)
        if self.fused_attn:
            dropout = self.attn_drop.p if self.training else 0.0
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        else:
            y = self.attn_drop(self.softmax((q * self.scale) @ k.mT + bias)) @ v
        y = self._transformed(y)
        out: Tensor = self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))
        return out
