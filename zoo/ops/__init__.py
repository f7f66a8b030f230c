"""Pure functions on tensors: the mathematics, and nothing else."""

from zoo.ops.orthogonal import orthogonal_attention

__all__ = ["orthogonal_attention"]
