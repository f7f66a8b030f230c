"""Pure functions on tensors: the mathematics, and nothing else."""

from __future__ import annotations

from zoo.ops.exponential import matrix_exp
from zoo.ops.newton_schulz import newton_schulz
from zoo.ops.orthogonal import orthogonal_attention
from zoo.ops.orthogonality import orthogonality_bound, orthogonality_error, skew_norm
from zoo.ops.polar import polar

__all__ = [
    "matrix_exp",
    "newton_schulz",
    "orthogonal_attention",
    "orthogonality_bound",
    "orthogonality_error",
    "polar",
    "skew_norm",
]
