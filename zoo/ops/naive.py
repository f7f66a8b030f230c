"""The literal definitions: slow, obvious, the truth that the fast forms are held against."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def orthogonal_attention(
    q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, *, key_mask: Tensor | None = None
) -> Tensor:
    """exp(S) V with S = (alpha / sqrt(head_dim)) (Q K^T - K Q^T), all of it dense (arXiv 2602.05996, section 2).

    q, k: (..., heads, tokens, head_dim); v: (..., heads, tokens, value_dim); alpha: a number, a 0-d tensor or a
    tensor (heads,); key_mask: (..., tokens) without the heads, bool, True = keep. Returns v's shape and dtype;
    the arithmetic is float32 or better, because matrix_exp is wrong in half precision.
    """
    dtype = torch.promote_types(torch.promote_types(q.dtype, v.dtype), torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        wide_q, wide_k, wide_v = q.to(dtype), k.to(dtype), v.to(dtype)
        if key_mask is not None:
            keep = key_mask[..., None, :, None]
            wide_q, wide_k, wide_v = (torch.where(keep, x, 0.0) for x in (wide_q, wide_k, wide_v))
        scale = torch.as_tensor(alpha, dtype=dtype, device=q.device) / math.sqrt(q.shape[-1])
        scale = scale[:, None, None] if scale.dim() else scale
        skew = scale * (wide_q @ wide_k.mT - wide_k @ wide_q.mT)
        out = (torch.linalg.matrix_exp(skew) @ wide_v).to(v.dtype)
    return out if key_mask is None else torch.where(keep, out, v)
