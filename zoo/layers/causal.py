"""What the blocks of causal language models are made of, in the conventions of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, eager_attention_forward

from zoo.errors import UsageError
from zoo.ops import apply_rotary


def seen_columns(mask: object) -> Tensor | None:
    """Which keys any query of this pass may see; None where `mask` hides nothing, or is no tensor.

    mask: (batch, 1, queries, keys), bool (True = seen) or added to the scores -> (batch, 1, keys, 1) bool.
    """
    if not isinstance(mask, Tensor):
        return None
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return seen.any(-2).unsqueeze(-1)


class RotaryEmbedding(LlamaRotaryEmbedding):
    """transformers' own, whose frequencies stay in float32 when the model is cast.

    Rounded to bfloat16 they would be off by up to 0.4 %, at position 1,000 by several radians.
    """

    def _apply(self, fn: Any, recurse: bool = True) -> RotaryEmbedding:
        kept: dict[str, Any] = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for name, buffer in self.named_buffers():
            if not buffer.is_meta and buffer.dtype != torch.float32:
                setattr(self, name, kept[name].to(buffer.device))
        return self


class CausalSelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(head_dim)) V over the tokens so far, positions by RoPE; transformers' choice of kernel.

    Parameters
    ----------
    config : a transformers configuration with `hidden_size`, `num_attention_heads`, `attention_dropout` and the
        attention implementation that the model was asked for.
    layer_idx : which layer of the cache is this one's.

    `forward(x, rotary, mask, seen, cache)`: x: (batch, tokens, dim); rotary: cosine and signed sine (batch or 1,
    tokens, head_dim), see `zoo.ops.apply_rotary`; mask and seen as `seen_columns` has them -> output (batch, tokens,
    dim) and the attention weights, None but for the implementation "eager". What the cache holds in slots that nobody
    sees has no influence, NaN neither.

    Raises UsageError where `hidden_size` is no even multiple of the heads.
    """

    is_causal = True
    num_key_value_groups = 1

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        dim, heads = config.hidden_size, config.num_attention_heads
        if dim % heads or dim // heads % 2:
            raise UsageError(f"hidden_size {dim} has to be an even multiple of the {heads} heads")
        self.config, self.layer_idx = config, layer_idx
        self.num_heads, self.head_dim = heads, dim // heads
        self.scaling = self.head_dim**-0.5
        self.qkv_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Any = None,
        seen: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """See the class."""
        batch, tokens, _ = x.shape
        qkv = self.qkv_proj(x).view(batch, tokens, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        v = qkv[2]
        q, k = apply_rotary(qkv[:2], *rotary)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        if seen is not None:  # a weight of 0 does not silence a NaN
            k, v = torch.where(seen, k, 0.0), torch.where(seen, v, 0.0)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.config.attention_dropout if self.training else 0.0
        out, weights = attend(self, q, k, v, mask, dropout=dropout, scaling=self.scaling, **kwargs)
        return self.o_proj(out.reshape(batch, tokens, -1)), weights


class FeedForward(nn.Module):
    """W_down act(W_up x), no biases. x: (batch, tokens, dim) -> the same shape."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.act = ACT2FN[config.hidden_act]
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.up_proj(x)))
