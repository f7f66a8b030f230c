"""What all causal language models of the zoo share: transformers' conventions, written once.

A family gives its configuration, its block, and three short classes (`mgt_lm.py` is one).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import can_return_tuple
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from zoo.errors import UsageError
from zoo.layers.causal import CausalSelfAttention, FeedForward, RotaryEmbedding, seen_columns
from zoo.ops import signed_sine

# transformers 5.24 calls the cache `cache`, most callers `past_key_values`; both are taken, without a word.
_both_names = deprecate_kwarg("past_key_values", "5.24.0", new_name="cache")


class DecoderConfig(PreTrainedConfig):
    """What every causal language model here is told, in transformers' words.

    vocab_size, hidden_size, num_hidden_layers, num_attention_heads : the sizes.
    intermediate_size : of the feed-forward part; None is 4 hidden_size.
    hidden_act : its activation, by transformers' name.
    max_position_embeddings : the context, in tokens.
    initializer_range : standard deviation of the weights; what writes to the residual stream has it divided by
        sqrt(2 num_hidden_layers), as in GPT-2.
    layer_norm_eps : of every LayerNorm. attention_dropout : of the attention weights in training.
    rope_parameters : of transformers; None is base 10,000.
    use_cache : whether keys and values are kept by default. tie_word_embeddings : whether the head is the embedding.
    bos_token_id, eos_token_id, pad_token_id : of the tokenizer.

    Raises UsageError for a value out of its range, where it is built.
    """

    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache"]

    vocab_size: int = 8192
    hidden_size: int = 256
    intermediate_size: int | None = None
    num_hidden_layers: int = 12
    num_attention_heads: int = 4
    hidden_act: str = "gelu"
    max_position_embeddings: int = 1024
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    attention_dropout: float = 0.0
    use_cache: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    rope_parameters: dict | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        for key in (
            *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
            "max_position_embeddings",
        ):
            if type(getattr(self, key)) is not int or getattr(self, key) < 1:
                raise UsageError(f"{key} has to be a whole number from 1 on, got {getattr(self, key)!r}")
        self.check_number("attention_dropout", 0, 0.99)
        self.check_number("layer_norm_eps", 1e-12, 1)
        self.check_number("initializer_range", 0, 1)
        self.check_choice("hidden_act", tuple(ACT2FN))
        self.check_switch("use_cache", "tie_word_embeddings")
        if not isinstance(self.rope_parameters, dict | None):
            raise UsageError(f"rope_parameters has to be a mapping, got {self.rope_parameters!r}")
        super().__post_init__(**kwargs)
        rope: dict[str, Any] = self.rope_parameters or {}
        known, base = ("default", *ROPE_INIT_FUNCTIONS), rope.get("rope_theta", 1.0)
        if rope.get("rope_type", "default") not in known:
            raise UsageError(f"rope_type has to be one of {', '.join(known)}, got {rope['rope_type']!r}")
        if not _is_number(base) or not 0 < base < math.inf:
            raise UsageError(f"rope_theta has to be a number above 0, got {base!r}")

    @classmethod
    def arguments(cls) -> set[str]:
        """The fields that make the architecture, all that is declared here and in the family but the special tokens."""
        own = {key for kind in cls.__mro__ if issubclass(kind, DecoderConfig) for key in kind.__annotations__}
        return own - {"bos_token_id", "eos_token_id", "pad_token_id", "keys_to_ignore_at_inference"}

    def check_number(self, key: str, least: float, most: float) -> None:
        """UsageError where the field `key` is no number from `least` to `most`."""
        value = getattr(self, key)
        if not _is_number(value) or not least <= value <= most:
            raise UsageError(f"{key} has to be a number from {least:g} to {most:g}, got {value!r}")

    def check_choice(self, key: str, known: tuple[str, ...]) -> None:
        """UsageError where the field `key` is none of `known`."""
        if getattr(self, key) not in known:
            raise UsageError(f"{key} has to be one of {', '.join(known)}, got {getattr(self, key)!r}")

    def check_switch(self, *keys: str) -> None:
        """UsageError where one of the fields `keys` is neither true nor false."""
        for key in keys:
            if not isinstance(getattr(self, key), bool):
                raise UsageError(f"{key} has to be true or false, got {getattr(self, key)!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class DecoderPreTrainedModel(PreTrainedModel):
    """Initialisation, and what transformers may do with these models."""

    config_class: type[PreTrainedConfig] = DecoderConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, (CausalSelfAttention, FeedForward)):
            last = module.o_proj if isinstance(module, CausalSelfAttention) else module.down_proj
            std = self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
            init.normal_(last.weight, mean=0.0, std=std)


class DecoderModel(DecoderPreTrainedModel):
    """Token ids, or embeddings, to hidden states; the family's blocks are `block_class(config, layer_idx)`."""

    block_class: ClassVar[type[nn.Module]]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)  # padding is masked, and may be a token
        self.layers = nn.ModuleList(self.block_class(config, index) for index in range(config.num_hidden_layers))
        self.norm = self.final_norm(config)
        self.rotary_emb = RotaryEmbedding(config)
        self.gradient_checkpointing = False
        self.post_init()

    def final_norm(self, config: Any) -> nn.Module:
        """What stands between the last block and the head."""
        return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    @_both_names
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """input_ids: (batch, tokens) or inputs_embeds: (batch, tokens, dim) -> last_hidden_state (batch, tokens, dim).

        attention_mask: (batch, tokens so far), 0 for padding, or 4-d as it is; position_ids go on from the cache where
        they are left out. Raises ValueError unless exactly one of the two inputs is given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        if position_ids is None:
            before = cache.get_seq_length() if cache is not None else 0
            position_ids = (torch.arange(x.shape[1], device=x.device) + before).unsqueeze(0)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            cache=cache,
            position_ids=position_ids,
            # A cache of fixed length has slots that nobody has filled, and without a mask they would be read.
            allow_is_causal_skip=not getattr(cache, "is_compileable", False),
        )
        cos, sin = self.rotary_emb(x[:, :0].float(), position_ids)  # in float32, whatever the model's type
        rotary = cos.unsqueeze(1), signed_sine(sin).unsqueeze(1)
        seen = seen_columns(mask)
        # As many as the configuration says: assisted generation with an early exit lowers it for a while.
        for layer in self.layers[: self.config.num_hidden_layers]:
            x = layer(x, rotary=rotary, mask=mask, seen=seen, cache=cache, **kwargs)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), cache=cache)


class DecoderForCausalLM(DecoderPreTrainedModel, GenerationMixin):
    """The model with its head, whose weight is the embedding's unless the configuration says otherwise."""

    model_class: ClassVar[type[DecoderModel]]
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = self.model_class(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @_both_names
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """input_ids: (batch, tokens) -> logits (batch, tokens, vocab), and with labels the mean loss in nats.

        labels: (batch, tokens), shifted here, -100 left out; `logits_to_keep` computes the last so many logits only.
        The rest as in `DecoderModel.forward`.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
