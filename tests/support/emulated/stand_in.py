"""A plugin of pytest: tests of a device run where there is none, on the stand-in for CuPy and the emulator.

    PYTHONPATH=tests/support python -m pytest -p emulated.stand_in -m gpu tests/kernels

What is wrong in a test itself, because CuPy's arrays are not NumPy's, is then known before a device is there.
"""

import sys

from bnorm.kernels import BACKENDS, gpu
from emulated import fake_cupy

gpu.available = lambda: None
BACKENDS[fake_cupy.ndarray] = gpu
sys.modules["cupy"] = fake_cupy
