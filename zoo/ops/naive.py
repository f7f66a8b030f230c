"""The literal definitions: slow, obvious, the truth that the fast forms are held against."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.ops.polar import MARGIN, schedule_of


def orthogonal_attention(
    q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, *, key_mask: Tensor | None = None
) -> Tensor:
    """exp(S) V with S = (alpha / sqrt(head_dim)) (Q K^T - K Q^T), all of it dense (arXiv 2602.05996, section 2).

    q, k: (..., heads, tokens, head_dim); v: (..., heads, tokens, value_dim); alpha: a number, a 0-d tensor or a
    tensor (heads,); key_mask: (..., tokens) without the heads, bool, True = keep. Returns v's shape and dtype;
    the arithmetic is float32 or better, because matrix_exp is wrong in half precision.
    """
    wide_q, wide_k, wide_v = _widened(q, k, v)
    with torch.autocast(q.device.type, enabled=False):
        if key_mask is not None:
            keep = key_mask[..., None, :, None]
            wide_q, wide_k, wide_v = (torch.where(keep, x, 0.0) for x in (wide_q, wide_k, wide_v))
        skew = _scale(alpha, wide_q) * (wide_q @ wide_k.mT - wide_k @ wide_q.mT)
        out = (torch.linalg.matrix_exp(skew) @ wide_v).to(v.dtype)
    return out if key_mask is None else torch.where(keep, out, v)


def qr_attention(q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    """exp(S) V by an orthonormal basis B of the columns of [Q, K], from its reduced QR factorisation (theorem 2.1).

    Shapes and types as in `orthogonal_attention`. The gradient goes through the factorisation: it needs independent
    columns.
    """
    q, k, wide_v = _widened(q, k, v)
    with torch.autocast(q.device.type, enabled=False):
        return _by_basis(torch.linalg.qr(torch.cat((q, k), -1)).Q, q, k, wide_v, alpha).to(v.dtype)


def iterated_attention(
    q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, method: str = "newton-schulz", steps: int | None = None
) -> Tensor:
    """V + B (exp(B^T S B) - I) B^T V with B from `polar` of [Q, K] (section 3), eps = 0.

    Shapes and types as in `orthogonal_attention`.
    """
    q, k, wide_v = _widened(q, k, v)
    with torch.autocast(q.device.type, enabled=False):
        return _by_basis(polar(torch.cat((q, k), -1), method, steps, eps=0.0), q, k, wide_v, alpha).to(v.dtype)


def polar(x: Tensor, method: str = "newton-schulz", steps: int | None = None, *, eps: float = 1e-7) -> Tensor:
    """X_steps of X <- X (a I + b X^T X + c (X^T X)^2), X_0 = x / (margin (||x||_F + eps)); x: (..., m, n).

    "newton-schulz" is the cubic M (3 I - M^T M) / 2 of arXiv 2602.05996, section 3; "polar-express" arXiv 2505.16932.
    """
    norm = torch.linalg.matrix_norm(x, keepdim=True)
    x = x / (MARGIN[method] * torch.where(norm + eps == 0.0, 1.0, norm + eps))
    eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    for a, b, c in schedule_of(method, steps):
        gram = x.mT @ x
        x = x @ (a * eye + b * gram + c * (gram @ gram)) if c else x @ (a * eye + b * gram)
    return x


def newton_schulz(
    x: Tensor,
    *,
    steps: int = 1,
    coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
    eps: float = 1e-6,
) -> Tensor:
    """Algorithm 1 of arXiv 2609.27735 on M = x^T, as it is written there and in x's own precision.

    x: (..., tokens, head_dim) -> the same shape and dtype.
    """
    a, b, c = coefficients
    m = x.mT
    r = torch.linalg.matrix_norm(m, keepdim=True)
    z = m / r.clamp_min(eps)
    for _ in range(steps):
        gram = z @ z.mT
        z = a * z + (b * gram + c * (gram @ gram)) @ z
    return (r * z / torch.linalg.matrix_norm(z, keepdim=True).clamp_min(eps)).mT


def matrix_exp(x: Tensor) -> Tensor:
    """exp(x), x: (..., n, n); in float32 or better, because torch's is wrong in half precision."""
    return torch.linalg.matrix_exp(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)


def apply_rotary(x: Tensor, angles: Tensor) -> Tensor:
    """RoPE by complex numbers: feature i and feature i + head_dim / 2 are one, multiplied by exp(i angle).

    x: (..., tokens, head_dim), angles: (tokens, head_dim / 2) -> x's shape and dtype.
    """
    first, second = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, -1)
    turned = torch.complex(first.contiguous(), second.contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), -1).to(x.dtype)


def manifold_update(
    x: Tensor,
    v: Tensor,
    w_gate: Tensor,
    w_beta: Tensor,
    b_beta: Tensor,
    alpha: float | Tensor,
    *,
    weight: Tensor | float = 1.0,
    bias: Tensor | float = 0.0,
    gate_scale: float = 1.0,
    scale: float = 1.0,
    shift: float = 0.0,
    eps: float = 1e-5,
    source: Tensor | None = None,
) -> Tensor:
    """One update of arXiv 2601.01014, feature by feature as its equations stand: gate, controller, delta step.

    x, v: (..., dim); w_gate, w_beta: (dim, dim), applied as X W; b_beta: (dim,); weight, bias: (dim,) of the gate's
    LayerNorm -> (..., dim). source: (..., dim), what gate and controller read, x where it is None.
    """
    read = x if source is None else source
    score = read @ w_gate
    score = score - score.mean(-1, keepdim=True)
    score = score / (score.square().mean(-1, keepdim=True) + eps).sqrt()
    v_mhc = v * gate_scale * (1 / (1 + torch.exp(-(score * weight + bias))))
    beta = scale * torch.tanh(read @ w_beta + b_beta) + shift
    return x + beta * (v_mhc - alpha * x)


def _widened(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(torch.promote_types(q.dtype, v.dtype), torch.float32)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _scale(alpha: float | Tensor, q: Tensor) -> Tensor:
    scale = torch.as_tensor(alpha, dtype=q.dtype, device=q.device) / math.sqrt(q.shape[-1])
    return scale[:, None, None] if scale.dim() else scale


def _by_basis(b: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    """V + B (exp([S]) - I) B^T V, [S] = (alpha / sqrt(head_dim)) ((B^T Q) (B^T K)^T - (B^T K) (B^T Q)^T)."""
    left, right = b.mT @ q, b.mT @ k
    small = _scale(alpha, q) * (left @ right.mT - right @ left.mT)
    eye = torch.eye(small.shape[-1], dtype=q.dtype, device=q.device)
    return v + b @ ((torch.linalg.matrix_exp(small) - eye) @ (b.mT @ v))
