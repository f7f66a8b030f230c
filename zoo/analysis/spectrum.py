"""How evenly a head's output spreads over its directions: section 3.4 of arXiv 2609.27735.

For the output X (tokens, head_dim) of one head, with the eigenvalues l_1 >= l_2 >= ... of its Gram matrix, the squared
singular values of X:   p_i = l_i / sum_j l_j,   effective rank = exp(-sum_i p_i log p_i).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.errors import DamagedError, UsageError
from zoo.layers.insertion import head_merges
from zoo.modes import evaluating


@dataclass(frozen=True)
class HeadSpectra:
    """Means over all matrices of all attentions, heads, windows and pictures.

    `spectrum` p_1 >= p_2 >= ... (n,), n the lesser of tokens and head_dim (of the smallest, where they differ);
    `leading` the mean p_1, `effective_rank` the mean of the effective ranks, `matrices` how many there were. A zero
    matrix has no spectrum and is left out.
    """

    spectrum: tuple[float, ...]
    leading: float
    effective_rank: float
    matrices: int


@torch.no_grad()
def head_spectra(model: nn.Module, images: Tensor, *, batch_size: int = 32) -> HeadSpectra:
    """The spectra of what every attention of `model` gives before its heads are merged, in eval mode.

    Where the model transforms that output (Newton-Schulz Attention), it is measured after the transformation.

    Parameters
    ----------
    model : a timm or transformers ViT or Swin, with or without the transformation.
    images : (N, C, H, W), normalised, as the model takes them.

    Raises
    ------
    UsageError
        No pictures, an attention that is not known, or a model whose heads give nothing but zeros.
    DamagedError
        A head gives NaN or infinity.
    """
    if not len(images):
        raise UsageError("there are no pictures to measure")
    if batch_size < 1:
        raise UsageError(f"the batch size has to be 1 or more, got {batch_size}")
    sums: list[_Sums] = []

    def watch(heads: int, merged: Tensor) -> None:
        sums.append(_sums(merged.unflatten(-1, (heads, -1)).transpose(-3, -2)))

    with evaluating(model), _watched(model, watch):
        for batch in images.split(batch_size):
            model(batch)
    matrices = sum(one.matrices for one in sums)
    if not matrices:
        raise UsageError("the heads of this model give nothing but zeros, which have no spectrum")
    size = min(len(one.spectrum) for one in sums)
    spectrum = torch.stack([one.spectrum[:size] for one in sums]).sum(0) / matrices
    values = tuple(float(value) for value in spectrum)
    return HeadSpectra(values, values[0], sum(one.ranks for one in sums) / matrices, matrices)


class _Sums(NamedTuple):
    """Over the matrices of one attention and batch: p (n,), the effective ranks, and how many are not zero."""

    spectrum: Tensor
    ranks: float
    matrices: int


def _sums(x: Tensor) -> _Sums:
    """x: (..., tokens, head_dim)."""
    x = x.double().flatten(0, -3)
    if not torch.isfinite(x).all():
        raise DamagedError("the model's heads give NaN or infinity; its weights or the pictures are no good")
    gram = x.mT @ x if x.shape[-2] >= x.shape[-1] else x @ x.mT
    values = torch.linalg.eigvalsh(gram).flip(-1).clamp_min(0.0)  # rounding can send a zero below zero
    total = values.sum(-1, keepdim=True)
    there = total[:, 0] > 0
    p = values[there] / total[there]
    return _Sums(p.sum(0), float(torch.special.entr(p).sum(-1).exp().sum()), int(there.sum()))


@contextlib.contextmanager
def _watched(model: nn.Module, watch: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Calls `watch(heads, merged)` for what every attention hands to its head merge, as long as it is open."""

    def hook(heads: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, inputs: watch(heads, inputs[0])

    targets = dict(head_merges(model).values())  # an attention in two places is called in both, and hooked once
    handles = [target.register_forward_pre_hook(hook(heads)) for target, heads in targets.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
