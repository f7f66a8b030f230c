"""Causal language models on the Manifold-Geometric Transformer (arXiv 2601.01014), its single arms, and their twin.

A block is twice X <- update(X, F(LN(X))), F attention and then the feed-forward part, with `zoo.layers.ManifoldUpdate`
in place of the skip. Without gate and delta it is the standard Transformer, pre-norm or post-norm.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from zoo.errors import UsageError
from zoo.layers.causal import CausalSelfAttention, FeedForward
from zoo.layers.manifold import ManifoldUpdate
from zoo.models.decoder import DecoderConfig, DecoderForCausalLM, DecoderModel, DecoderPreTrainedModel

_PRESETS = {"paper": (1.0, 0.0), "ddl": (1.0, 1.0)}


class MgtConfig(DecoderConfig):
    """Sizes as in `DecoderConfig`, and which arm it is.

    gate : the soft projection V * sigmoid(LN(X W_gate)) (the source's mHC).
    delta : the update X + beta (V - alpha X) (the source's DDL).
    norm_order : "pre" or "post"; "post" for the standard arm alone.
    delta_preset : lambda and epsilon, "paper" 1 and 0, "ddl" 1 and 1; `delta_scale` and `delta_shift` override them.
    delta_init : beta at the start. alpha_init : alpha at the start, None is 1 / (2 num_hidden_layers), by which the
        state that survives all layers is exp(-beta) at any depth; `alpha_learned` whether it is a parameter.
    gate_scale : 2 keeps the size of V on average.
    gate_input : what gate and controller read, the "stream" X as the source writes it, or the "norm" LN(X) that the
        part itself reads.
    """

    model_type = "mgt_lm"

    gate: bool = True
    delta: bool = True
    norm_order: Literal["pre", "post"] = "pre"
    delta_preset: Literal["paper", "ddl"] = "paper"
    delta_scale: float | None = None
    delta_shift: float | None = None
    delta_init: float = 0.5
    alpha_init: float | None = None
    alpha_learned: bool = True
    gate_scale: float = 1.0
    gate_input: Literal["stream", "norm"] = "stream"

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.check_choice("norm_order", ("pre", "post"))
        self.check_choice("delta_preset", tuple(_PRESETS))
        self.check_choice("gate_input", ("stream", "norm"))
        self.check_switch("gate", "delta", "alpha_learned")
        self.check_number("delta_init", -100, 100)
        self.check_number("gate_scale", 1e-3, 100)
        for key, least, most in (("delta_scale", 1e-3, 100), ("delta_shift", -100, 100), ("alpha_init", 0, 2)):
            if getattr(self, key) is not None:
                self.check_number(key, least, most)
        if self.norm_order == "post" and (self.gate or self.delta):
            raise UsageError("post-norm is for the standard arm: set gate and delta to False with it")

    def update_arguments(self) -> dict[str, Any]:
        """What `ManifoldUpdate` is built with."""
        scale, shift = _PRESETS[self.delta_preset]
        return {
            "gate": self.gate,
            "delta": self.delta,
            "delta_scale": scale if self.delta_scale is None else self.delta_scale,
            "delta_shift": shift if self.delta_shift is None else self.delta_shift,
            "delta_init": self.delta_init,
            "alpha": 1 / (2 * self.num_hidden_layers) if self.alpha_init is None else self.alpha_init,
            "alpha_learned": self.alpha_learned,
            "gate_scale": self.gate_scale,
            "eps": self.layer_norm_eps,
        }


class Connection(nn.Module):
    """One part F with its norm and its way back into the stream. x: (batch, tokens, dim) -> the same shape.

    Manifold: update(x, F(LN(x))). Standard: x + F(LN(x)) pre-norm, LN(x + F(x)) post-norm.
    """

    def __init__(self, config: MgtConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        manifold = config.gate or config.delta
        self.update = ManifoldUpdate(config.hidden_size, **config.update_arguments()) if manifold else None
        self.post, self.reads_norm = config.norm_order == "post", config.gate_input == "norm"

    def enter(self, x: Tensor) -> Tensor:
        """What F reads."""
        return x if self.post else self.norm(x)

    def leave(self, x: Tensor, entered: Tensor, v: Tensor) -> Tensor:
        """The stream after F gave `v` for `entered`."""
        if self.update is not None:
            return self.update(x, v, entered if self.reads_norm else None)
        return self.norm(x + v) if self.post else x + v


class MgtBlock(GradientCheckpointingLayer):
    """Attention, then the feed-forward part, each with its `Connection`. x: (batch, tokens, dim) -> the same shape."""

    def __init__(self, config: MgtConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn, self.attn_connection = CausalSelfAttention(config, layer_idx), Connection(config)
        self.mlp, self.mlp_connection = FeedForward(config), Connection(config)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        h = self.attn_connection.enter(x)
        x = self.attn_connection.leave(x, h, self.self_attn(h, **kwargs)[0])
        h = self.mlp_connection.enter(x)
        return self.mlp_connection.leave(x, h, self.mlp(h))


class MgtPreTrainedModel(DecoderPreTrainedModel):
    """Initialisation of the updates beside that of the rest."""

    config_class = MgtConfig
    _no_split_modules: ClassVar[list[str]] = ["MgtBlock"]
    _can_record_outputs: ClassVar[dict[str, Any]] = {"hidden_states": MgtBlock, "attentions": CausalSelfAttention}

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ManifoldUpdate):
            # Of a checkpoint that lacks some of its weights the others stay: transformers marks what it has loaded.
            marked = [p for p in module.parameters() if getattr(p, "_is_hf_initialized", False)]
            kept = [parameter.detach().clone() for parameter in marked]
            module.reset_parameters(self.config.initializer_range)
            for parameter, value in zip(marked, kept, strict=True):
                parameter.data.copy_(value)


class MgtModel(MgtPreTrainedModel, DecoderModel):
    """Token ids to hidden states. In post-norm the last block ends in a norm, and no other follows."""

    block_class = MgtBlock

    def final_norm(self, config: MgtConfig) -> nn.Module:
        """The final LayerNorm of the pre-norm arms."""
        return nn.Identity() if config.norm_order == "post" else super().final_norm(config)


class MgtForCausalLM(MgtPreTrainedModel, DecoderForCausalLM):
    """Token ids to logits, a loss, and `generate`."""

    model_class = MgtModel


AutoConfig.register(MgtConfig.model_type, MgtConfig)
AutoModel.register(MgtConfig, MgtModel)
AutoModelForCausalLM.register(MgtConfig, MgtForCausalLM)
