"""The one gateway to the Hub and its cache, and to the published folders of a checkout."""

from __future__ import annotations

from zoo.hub.gateway import fetch
from zoo.hub.integrity import check_safetensors, sha256_of
from zoo.hub.weights import FILE as WEIGHTS_FILE
from zoo.hub.weights import TOKENIZER_FILES, at_hand, find_weights

__all__ = ["TOKENIZER_FILES", "WEIGHTS_FILE", "at_hand", "check_safetensors", "fetch", "find_weights", "sha256_of"]
