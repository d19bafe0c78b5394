"""The loops of the extremes compiled for AVX2."""

include "task.pxi"
