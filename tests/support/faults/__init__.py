"""The faults that `mutations.py` plants, by area.

An entry says what is wrong in words, in which file below src/bnorm, its code, the code with the fault, and which tests
should see it.
"""

from faults import conversions, cuda, kernels, layers, statistics, tables, transformers

Listed = dict[str, list[tuple[str, str, str, str, str]]]

IN_PYTHON: Listed = {**statistics.FAULTS, **layers.FAULTS, **transformers.FAULTS, **tables.FAULTS, **conversions.FAULTS}
IN_PYTHON |= cuda.FAULTS
COMPILED: Listed = kernels.FAULTS
