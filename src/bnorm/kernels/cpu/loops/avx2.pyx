"""The loops compiled for AVX2."""

include "table.pxi"
