"""Normalizers of streams: running statistics of an online loop, and instance norm that can be inverted.

rn = RunningNorm(17, clip=10)
z = rn(obs)                     # one observation or a batch: updates, and normalizes
rev = RevIN(7)
z = rev(x)                      # each series by its own mean and standard deviation
y = rev.inverse(out)            # back to the level of its series
"""

from bnorm.streams.revin import RevIN
from bnorm.streams.running import RunningNorm
from bnorm.streams.tree import RunningNormTree

__all__ = ["RevIN", "RunningNorm", "RunningNormTree"]
