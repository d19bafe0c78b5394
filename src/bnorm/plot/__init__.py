"""Pictures of what was learned, as scikit-learn's displays are made. matplotlib is imported when one is drawn."""

from bnorm.plot.normalization import NormalizationDisplay
from bnorm.plot.running import RunningStatsDisplay

__all__ = ["NormalizationDisplay", "RunningStatsDisplay"]
