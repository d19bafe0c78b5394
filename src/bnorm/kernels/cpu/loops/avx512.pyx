"""The loops compiled for AVX-512."""

include "table.pxi"
