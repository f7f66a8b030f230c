"""The feed-forward part of a block without skip and norm."""

from __future__ import annotations

import math
from typing import Any

from timm.layers import Mlp
from torch import nn

from zoo.layers.initialisation import scaled_uniform_orthogonal_

# 1 / sqrt(E[gelu(z)^2]) for unit normal z: the gain that gives back the scale which GELU takes.
GELU_GAIN = 1 / math.sqrt(0.4252)


class OrthogonalMlp(Mlp):
    """timm's `Mlp` with scaled uniform orthogonal (SUO) weights and zero biases (arXiv 2602.05996 section 4.4).

    `act_gain` makes up for the scale that the activation takes, so that the mean square of the features stays near
    one through a stack without norms. It is folded into the second weight at initialisation, where it costs nothing
    in the forward pass. The source does not state it: the default is this project's; 1.0 gives plain SUO.

    Shapes: (..., in_features) -> (..., out_features).
    """

    def __init__(self, *args: Any, act_gain: float = GELU_GAIN, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.act_gain = act_gain
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        for linear, gain in ((self.fc1, 1.0), (self.fc2, self.act_gain)):
            scaled_uniform_orthogonal_(linear.weight, gain)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
