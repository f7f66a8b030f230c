"""Inputs for orthogonal attention whose numerics are awkward, and a measure of the error."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from zoo.ops import naive

Inputs = tuple[Tensor, Tensor, Tensor, float]


def _build(name: str, tokens: int = 65, width: int = 16, batch: int = 2, heads: int = 3) -> Inputs:
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lead = (batch, heads)
    q, k, v = (normal(*lead, tokens, width) for _ in range(3))
    along = normal(*lead, tokens, 1)
    match name.split():
        case ["generic", norm]:
            skew = (q @ k.mT - k @ q.mT) / math.sqrt(width)
            return q, k, v, float(norm) / float(torch.linalg.matrix_norm(skew, 2).max())
        case ["near", "q"]:
            return q, q + 0.01 * k, v, 5.0
        case ["rank", "one"]:
            return along * normal(*lead, 1, width) + 0.01 * q, along * normal(*lead, 1, width) + 0.01 * k, v, 1.0
        case ["equal", "tokens"]:
            x = normal(*lead, 1, 64) + 0.003 * normal(*lead, tokens, 64)
            return x @ normal(64, width) / 8, x @ normal(64, width) / 8, v, 5.0
        case ["duplicated", "columns"]:
            q[..., width // 2 :], k[..., width // 2 :] = q[..., : width // 2], k[..., : width // 2]
            return q, k, v, 0.3
        case ["large", "column"]:
            q[..., 0] *= 100
            k[..., 0] *= 100
            return q, k, v, 0.0045
        case ["small", "large", "column"]:
            q[..., 0] *= 100
            k[..., 0] *= 100
            return q, k, v, 4e-5
        case ["repeated", "token"]:
            return normal(*lead, 1, width).expand_as(q), normal(*lead, 1, width).expand_as(k), v, 1.0
    raise ValueError(name)


@pytest.fixture(scope="session")
def build() -> Callable[..., Inputs]:
    """`build(name, ...)` gives q, k (batch, heads, tokens, width), v and alpha, float64."""
    return _build


def _norms(q: Tensor, k: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    skew = (alpha / math.sqrt(q.shape[-1])) * (q @ k.mT - k @ q.mT)
    values = torch.linalg.svdvals(skew.double())
    return values.amax(-1), (0.5 * (values**4).sum(-1)) ** 0.25


@pytest.fixture(scope="session")
def norms() -> Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]:
    """||S||_2 and the bound (tr S^4 / 2)^(1/4) of it, of every matrix: (batch, heads)."""
    return _norms


def _error(out: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor) -> float:
    truth = naive.orthogonal_attention(q.double(), k.double(), v.double(), alpha)
    return float(((out.double() - truth).norm(dim=(-2, -1)) / v.double().norm(dim=(-2, -1))).max())


@pytest.fixture(scope="session")
def error() -> Callable[..., float]:
    """`error(out, q, k, v, alpha)`: largest ||out - truth|| / ||v|| over the matrices, against dense float64."""
    return _error
