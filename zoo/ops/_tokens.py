"""The two passes over the tokens: [c Q, K] to small matrices, and a small matrix back to the tokens.

A Q K^T - K Q^T does not change when K's columns are sheared along Q's, K <- K - Q diag(r); r = (q_j . k_j) / |q_j|^2
takes away the cancellation where K's columns lie near Q's. Any r would do, so it has no gradient. q = k gives r = 1 and
a K of zeros, exactly.

Shapes: q, k (..., heads, tokens, w), v (..., heads, tokens, n), c () or (heads, 1, 1); flattened over all that comes
before the tokens, m = 2 w: M = [c Q, K - Q diag(r)] (batch, tokens, m), Z = J M^T M (batch, m, m), U = J M^T V
(batch, m, n).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from zoo.ops._modes import only_numbers

_CHUNK = 600_000  # elements of [c Q, K, V] that are held at once: some megabytes, which stay in a CPU's cache
_LEAST = 256  # tokens in a piece: with fewer, starting the operators costs more than the cache gives


def sheared(q: Tensor, k: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """[c Q, K - Q diag(r), -c Q]: (batch, tokens, 3 w), and r: (..., heads, 1, w)."""
    square, product = (q * q).sum(-2, keepdim=True), (q * k).sum(-2, keepdim=True)
    ratio = _ratio(square, product).detach()
    if only_numbers(q, k, c):
        tokens = q.new_empty((*q.shape[:-1], 3 * q.shape[-1]))
        scaled, along, minus = tokens.split(q.shape[-1], -1)
        torch.mul(q, c, out=scaled)
        torch.addcmul(k, q, ratio, value=-1.0, out=along)
        torch.neg(scaled, out=minus)
    else:
        scaled = q * c
        tokens = torch.cat((scaled, torch.addcmul(k, q, ratio, value=-1.0), -scaled), -1)
    return tokens.flatten(0, -3), ratio


def both(tokens: Tensor) -> Tensor:
    """M = [c Q, K]."""
    return tokens[..., : 2 * (tokens.shape[-1] // 3)]


def turned(tokens: Tensor) -> Tensor:
    """M J^T = [K, -c Q], the transpose of J M^T."""
    return tokens[..., tokens.shape[-1] // 3 :]


def small(tokens: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Z and U."""
    left = turned(tokens).mT
    return torch.bmm(left, both(tokens)), torch.bmm(left, v.flatten(0, -3))


def passes(q: Tensor, k: Tensor, v: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """Z, U, and the function Y -> V + M Y: in pieces that stay in the cache where that pays, else whole."""
    if q.device.type == "cpu" and only_numbers(q, k, v, c):
        step = _CHUNK // max(1, q.shape[:-2].numel() * (2 * q.shape[-1] + v.shape[-1]))
        if step >= _LEAST and q.shape[-2] >= 2 * step:
            return _in_pieces(q, k, v, c, step)
    held, _ = sheared(q, k, c)
    z, u = small(held, v)
    return z, u, lambda y: v + torch.bmm(both(held), y).view(v.shape)


def _in_pieces(
    q: Tensor, k: Tensor, v: Tensor, c: Tensor, step: int
) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """`passes`, the tokens taken `step` at a time. J [M^T M, M^T V] = [Z, U] is formed once, at the end."""
    width = q.shape[-1]
    square, product = q.new_zeros((2, *q.shape[:-2], 1, width))
    for piece in _pieces(q.shape[-2], step):
        part_q, part_k = q[..., piece, :], k[..., piece, :]
        square += (part_q * part_q).sum(-2, keepdim=True)
        product += (part_q * part_k).sum(-2, keepdim=True)
    ratio = _ratio(square, product)
    buffer = q.new_empty((*q.shape[:-2], step, 2 * width + v.shape[-1]))  # M and V side by side: one product for both
    total = q.new_zeros((q.shape[:-2].numel(), 2 * width, buffer.shape[-1]))

    def filled(piece: slice) -> Tensor:
        part = q[..., piece, :]
        held = buffer[..., : part.shape[-2], :]
        torch.mul(part, c, out=held[..., :width])
        torch.addcmul(k[..., piece, :], part, ratio, value=-1.0, out=held[..., width : 2 * width])
        return held

    for piece in _pieces(q.shape[-2], step):
        held = filled(piece)
        held[..., 2 * width :] = v[..., piece, :]
        flat = held.flatten(0, -3)
        total.baddbmm_(flat[..., : 2 * width].mT, flat)
    z, u = torch.cat((total[:, width:], -total[:, :width]), 1).split((2 * width, v.shape[-1]), -1)

    def back(y: Tensor) -> Tensor:
        out = torch.empty_like(v)
        for piece in _pieces(q.shape[-2], step):
            part, m = v[..., piece, :], filled(piece)[..., : 2 * width].flatten(0, -3)
            out[..., piece, :] = torch.baddbmm(part.flatten(0, -3), m, y).view(part.shape)
        return out

    return z, u, back


def _pieces(tokens: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, tokens, step))


def _ratio(square: Tensor, product: Tensor) -> Tensor:
    return product / torch.where(square == 0, 1.0, square)
