"""What a language model's configuration takes, and what it refuses before anything is built."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

import zoo
import zoo.models
from zoo.errors import UsageError

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"attention_dropout": 2}, "attention_dropout has to be a number from 0 to"),
    ({"attention_dropout": -1}, "attention_dropout"),
    ({"attention_dropout": "abc"}, "attention_dropout"),
    ({"layer_norm_eps": "abc"}, "layer_norm_eps"),
    ({"layer_norm_eps": -1}, "layer_norm_eps"),
    ({"initializer_range": 1e30}, "initializer_range"),
    ({"alpha_init": float("nan")}, "alpha_init"),
    ({"alpha_init": float("inf")}, "alpha_init"),
    ({"gate_scale": float("nan")}, "gate_scale"),
    ({"gate_scale": True}, "gate_scale"),
    ({"delta_scale": "x"}, "delta_scale"),
    ({"hidden_act": "nonsense"}, r"hidden_act has to be one of .*gelu"),
    ({"hidden_act": ["gelu"]}, "hidden_act"),
    ({"tie_word_embeddings": "maybe"}, "true or false"),
    ({"rope_parameters": {"rope_theta": 0}}, "rope_theta has to be a number above 0"),
    ({"rope_parameters": {"rope_type": "nope"}}, "rope_type has to be one of default"),
    ({"rope_parameters": 7}, "rope_parameters"),
    ({"delta_preset": "other"}, "delta_preset has to be one of paper, ddl"),
    ({"num_hidden_layers": 0}, "num_hidden_layers"),
    ({"num_hidden_layers": True}, "num_hidden_layers"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[str(given) for given, _ in REFUSED])
def test_what_cannot_be_meant_is_named_with_what_can(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        AutoConfig.for_model("mgt_lm", **arguments)
    with pytest.raises(UsageError, match=words):
        zoo.load("test-mgt-lm", pretrained=False, **arguments)


@pytest.mark.parametrize(
    "key",
    [
        *("return_dict", "is_encoder_decoder", "architectures", "transformers_version", "chunk_size_feed_forward"),
        *("problem_type", "eos_token_id", "bos_token_id", "pad_token_id", "surprise"),
    ],
)
def test_what_makes_no_architecture_is_no_argument(key: str) -> None:
    with pytest.raises(UsageError, match=f"it has no '{key}'"):
        zoo.load("test-mgt-lm", pretrained=False, **{key: 1})
