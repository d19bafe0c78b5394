"""No kernel leaves its arrays: every entry, type and SIMD level on arrays that end, or begin, at a page that may not be
touched. `python tests/support/fences.py` runs the tests of this folder so."""

import json
import signal
import sys

import pytest

import compiled
from bnorm.kernels import cpu
from bnorm.kernels.cpu import entries, groups, second, sparse
from bnorm.kernels.cpu.exact import entries as exact
from bnorm.kernels.cpu.extremes import entries as extreme
from child import output, run
from fences import SIDES

pytestmark = compiled.needs_compiler

MODULES = {"": entries, "groups.": groups, "second.": second, "sparse.": sparse, "exact.": exact, "extreme.": extreme}
# These read no values.
OTHERS = {"use", "processor_level", "use_sizes", "use_habit", "use_watch", "mean_weights"}
OTHERS |= {"again", "apart", "ready", "restored"}
PREPARED = {"settle_prepared", "move_prepared"}  # give the arguments of settle and move to another backend


LEVELS = cpu.simd_levels()
BOTH = [
    pytest.param(level, side, marks=() if side == "end" or level == LEVELS[-1] else pytest.mark.slow)
    for level in LEVELS
    for side in SIDES
]


@pytest.mark.parametrize(("level", "side"), BOTH)
def test_every_entry(level, side):
    """In a process of its own, as what leaves an array ends it."""
    called = set(json.loads(output("fenced_kernels.py", side, BNORM_SIMD=level, BNORM_BUFFER_LIMIT=0)))
    every = {
        f"{prefix}{name}"
        for prefix, module in MODULES.items()
        for name, value in vars(module).items()
        if type(value).__name__ == "cython_function_or_method" and not name.startswith("_")
    }
    assert called == every - OTHERS - PREPARED - {f"{prefix}use" for prefix in MODULES}


@pytest.mark.parametrize("side", SIDES)
def test_a_fence(side):
    code = f"""import ctypes, sys
sys.path[:0] = {sys.path!r}
import fences, numpy as np
fences.raised({side!r})
a = np.ones(1000, "u1")
text = ctypes.string_at(a.ctypes.data, 1000)
print(len(text), flush=True)
ctypes.string_at(a.ctypes.data + (1000 if {side!r} == "end" else -1), 1)"""
    done = run("-c", code)
    assert (done.stdout.strip(), done.returncode) == ("1000", -signal.SIGSEGV), done.stderr
