"""The loops of the extremes compiled for AVX-512."""

include "task.pxi"
