"""Extremes of channels: the entry, and its loops, one source for every SIMD level."""
