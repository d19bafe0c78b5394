"""The loops of the exact sums compiled for AVX-512."""

include "task.pxi"
