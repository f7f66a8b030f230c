"""Pure functions on tensors: the mathematics, and nothing else."""

from __future__ import annotations

from zoo.ops.exponential import matrix_exp
from zoo.ops.manifold import delta_controller, delta_update, soft_projection
from zoo.ops.newton_schulz import newton_schulz
from zoo.ops.orthogonal import orthogonal_attention
from zoo.ops.orthogonality import orthogonality_bound, orthogonality_error, skew_norm
from zoo.ops.polar import polar
from zoo.ops.rotary import apply_rotary, signed_sine

__all__ = [
    "apply_rotary",
    "delta_controller",
    "delta_update",
    "matrix_exp",
    "newton_schulz",
    "orthogonal_attention",
    "orthogonality_bound",
    "orthogonality_error",
    "polar",
    "signed_sine",
    "skew_norm",
    "soft_projection",
]
