"""Attention layers, MLPs and initialisations around `zoo.ops`, usable in anybody's model."""

from __future__ import annotations

from zoo.layers.initialisation import scaled_uniform_orthogonal_, stiefel_
from zoo.layers.insertion import Insertion, insert_newton_schulz
from zoo.layers.layout import store_column_major
from zoo.layers.manifold import ManifoldUpdate
from zoo.layers.mlp import GELU_GAIN, OrthogonalMlp
from zoo.layers.newton_schulz import NewtonSchulzAttention, NewtonSchulzWindowAttention
from zoo.layers.orthogonal import OrthogonalSelfAttention
from zoo.layers.replacement import replace_attention

__all__ = [
    "GELU_GAIN",
    "Insertion",
    "ManifoldUpdate",
    "NewtonSchulzAttention",
    "NewtonSchulzWindowAttention",
    "OrthogonalMlp",
    "OrthogonalSelfAttention",
    "insert_newton_schulz",
    "replace_attention",
    "scaled_uniform_orthogonal_",
    "stiefel_",
    "store_column_major",
]
