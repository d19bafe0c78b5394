"""The loops compiled for AVX2."""

include "_loops.pxi"
