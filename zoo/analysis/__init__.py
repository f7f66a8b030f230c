"""The measurements of the papers, on any model that has what they measure."""

from __future__ import annotations

from zoo.analysis.depth import BetaStatistics, DepthProfile, depth_profile, effective_rank
from zoo.analysis.spectrum import HeadSpectra, head_spectra

__all__ = [
    "BetaStatistics",
    "DepthProfile",
    "HeadSpectra",
    "depth_profile",
    "effective_rank",
    "head_spectra",
]
