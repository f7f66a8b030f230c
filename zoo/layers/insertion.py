"""The Newton-Schulz transformation put into the attention of somebody else's model, and taken out again.

Shapes: B batch (of windows, in a Swin), N tokens, H heads, d features a head.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from timm.layers import Attention, AttentionRope
from timm.models import beit, eva, swin_transformer, swin_transformer_v2, vision_transformer_relpos
from torch import Tensor, nn

from zoo import ops
from zoo.errors import UsageError
from zoo.layers.newton_schulz import NewtonSchulzAttention, NewtonSchulzWindowAttention
from zoo.layers.replacement import is_of_transformers
from zoo.ops.newton_schulz import MUON, check_iteration

# The child of each of timm's attentions that takes the merged heads.
_TIMM: dict[type[nn.Module], str] = {
    Attention: "norm",
    AttentionRope: "norm",
    eva.EvaAttention: "norm",
    beit.Attention: "proj",
    vision_transformer_relpos.RelPosAttention: "proj",
    swin_transformer.WindowAttention: "proj",
    swin_transformer_v2.WindowAttention: "proj",
}
_OURS = (NewtonSchulzAttention, NewtonSchulzWindowAttention)


class Insertion:
    """What `insert_newton_schulz` put into a model; a context manager that takes it out again at its end.

    `names` are those of the transformed attentions, `steps` the number of iterations. Copied or pickled together with
    its model (as one tuple), it belongs to the copy.
    """

    def __init__(self, places: dict[str, tuple[nn.Module, _Transformation]], steps: int) -> None:
        self.names, self.steps = list(places), steps
        self._places = list(places.values())

    def remove(self) -> None:
        """Make the model what it was. A second time does nothing."""
        for target, ours in self._places:
            ours.remove_from(target)
        self._places = []

    def __enter__(self) -> Insertion:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"Insertion(names={self.names}, steps={self.steps}, removed={not self._places})"


def insert_newton_schulz(
    model: nn.Module,
    steps: int = 1,
    *,
    coefficients: tuple[float, float, float] = MUON,
    eps: float = 1e-6,
    skip: Iterable[str] = (),
) -> Insertion:
    """Apply `zoo.ops.newton_schulz` in every attention of `model`, between the values' aggregation and the head merge.

    That is Newton-Schulz Attention (arXiv 2609.27735) with the weights as they are: parameters, state dict and calls
    of the model stay the same. It is done by a forward pre-hook on the child that takes the merged heads, whose
    merge is undone as a view. The model can be trained, copied, pickled, compiled, exported and traced with it; a
    state dict, or `save_pretrained`, does not hold it. What torch.compile has made is made anew (all of it).

    Known are the attentions of timm's ViT, DeiT, BEiT, EVA, relative-position ViT, Swin and Swin V2, and those of
    transformers' ViT, Swin and the models built like them (DeiT, DINOv2, I-JEPA, ViT-MAE, ViT-MSN, ViViT).

    Every token of a head is part of the transformed matrix, hidden and later ones too: with a causal mask the
    attention is causal no more, and a token that a mask hides from others still has a row in it.

    Parameters
    ----------
    model : changed in place, or left as it was where an error is raised.
    steps, coefficients, eps : of `zoo.ops.newton_schulz`.
    skip : names of attentions that stay as they are, such as "attn_pool" or "blocks.[0-5].attn" (patterns of fnmatch).

    Raises
    ------
    UsageError
        There is no attention; one is not known here; one has the transformation already; one is causal; a name in
        `skip` is none; steps, coefficients or eps that make no sense.
    """
    check_iteration(steps, coefficients, eps)
    if not isinstance(model, nn.Module):
        raise UsageError(f"a model is an nn.Module, not {type(model).__name__}")
    places: dict[str, tuple[nn.Module, _Transformation]] = {}
    hooks: dict[nn.Module, _Transformation] = {}
    patterns = [skip] if isinstance(skip, str) else list(skip) if isinstance(skip, Iterable) else [skip]
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise UsageError(f"skip: names of attentions are needed, got {skip!r}")
    for name, module in _wanted(model, patterns):
        target, heads = _merged(name, module)
        _untouched(name, module, target)
        ours = _Transformation(heads, steps, (coefficients[0], coefficients[1], coefficients[2]), eps)
        if hooks.setdefault(target, ours) != ours:
            raise UsageError(f"{name}: shares its projection with an attention of another number of heads")
        places[name] = (target, hooks[target])
    for target, ours in hooks.items():
        target.register_forward_pre_hook(ours)
    if "torch._dynamo" in sys.modules:  # a compiled model has no guard on hooks that were not there, and would go on
        torch.compiler.reset()
    return Insertion(places, steps)


def head_merges(model: nn.Module) -> dict[str, tuple[nn.Module, int]]:
    """By the name of each attention the child that takes its merged heads (..., N, H d), and their number H.

    Of every attention that `insert_newton_schulz` knows, and of those that have the transformation. UsageError for
    an attention that is not known, or where there is none.
    """
    return {name: _merged(name, module) for name, module in _wanted(model, [])}


@dataclass(frozen=True)
class _Transformation:
    """The hook: a module and its (merged heads,) -> (merged heads, transformed), (..., N, H d)."""

    heads: int
    steps: int
    coefficients: tuple[float, float, float]
    eps: float

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        merged = args[0]
        x = merged.unflatten(-1, (self.heads, merged.shape[-1] // self.heads)).transpose(-3, -2)
        x = ops.newton_schulz(x, steps=self.steps, coefficients=self.coefficients, eps=self.eps)
        return (x.transpose(-3, -2).flatten(-2), *args[1:])

    def remove_from(self, module: nn.Module) -> None:
        """Take this hook off `module`; who finds it on a model, as `zoo.bench` does, knows by this that it can go."""
        for key, hook in list(module._forward_pre_hooks.items()):
            if hook is self:
                del module._forward_pre_hooks[key]


def _wanted(model: nn.Module, skip: list[str]) -> list[tuple[str, nn.Module]]:
    """Name and module of every attention, the outermost of those that nest; a module in two places comes twice."""
    attentions = {module for module in model.modules() if _is_known(module) or _is_unknown(module)}
    inner = {child for module in attentions if _is_known(module) for child in module.modules() if child is not module}
    found: list[tuple[str, nn.Module]] = []
    matched: set[str] = set()
    for name, module in model.named_modules(remove_duplicate=False):
        if module in inner or module not in attentions:
            continue
        held = [child for child in module.modules() if child is not module and child in attentions]
        if held and not _is_known(module):
            continue  # a block or a wrapper around attentions, which are looked at themselves
        patterns = {pattern for pattern in skip if fnmatchcase(name, pattern)}
        matched |= patterns
        if not patterns:
            found.append((name, module))
    useless = [pattern for pattern in skip if pattern not in matched]
    if useless:
        raise UsageError(f"skip: {useless[0]!r} is the name of no attention in this {type(model).__name__}")
    if not found:
        raise UsageError(
            f"{type(model).__name__} holds no attention that is known here: that of a timm or transformers ViT or Swin"
        )
    return found


def _is_known(module: nn.Module) -> bool:
    """Whether its forward pass is one that was read: nobody's subclass or instance has another."""
    if "forward" in vars(module):
        return False
    if isinstance(module, _OURS):
        return True
    if any(isinstance(module, kind) and type(module).forward is kind.forward for kind in _TIMM):
        return True
    of_transformers = str(getattr(type(module), "__module__", "")).startswith("transformers.models.")
    return of_transformers and is_of_transformers(module, extra="relative_position_bias")


def _is_unknown(module: nn.Module) -> bool:
    """Whether it looks like attention: by its name, or by heads and a projection of its own."""
    kind = type(module).__name__.lower()
    heads = any(
        isinstance(getattr(module, name, None), int) for name in ("num_heads", "num_attention_heads", "n_heads")
    )
    own = any(isinstance(child, nn.Linear) for child in module.children())
    return isinstance(module, tuple(_TIMM)) or "attention" in kind or "attn" in kind or (heads and own)


def _merged(name: str, module: Any) -> tuple[nn.Module, int]:
    """The child that takes the merged heads, and how many these are; UsageError where it is not to be touched."""
    if not _is_known(module):
        raise UsageError(
            f"{_shown(name, module)} is an attention whose forward pass is not known here;"
            f" skip={[name]} leaves it as it is"
        )
    kind = next((kind for kind in _TIMM if isinstance(module, kind)), None)
    target = getattr(module, _TIMM[kind] if kind else "o_proj")
    return target, module.num_heads if kind else module.num_attention_heads


def _untouched(name: str, module: nn.Module, target: nn.Module) -> None:
    """UsageError where the attention transforms its heads already."""
    if isinstance(module, _OURS):
        raise UsageError(f"{_shown(name, module)} has the Newton-Schulz transformation already, as a layer")
    if any(isinstance(hook, _Transformation) for hook in target._forward_pre_hooks.values()):
        raise UsageError(
            f"{_shown(name, module)} has the Newton-Schulz transformation already;"
            " remove() of the first insertion ends it"
        )


def _shown(name: str, module: nn.Module) -> str:
    return f"{name or 'the model'} ({type(module).__module__}.{type(module).__qualname__})"
