"""What is timed beside a model: its twin, and the literal definition of its mechanism."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from zoo.errors import ValidationError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Kind = Literal["model", "twin", "literal"]
SEED = 0  # of an own initialisation


@dataclass(frozen=True)
class Arm:
    """A model under the clock; `weights` are "trained", of its "own initialisation", or "given" with a module."""

    name: str
    kind: Kind
    model: nn.Module
    weights: str

    @property
    def label(self) -> str:
        """The name, told apart from that of the model where this is its literal definition."""
        return f"{self.name} (literal)" if self.kind == "literal" else self.name


def initialised(name: str, place: torch.device) -> nn.Module:
    """The model with its own initialisation, the same every time; the global random state is left alone."""
    import torch

    from zoo.loading import load

    with torch.random.fork_rng(devices=[]):  # what is drawn is drawn on the CPU
        torch.manual_seed(SEED)
        return load(name, pretrained=False, device=place)


def twin_with_weights_of(model: nn.Module, twin: str, place: torch.device) -> nn.Module | None:
    """The model `twin`, with the picture size and classes of `model`, with its state; None if it does not fit.

    Heads do not show in the shapes of a state, so they are compared too.
    """
    import torch

    from zoo.loading import facts, load

    with torch.random.fork_rng(devices=[]):
        other = load(twin, pretrained=False, device=place)
        own, theirs = facts(model)["input_size"], facts(other)["input_size"]
        sizes: dict[str, Any] = {} if tuple(own) == tuple(theirs) else {"img_size": tuple(own[1:]), "in_chans": own[0]}
        if model.num_classes != other.num_classes:
            sizes["num_classes"] = model.num_classes
        if sizes:
            other = load(twin, pretrained=False, device=place, **sizes)
    if _heads(model) != _heads(other):
        return None
    state, its = model.state_dict(), other.state_dict()
    if {key: value.shape for key, value in state.items()} != {key: value.shape for key, value in its.items()}:
        return None
    other.load_state_dict(state)
    return other


def literal_of(model: nn.Module) -> nn.Module | None:
    """A copy of `model` whose layers compute their definition as it is written; None if none of them offers that.

    A layer offers it by an attribute `literal`, which is False.
    """
    if not any(hasattr(module, "literal") for module in model.modules()):
        return None
    other = copy.deepcopy(model)
    for module in other.modules():
        if hasattr(module, "literal"):
            module.literal = True  # type: ignore[assignment]
    return other


def has_insertion(model: nn.Module) -> bool:
    """Whether something was put into `model` that can be taken out again, as by `insert_newton_schulz`.

    A forward pre-hook offers it by a method `remove_from`, which takes the module that it is on.
    """
    return any(hasattr(hook, "remove_from") for module in model.modules() for hook in _pre_hooks(module))


def without_insertion(model: nn.Module) -> nn.Module:
    """A copy of `model` without what was inserted; other hooks stay."""
    other = copy.deepcopy(model)
    for module in other.modules():
        for hook in _pre_hooks(module):
            if hasattr(hook, "remove_from"):
                hook.remove_from(module)
    return other


def _pre_hooks(module: nn.Module) -> list[Any]:
    return list(module._forward_pre_hooks.values())


def check_literal(model: nn.Module, literal: nn.Module, images: Tensor) -> None:
    """ValidationError unless both give the same logits, but for rounding."""
    import torch

    from zoo.export.validate import ATOL, RTOL

    with torch.inference_mode():
        expected, got = model(images), literal(images)
    allowed = ATOL + RTOL * float(expected.abs().max())
    difference = float((expected - got).abs().max())
    if not difference <= allowed:
        raise ValidationError(f"its literal definition differs by {difference:.2g}; allowed are {allowed:.2g}")


def _heads(model: nn.Module) -> list[Any]:
    return [module.num_heads for module in model.modules() if isinstance(getattr(module, "num_heads", None), int)]
