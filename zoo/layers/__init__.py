"""Attention layers, MLPs and initialisations around `zoo.ops`, usable in anybody's model."""

from __future__ import annotations

from zoo.layers.initialisation import scaled_uniform_orthogonal_, stiefel_
from zoo.layers.mlp import GELU_GAIN, OrthogonalMlp
from zoo.layers.orthogonal import OrthogonalSelfAttention

__all__ = [
    "GELU_GAIN",
    "OrthogonalMlp",
    "OrthogonalSelfAttention",
    "scaled_uniform_orthogonal_",
    "stiefel_",
]
