"""Causal self-attention with rotary positions and transformers' cache, and the columns of a mask that anybody sees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from zoo.errors import UsageError
from zoo.ops import rotate


def seen_columns(mask: object) -> Tensor | None:
    """Which keys any query of this pass may see; None where `mask` hides nothing, or is no tensor.

    mask: (batch, 1, queries, keys), bool (True = seen) or added to the scores -> (batch, 1, keys, 1) bool.
    """
    if not isinstance(mask, Tensor):
        return None
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return seen.any(-2).unsqueeze(-1)


class CausalSelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(head_dim)) V over the tokens so far, positions by RoPE; transformers' choice of kernel.

    Parameters
    ----------
    config : a transformers configuration with `hidden_size`, `num_attention_heads`, `attention_dropout` and the
        attention implementation that the model was asked for.
    layer_idx : which layer of the cache is this one's.

    `forward(x, rotary, mask, seen, cache)`: x: (batch, tokens, dim); rotary: cosine and signed sine (batch or 1,
    tokens, head_dim), see `zoo.ops.rotate`; mask and seen as `seen_columns` has them -> output (batch, tokens, dim) and
    the attention weights, None but for the implementation "eager". What the cache holds in slots that nobody sees has
    no influence, NaN neither.
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
        q, k = rotate(qkv[:2], *rotary)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        if seen is not None:  # a weight of 0 does not silence a NaN
            k, v = torch.where(seen, k, 0.0), torch.where(seen, v, 0.0)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.config.attention_dropout if self.training else 0.0
        out, weights = attend(self, q, k, v, mask, dropout=dropout, scaling=self.scaling, **kwargs)
        return self.o_proj(out.reshape(batch, tokens, -1)), weights
