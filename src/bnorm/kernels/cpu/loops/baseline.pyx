"""The loops compiled for the oldest processor of this architecture."""

include "table.pxi"
