"""How a language model's stream changes with depth: section 4 of arXiv 2601.01014.

With the singular values s_1 >= s_2 >= ... of the hidden states X (tokens, dim) and p_i = s_i / sum_j s_j, not squared:

    effective rank = exp(-sum_i p_i log p_i) / min(tokens, dim)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zoo.errors import DamagedError, UsageError
from zoo.layers.manifold import ManifoldUpdate
from zoo.modes import check_batch_size, check_context, evaluating


@dataclass(frozen=True)
class BetaStatistics:
    """Of the controller of one update over all tokens and features: mean, variance, and the share below 0."""

    mean: float
    variance: float
    negative: float


@dataclass(frozen=True)
class DepthProfile:
    """Means over the sequences.

    ranks : the effective rank of the embeddings and of the stream after each layer, before any final norm.
    preservation : the last of them over the first (the source's rho). decay : slope of log rank over depth in layers.
    betas : of every update in its order, two a layer; empty where there is none.
    """

    ranks: tuple[float, ...]
    preservation: float
    decay: float
    betas: tuple[BetaStatistics, ...]


def effective_rank(x: Tensor) -> Tensor:
    """x: (..., tokens, dim) -> (...,) float64, in (0, 1]; NaN for a matrix of zeros or with NaN, which has none."""
    x = x.cpu().double()  # not every device has float64
    finite = x.isfinite().all(-1).all(-1)
    values = torch.linalg.svdvals(torch.where(finite[..., None, None], x, 0.0))
    p = values / values.sum(-1, keepdim=True)
    return torch.special.entr(p).sum(-1).exp() / min(x.shape[-2:])


@torch.no_grad()
def depth_profile(model: nn.Module, ids: Tensor, *, batch_size: int = 8) -> DepthProfile:
    """Ranks by layer and statistics of beta of a language model on `ids` (sequences, tokens), in eval mode.

    Raises UsageError for a model without layers of its own, no sequences, longer ones than the model's context, or a
    batch size below 1; DamagedError where the states are NaN.
    """
    layers = getattr(getattr(model, "model", None), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UsageError("this model has no model.layers; a language model of the zoo has")
    if ids.dim() != 2 or not ids.numel():
        raise UsageError(f"ids of the shape (sequences, tokens) are needed, got {tuple(ids.shape)}")
    check_batch_size(batch_size)
    check_context(model, ids.shape[1])
    device = next(model.parameters()).device
    sums = torch.zeros(len(layers) + 1, dtype=torch.float64)
    updates = [module for module in layers.modules() if isinstance(module, ManifoldUpdate) and module.delta]
    moments = torch.zeros(len(updates), 3, dtype=torch.float64)
    with evaluating(model), _inputs_of(updates) as seen:
        for batch in ids.split(batch_size):
            states = _states(model, layers, batch.to(device))
            ranks = torch.stack([effective_rank(state) for state in states])
            if not torch.isfinite(ranks).all():
                raise DamagedError("the model's states are zero, NaN or infinity; its weights are no good")
            sums += ranks.sum(1)
            moments += _moments(updates, seen) * len(batch) / len(ids)
    mean = (sums / len(ids)).tolist()
    depth = torch.arange(len(mean), dtype=torch.float64)
    logs = torch.tensor([math.log(rank) for rank in mean], dtype=torch.float64)
    slope = float(((depth - depth.mean()) * (logs - logs.mean())).sum() / ((depth - depth.mean()) ** 2).sum())
    betas = tuple(BetaStatistics(one, square - one * one, share) for one, square, share in moments.tolist())
    return DepthProfile(tuple(mean), mean[-1] / mean[0], slope, betas)


def _states(model: nn.Module, layers: nn.ModuleList, ids: Tensor) -> list[Tensor]:
    """What enters the first layer, and what each layer gives."""
    states: list[Tensor] = []
    hooks = [layers[0].register_forward_pre_hook(lambda _, given: states.append(given[0]))]
    hooks += [layer.register_forward_hook(lambda _, given, out: states.append(out)) for layer in layers]
    try:
        model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return states


@contextmanager
def _inputs_of(updates: list[ManifoldUpdate]) -> Iterator[dict[ManifoldUpdate, Tensor]]:
    """What the product of each update gave last."""
    seen: dict[ManifoldUpdate, Tensor] = {}
    hooks = [
        update.scores.register_forward_hook(lambda _, given, out, update=update: seen.__setitem__(update, out))
        for update in updates
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _moments(updates: list[ManifoldUpdate], seen: dict[ManifoldUpdate, Tensor]) -> Tensor:
    """(updates, 3) float64: means of beta, beta squared, and of whether it is below 0."""
    rows = []
    for update in updates:
        beta = update.beta(seen[update]).cpu().double()
        rows.append([float(beta.mean()), float(beta.square().mean()), float((beta < 0).double().mean())])
    return torch.tensor(rows, dtype=torch.float64).reshape(len(updates), 3)
