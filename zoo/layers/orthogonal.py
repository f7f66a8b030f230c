"""Orthogonal Self-Attention as a layer (Zhang and Martens, arXiv 2602.05996).

Shapes: B batch, N tokens, D features, H heads, d = D / H features a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from zoo import ops
from zoo.errors import UsageError
from zoo.layers.initialisation import stiefel_
from zoo.ops.orthogonal import check_basis


def refuse_useless(owner: str, arguments: Mapping[str, object]) -> None:
    """UsageError that names the `arguments` for which `owner` has no use, unless they are off: None, False or 0."""
    useless = sorted(
        key for key, value in arguments.items() if value is not None and (not isinstance(value, int | float) or value)
    )
    if useless:
        raise UsageError(f"{owner} has no use for {', '.join(useless)}")


class OrthogonalSelfAttention(nn.Module):
    """Multi-head attention whose matrix is a rotation: Y = sum_i exp(S_i) X W^V_i W^O_i.

    S_i = (alpha_i / sqrt(d)) (Q K^T - K Q^T) is skew, so exp(S_i) is in SO(N): it keeps norms and rank, and needs
    neither skip nor norm around it. Not causal. Permutation-equivariant: positions have to come from the embedding.

    Initialisation (section 4 of the source): [W^Q_i, W^K_i] is one uniform sample of the Stiefel manifold V_2d(R^D)
    for each head; alpha starts small, so attention starts near the identity. W^V and W^O are orthogonal D x D
    matrices over all heads together ("joint", this project's choice: the sum over heads is then orthogonal too), or
    one sample of V_d(R^D) a head ("per_head", the literal reading, whose sum over heads is badly conditioned).

    It takes the arguments and calls of `timm.layers.Attention`, so that it can be a timm block's `attn` and the
    `attn_layer` of a `VisionTransformer`. What speaks of a softmax has to be off.

    Parameters
    ----------
    dim : features D, a multiple of `num_heads`.
    num_heads : H. With one head 2d > D: Q and K are then two independent samples.
    qkv_bias, proj_bias : biases of the projections; the source has none.
    proj_drop : rate of a dropout after the output projection; the source has none.
    qk_norm, scale_norm, attn_drop : timm's, of which a rotation has no use; off, or UsageError.
    norm_layer : what `qk_norm` and `scale_norm` would use; timm's blocks always hand it over.
    alpha : initial value of the learnable scalar, one a head. Keep weight decay away from it (`no_weight_decay`).
    basis, steps : how exp(S) is applied, see `zoo.ops.orthogonal_attention`.
    max_norm : largest ||S||_2 that the fixed computation covers; beyond it the head's output is NaN, never wrong.
    value_init : "joint" or "per_head".

    Raises
    ------
    UsageError
        `dim` is no multiple of `num_heads`, a name that is not known, or an argument of which it has no use.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        proj_bias: bool = False,
        *,
        alpha: float = 0.01,
        basis: str = "gram",
        steps: int | None = None,
        max_norm: float | None = 8.0,
        value_init: Literal["joint", "per_head"] = "joint",
        proj_drop: float = 0.0,
        qk_norm: bool = False,
        scale_norm: bool = False,
        attn_drop: float = 0.0,
        norm_layer: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise UsageError(f"dim {dim} is no multiple of num_heads {num_heads}")
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
            raise UsageError(f"alpha must be a finite number, not {alpha!r}")
        if value_init not in ("joint", "per_head"):
            raise UsageError(f"value_init {value_init!r} is neither 'joint' nor 'per_head'")
        refuse_useless("orthogonal attention", {"qk_norm": qk_norm, "scale_norm": scale_norm, "attn_drop": attn_drop})
        check_basis(basis, steps, max_norm)
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.alpha_init, self.value_init = alpha, value_init
        self.basis, self.steps, self.max_norm = basis, steps, max_norm
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias, device=device, dtype=dtype)
        self.alpha = nn.Parameter(torch.empty(num_heads, device=device, dtype=dtype))
        self.proj = nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop) if proj_drop else nn.Identity()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights anew, as the class says."""
        dim, heads, d = self.proj.in_features, self.num_heads, self.head_dim
        q, k, v = self.qkv.weight.view(3, heads, d, dim).unbind(0)
        for head in range(heads):
            if heads > 1:
                pair = stiefel_(q.new_empty(2 * d, dim))
                q[head], k[head] = pair[:d], pair[d:]
            else:
                stiefel_(q[head])
                stiefel_(k[head])
        out = self.proj.weight.view(dim, heads, d)
        if self.value_init == "joint":
            v.copy_(stiefel_(v.new_empty(dim, dim)).view(heads, d, dim))
            stiefel_(self.proj.weight)
        else:
            for head in range(heads):
                stiefel_(v[head])
                out[:, head] = stiefel_(out.new_empty(d, dim)).T
        nn.init.constant_(self.alpha, self.alpha_init)
        for linear in (self.qkv, self.proj):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def init_weights(self) -> None:
        """The same, under the name by which timm asks a layer to draw over what timm drew into its `nn.Linear`s."""
        self.reset_parameters()

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that weight decay must leave alone."""
        return {"alpha"}

    def forward(
        self, x: Tensor, key_mask: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """x: (B, N, D) -> (B, N, D).

        key_mask: (B, N) bool, True = keep. Masked tokens neither rotate nor are seen.
        attn_mask: the same as timm's blocks hand it over, bool that broadcasts from (B, 1, 1, N).
        UsageError for any other mask, for both at once, and for `is_causal`.
        """
        if is_causal:
            raise UsageError("orthogonal attention is not causal: is_causal has to be False")
        batch, tokens, dim = x.shape
        if attn_mask is not None:
            if key_mask is not None:
                raise UsageError("key_mask and attn_mask are two names of one mask: hand over one of them")
            key_mask = _keys_of(attn_mask, batch, tokens)
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        y = ops.orthogonal_attention(
            q, k, v, self.alpha, basis=self.basis, steps=self.steps, max_norm=self.max_norm, key_mask=key_mask
        )
        out: Tensor = self.proj_drop(self.proj(y.transpose(1, 2).reshape(batch, tokens, dim)))
        return out

    def extra_repr(self) -> str:
        steps = "" if self.steps is None else f", steps={self.steps}"
        return f"num_heads={self.num_heads}, basis={self.basis!r}{steps}, max_norm={self.max_norm}"


def _keys_of(attn_mask: Tensor, batch: int, tokens: int) -> Tensor:
    """A mask that by its shape is the same for every head and query, as one of (B, N)."""
    shape = (1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape)
    fits = len(shape) == 4 and shape[0] in (1, batch) and shape[1:] == (1, 1, tokens)
    if attn_mask.dtype != torch.bool or not fits:
        raise UsageError(
            f"orthogonal attention can hide tokens, not single pairs: attn_mask must be bool of shape "
            f"{(batch, 1, 1, tokens)}; this is {attn_mask.dtype} {tuple(attn_mask.shape)}"
        )
    return attn_mask.reshape(shape[0], tokens).expand(batch, tokens)
