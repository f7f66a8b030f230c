"""Orthogonal Self-Attention in place of the softmax attention of somebody else's model."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from timm.layers import Attention
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.layers.orthogonal import OrthogonalSelfAttention, refuse_useless

# What transformers' models hand down to every layer although it is not about attention.
_NOT_OURS = ("num_items_in_batch", "output_hidden_states")


def replace_attention(model: nn.Module, **arguments: Any) -> list[str]:
    """Put an `OrthogonalSelfAttention` in the place of every self-attention of `model`; the names of the replaced.

    Replaced are `timm.layers.Attention`, as in timm's ViT and DeiT, and the attention of a transformers ViT and of
    the models built like it (DeiT, DINOv2, I-JEPA, ViT-MAE, ViT-MSN, ViViT). All other attention stays what it is.

    Kept are width D, number of heads, biases, dropout after the projection, device, dtype and training mode, and
    everything around: skips, norms, embeddings, MLPs. The network is thus not the skipless one of the source. Not
    kept are the weights, which are drawn anew by the layer's own initialisation and all trainable, and hooks on the
    replaced modules. x: (B, N, D) -> (B, N, D) as before.

    In a transformers model a bool mask of (B, 1, N, N), which its "sdpa" implementation makes of a mask of tokens,
    counts as that mask of tokens; a sample whose queries have different masks answers NaN. There are no attention
    weights to return: `output_attentions` is a UsageError. `from_pretrained` knows nothing of a replacement, unless
    it is done in the `__init__` of a subclass (docs/drop-in.md).

    Parameters
    ----------
    model : changed in place, or left as it was where an error is raised.
    arguments : of `OrthogonalSelfAttention`, such as alpha, basis or max_norm; they come before what is kept.

    Raises
    ------
    UsageError
        There is no such attention, or one has what a rotation has no use for: a norm of queries, keys or outputs,
        a gate, dropout of its weights, heads that are wider or narrower than D / H, an output other than D.
    """
    built: dict[nn.Module, nn.Module] = {}
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if name and module not in built:
            new = _replacement(name, module, arguments)
            if new is not None:
                built[module] = new.train(module.training)
        if name and module in built:
            found[name] = built[module]
    if not found:
        raise UsageError(
            f"{type(model).__name__} holds no attention that can be replaced: it takes timm.layers.Attention, "
            "or the attention of a transformers ViT"
        )
    for name, replacement in found.items():
        model.set_submodule(name, replacement)
    return list(found)


class _TransformersAttention(OrthogonalSelfAttention):
    """The layer, called and answering as the attention of a transformers ViT; `config` is the model's."""

    def __init__(self, *args: Any, config: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.config = config

    def forward(  # type: ignore[override]  # the caller is another one
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """hidden_states: (B, N, D), attention_mask: bool (B, 1, 1 or N, N), True = keep -> ((B, N, D), None)."""
        asked = {"output_attentions": getattr(self.config, "output_attentions", None), **kwargs}
        refuse_useless("orthogonal attention", {key: value for key, value in asked.items() if key not in _NOT_OURS})
        if attention_mask is None:
            return super().forward(hidden_states), None
        if not isinstance(attention_mask, Tensor) or attention_mask.dtype != torch.bool or attention_mask.dim() != 4:
            kind = getattr(attention_mask, "dtype", type(attention_mask).__name__)
            raise UsageError(
                f"orthogonal attention takes a bool attention_mask of 4 dimensions, not {kind}: neither a bias, nor "
                'another implementation\'s mask; model.set_attn_implementation("sdpa") turns a mask of tokens into one'
            )
        keys = attention_mask[..., :1, :]
        out = super().forward(hidden_states, attn_mask=keys)
        same = (attention_mask == keys).flatten(1).all(1)
        return out * torch.where(same, 1.0, torch.nan).to(out.dtype)[:, None, None], None


def _replacement(name: str, old: Any, arguments: dict[str, Any]) -> OrthogonalSelfAttention | None:
    """What takes the place of `old`, or None where it is no attention that is known here."""
    if isinstance(old, Attention) and type(old).forward is Attention.forward:
        inputs, output, heads = [old.qkv], old.proj, old.num_heads
        useless = {
            "qk_norm": not (isinstance(old.q_norm, nn.Identity) and isinstance(old.k_norm, nn.Identity)),
            "scale_norm": not isinstance(old.norm, nn.Identity),
            "gated": old.gate is not None,
            "attn_drop": old.attn_drop.p,
        }
        own = {"proj_drop": old.proj_drop.p}
    elif is_of_transformers(old):
        inputs, output, heads = [old.q_proj, old.k_proj, old.v_proj], old.o_proj, old.num_attention_heads
        useless = {"attention_dropout": getattr(old, "attention_dropout", None)}
        own = {"config": old.config}
    else:
        return None
    refuse_useless(f"{name}: orthogonal attention", useless)
    dim = inputs[0].in_features
    widths = (sum(linear.out_features for linear in inputs), output.in_features, output.out_features)
    if widths != (3 * dim, dim, dim):
        raise UsageError(
            f"{name}: takes {dim} features, attends with {output.in_features} and gives {output.out_features}; "
            "orthogonal attention has one width for all three"
        )
    biases = {linear.bias is not None for linear in inputs}
    if len(biases) > 1:
        raise UsageError(
            f"{name}: only some of queries, keys and values have a bias; orthogonal attention has all or none"
        )
    own["qkv_bias"] = biases.pop()
    own["proj_bias"] = output.bias is not None
    kind = _TransformersAttention if "config" in own else OrthogonalSelfAttention
    place = {"device": output.weight.device, "dtype": output.weight.dtype}
    return kind(dim, heads, **place, **{**own, **arguments})


def is_of_transformers(module: nn.Module, extra: str = "") -> bool:
    """By its parts and by its call, which leave no room for rotary positions, a cache, or other tokens to look at.

    `extra` is a child that may be there beside the four projections.
    """
    children = {name: child for name, child in module.named_children() if name != extra}
    return (
        children.keys() == {"q_proj", "k_proj", "v_proj", "o_proj"}
        and all(isinstance(child, nn.Linear) for child in children.values())
        and all(hasattr(module, name) for name in ("num_attention_heads", "config"))
        and getattr(module, "is_causal", None) is False
        and list(inspect.signature(module.forward).parameters) == ["hidden_states", "attention_mask", "kwargs"]
    )
