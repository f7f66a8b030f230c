"""Pure functions on tensors: the mathematics, and nothing else."""

from __future__ import annotations

from zoo.ops.orthogonal import orthogonal_attention

__all__ = ["orthogonal_attention"]
