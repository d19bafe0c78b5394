"""The loops of the exact sums compiled for AVX2 and FMA."""

include "task.pxi"
