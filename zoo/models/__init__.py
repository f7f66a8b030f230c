"""Whole networks. Importing this module registers every architecture with timm."""

from __future__ import annotations

from zoo.models.ns_swin import NsSwinTransformer
from zoo.models.ns_vit import NsVisionTransformer
from zoo.models.osa_vit import OsaVisionTransformer

__all__ = ["NsSwinTransformer", "NsVisionTransformer", "OsaVisionTransformer"]
