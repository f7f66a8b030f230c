"""Orthogonal Self-Attention as a layer (Zhang and Martens, arXiv 2602.05996).

Shapes: B batch, N tokens, D features, H heads, d = D / H features a head.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from zoo import ops
from zoo.errors import UsageError
from zoo.layers.initialisation import stiefel_


class OrthogonalSelfAttention(nn.Module):
    """Multi-head attention whose matrix is a rotation: Y = sum_i exp(S_i) X W^V_i W^O_i.

    S_i = (alpha_i / sqrt(d)) (Q K^T - K Q^T) is skew, so exp(S_i) is in SO(N): it keeps norms and rank, and needs
    neither skip nor norm around it. Not causal. Permutation-equivariant: positions have to come from the embedding.

    Initialisation (section 4 of the source): [W^Q_i, W^K_i] is one uniform sample of the Stiefel manifold V_2d(R^D)
    for each head; alpha starts small, so attention starts near the identity. W^V and W^O are orthogonal D x D
    matrices over all heads together ("joint", this project's choice: the sum over heads is then orthogonal too), or
    one sample of V_d(R^D) a head ("per_head", the literal reading, whose sum over heads is badly conditioned).

    Parameters
    ----------
    dim : features D, a multiple of `num_heads`.
    num_heads : H. With one head 2d > D: Q and K are then two independent samples.
    qkv_bias, proj_bias : biases of the projections; the source has none.
    alpha : initial value of the learnable scalar, one a head. Keep weight decay away from it (`no_weight_decay`).
    basis, steps : how exp(S) is applied, see `zoo.ops.orthogonal_attention`.
    max_norm : largest ||S||_2 that the fixed computation covers; beyond it the head's output is NaN, never wrong.
    value_init : "joint" or "per_head".
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise UsageError(f"dim {dim} is no multiple of num_heads {num_heads}")
        if value_init not in ("joint", "per_head"):
            raise UsageError(f"value_init {value_init!r} is neither 'joint' nor 'per_head'")
        ops.check_basis(basis, steps)
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.alpha_init, self.value_init = alpha, value_init
        self.basis, self.steps, self.max_norm = basis, steps, max_norm
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias, device=device, dtype=dtype)
        self.alpha = nn.Parameter(torch.empty(num_heads, device=device, dtype=dtype))
        self.proj = nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)
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

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that weight decay must leave alone."""
        return {"alpha"}

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """x: (B, N, D), key_mask: (B, N) bool, True = keep -> (B, N, D). Masked tokens neither rotate nor are seen."""
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        y = ops.orthogonal_attention(
            q, k, v, self.alpha, basis=self.basis, steps=self.steps, max_norm=self.max_norm, key_mask=key_mask
        )
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, dim))

    def extra_repr(self) -> str:
        steps = "" if self.steps is None else f", steps={self.steps}"
        return f"num_heads={self.num_heads}, basis={self.basis!r}{steps}, max_norm={self.max_norm}"
