"""The loops compiled for the oldest processor of this architecture."""

include "_loops.pxi"
