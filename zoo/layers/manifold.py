"""The residual connection of the Manifold-Geometric Transformer (arXiv 2601.01014), in place of the plain skip."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.ops import delta_controller, delta_update, soft_projection


class ManifoldUpdate(nn.Module):
    """X_{l+1} = X_l + beta * (V * sigmoid(LN(X_l W_gate)) - alpha X_l), beta = lambda tanh(X_l W_beta + b_beta) + eps.

    V is what attention or the feed-forward part gives. Either half can be left out: without `delta` it is
    X + V * sigmoid(LN(X W_gate)), without `gate` V takes the place of the gated V.

    Parameters
    ----------
    dim : features.
    gate, delta : which halves there are; at least one.
    delta_scale, delta_shift : lambda and epsilon. 1 and 0 are the source's; 1 and 1 the gate of Deep Delta Learning.
    delta_init : beta at the start, where W_beta is 0; strictly inside (epsilon - lambda, epsilon + lambda). The source
        does not state it; at beta = 0 no gradient would reach V.
    alpha : how much of X the update takes away, at the start; the source does not state it. 1 / (number of updates)
        lets exp(-beta) of the state survive all of them at any depth; 0 takes nothing away.
    alpha_learned : whether `alpha` is a parameter.
    gate_scale : 2 keeps the size of V on average, where 1 halves it.
    eps : of the LayerNorm.

    Shapes: x, v, source: (..., dim) -> (..., dim) in x's dtype.

    Raises UsageError without gate and delta, and for a beta at the start that no bias gives.
    """

    def __init__(
        self,
        dim: int,
        *,
        gate: bool = True,
        delta: bool = True,
        delta_scale: float = 1.0,
        delta_shift: float = 0.0,
        delta_init: float = 0.5,
        alpha: float = 0.0,
        alpha_learned: bool = True,
        gate_scale: float = 1.0,
        eps: float = 1e-5,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if not (gate or delta):
            raise UsageError("an update without gate and delta is a plain skip; use x + v")
        dd = {"device": device, "dtype": dtype}
        self.dim, self.gate, self.delta = dim, gate, delta
        self.delta_scale, self.delta_shift, self.delta_init = delta_scale, delta_shift, delta_init
        self.gate_scale, self.alpha_init = gate_scale, alpha
        _start_of(delta_init, delta_scale, delta_shift)  # refuses what has no start
        # One product for both: W_gate, then W_beta.
        self.scores = nn.Linear(dim, dim * (gate + delta), bias=False, **dd)
        self.norm = nn.LayerNorm(dim, eps=eps, **dd) if gate else None
        if delta:
            self.bias = nn.Parameter(torch.empty(dim, **dd))
            self.alpha = nn.Parameter(torch.empty(1, **dd), requires_grad=alpha_learned)  # FSDP shards no scalars
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, std: float = 0.02) -> None:
        """W_gate ~ N(0, std^2), whose scale the LayerNorm takes away; W_beta = 0; b_beta so that beta is its start."""
        if self.gate:
            nn.init.normal_(self.scores.weight[: self.dim], std=std)
        if self.norm is not None:
            self.norm.reset_parameters()
        if self.delta:
            self.scores.weight[-self.dim :].zero_()
            self.bias.fill_(_start_of(self.delta_init, self.delta_scale, self.delta_shift))
            self.alpha.fill_(self.alpha_init)

    def forward(self, x: Tensor, v: Tensor, source: Tensor | None = None) -> Tensor:
        """The next x. `source`: what gate and controller read, x itself where it is None, as the paper writes it."""
        scores = self.scores(x if source is None else source)
        if self.norm is not None:
            # The norm is called, not its weights used: hooks that bring weights from elsewhere hang on the call.
            v = soft_projection(v, self.norm(scores[..., : self.dim]), scale=self.gate_scale)
        if not self.delta:
            return x + v
        return delta_update(x, v, self.beta(scores), self.alpha)

    def beta(self, scores: Tensor) -> Tensor:
        """The controller, of what `self.scores` gave: (..., dim) or (..., 2 dim) -> (..., dim)."""
        own = scores[..., -self.dim :]
        return delta_controller(own, self.bias, scale=self.delta_scale, shift=self.delta_shift)

    def extra_repr(self) -> str:
        """What the printed module shows."""
        return f"{self.dim}, gate={self.gate}, delta={self.delta}"


def _start_of(beta: float, scale: float, shift: float) -> float:
    """b_beta with lambda tanh(b_beta) + epsilon = beta."""
    share = (beta - shift) / scale if scale > 0 else math.inf
    if not abs(share) < 1:
        raise UsageError(
            f"beta cannot start at {beta}: with lambda {scale} and epsilon {shift} it lies between"
            f" {shift - scale} and {shift + scale}"
        )
    return math.atanh(share)
