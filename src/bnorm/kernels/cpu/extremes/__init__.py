"""Extremes of channels: the entry and its loops, which are one source for every SIMD level."""
