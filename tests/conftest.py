"""What holds for all tests."""

import gc
import os
import signal
import sys
import zlib
from collections.abc import Callable, Generator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import pytest
from _pytest.mark.expression import Expression

import drawing

# These options are for this run, which has read them, and not for a pytest that a test starts.
os.environ.pop("PYTEST_ADDOPTS", None)

# Threads that wait do not spin, as in child.py: OpenMP reads this when the first test file imports bnorm.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Nothing here is much work for NumPy's BLAS, whose threads would spin half of the time that a process takes to start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What JAX compiles here runs once: its compiler need not optimize, which takes it a fifth of the time of these tests.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

# A shell lets what it starts in the background ignore interrupts, and children would too: tests interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with suppress(ValueError):  # in another thread than the main one
        signal.signal(signal.SIGINT, signal.default_int_handler)

if find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    # A machine that is busy with other work is no error: no time limits, and the same cases in every run. Of these the
    # default run tries some, and .ci/run all: --hypothesis-profile=every. To look for new ones:
    # --hypothesis-profile=default, or for an hour, --hypothesis-profile=long
    common: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("some", derandomize=True, max_examples=40, **common)
    settings.register_profile("every", derandomize=True, max_examples=100, **common)
    settings.register_profile("long", max_examples=10_000, **common)
    settings.load_profile("some")


def pytest_configure(config: pytest.Config) -> None:
    """All combinations of settings are made only where slow tests are asked for: they are more than all other tests."""
    asked = config.option.markexpr
    drawing.ALL = not asked or Expression.compile(asked).evaluate(lambda name, **_: name == "slow")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of what is collected goes again, so looking for what has gone is a quarter of the time of collecting."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected stays to the end: garbage collection, which some tests ask for, need not look through it. Nor
    is it looked through now, for what little of it is garbage.

    Who asks for the tests of a device, and has none, has not tested anything: that is an error.
    """
    asked = "gpu" in session.config.option.markexpr and not session.config.option.collectonly
    if asked and session.items and all(item.get_closest_marker("gpu") for item in session.items):
        from bnorm.kernels import gpu

        if reason := gpu.available():
            raise pytest.UsageError(f"-m {session.config.option.markexpr}: {reason}")
    gc.freeze()


@pytest.fixture
def set_threads() -> Generator[Callable[[int], None]]:
    """A function that sets the number of threads, until the test ends."""
    import bnorm

    before = bnorm.get_num_threads()
    yield bnorm.set_num_threads
    bnorm.set_num_threads(before)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Function) -> None:
    """The generators of a test's module begin anew, each time with a seed of the test's own: the numbers that it draws
    depend on its name, not on the tests that ran before it in the same process."""
    import numpy as np

    seed = zlib.crc32(item.nodeid.encode())
    for found in vars(item.module).values():
        if isinstance(found, np.random.Generator):
            found.bit_generator.state = np.random.PCG64(seed).state
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also notes a stack, for 70 times as long
