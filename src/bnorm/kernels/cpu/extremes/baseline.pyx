"""The loops of the extremes compiled for the oldest processor of this architecture."""

include "task.pxi"
