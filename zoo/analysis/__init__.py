"""The measurements of the papers, on any model that has what they measure."""

from __future__ import annotations

from zoo.analysis.spectrum import HeadSpectra, head_spectra

__all__ = ["HeadSpectra", "head_spectra"]
