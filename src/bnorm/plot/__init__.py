"""Displays, in the manner of scikit-learn's, of statistics and of normalized tables. Drawing imports matplotlib."""

from bnorm.plot.groups import GroupsDisplay
from bnorm.plot.normalization import NormalizationDisplay
from bnorm.plot.running import RunningStatsDisplay

__all__ = ["GroupsDisplay", "NormalizationDisplay", "RunningStatsDisplay"]
