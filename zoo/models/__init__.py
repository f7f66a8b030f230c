"""Whole networks. Importing this module registers every architecture with timm or transformers."""

from __future__ import annotations

from zoo.models.mgt_lm import MgtConfig, MgtForCausalLM, MgtModel
from zoo.models.ns_swin import NsSwinTransformer
from zoo.models.ns_vit import NsVisionTransformer
from zoo.models.osa_vit import OsaVisionTransformer

__all__ = [
    "MgtConfig",
    "MgtForCausalLM",
    "MgtModel",
    "NsSwinTransformer",
    "NsVisionTransformer",
    "OsaVisionTransformer",
]
