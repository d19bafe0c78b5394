"""Displays, in the manner of scikit-learn's, of statistics and of normalized tables. Drawing imports matplotlib."""

from bnorm.plot.normalization import NormalizationDisplay
from bnorm.plot.running import RunningStatsDisplay

__all__ = ["NormalizationDisplay", "RunningStatsDisplay"]
