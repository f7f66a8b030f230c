"""Whole networks. Importing this module registers every architecture with timm."""

from __future__ import annotations

from zoo.models.osa_vit import OsaVisionTransformer

__all__ = ["OsaVisionTransformer"]
