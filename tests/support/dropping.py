"""A processor that takes subnormal numbers for 0, as another library may have set it."""

import sys

import pytest

import child
from bnorm.kernels import cpu

PRELUDE = """
import ctypes, numpy as np
from bnorm.kernels.cpu.exact import entries
libm = ctypes.CDLL(None)
fenv = (ctypes.c_uint32 * 8)()

def drop():
    libm.fegetenv(fenv)
    fenv[7] |= 0x8040
    libm.fesetenv(fenv)

def drops():
    libm.fegetenv(fenv)
    return bool(fenv[7] & 0x8040)
"""


def output(code):
    """Return what a program prints that calls `drop()` to set the processor, and `drops()` to see that it still is."""
    if not sys.platform.startswith("linux") or "avx2" not in cpu.simd_levels():
        pytest.skip("the place of the control register in fenv_t is that of Linux on x86-64")
    done = child.run("-c", PRELUDE + code)
    assert done.returncode == 0, done.stderr
    return done.stdout
