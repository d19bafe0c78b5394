"""The loops of the exact sums compiled for the oldest processor of this architecture."""

include "task.pxi"
