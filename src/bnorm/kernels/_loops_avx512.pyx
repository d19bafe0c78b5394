"""The loops compiled for AVX-512."""

include "_loops.pxi"
