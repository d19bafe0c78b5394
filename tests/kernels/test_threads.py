"""Threads: how many, who says so, who may call, and what a fork does to them. And the SIMD level, chosen alike."""

import os
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import bnorm
import processes
from bnorm.kernels import cpu
from bnorm.kernels.cpu import threads
from child import output, run

openmp = pytest.mark.skipif(not threads.openmp_version(), reason="built without OpenMP")
linux = pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")


@pytest.fixture
def gnu():
    if "libgomp" not in output("processes.py", "runtimes"):
        pytest.skip("not GNU's runtime: others wait in another way, and read the environment in another way")


# How many -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [True, np.True_, 1.0, 1.5, "2", None, [1], np.array([1, 2])], ids=repr)
def test_a_number_of_threads_is_an_integer(n):
    before = bnorm.get_num_threads()
    with pytest.raises(TypeError, match=r"set_num_threads: n: expected an integer, got"):
        bnorm.set_num_threads(n)
    assert bnorm.get_num_threads() == before


@pytest.mark.parametrize("n", [0, -1, 65536, 2**31, 2**32 + 1, 2**70, -(2**70)])
def test_a_number_of_threads_has_a_range(n):
    before = bnorm.get_num_threads()
    with pytest.raises(ValueError, match=rf"set_num_threads: n: expected 1 to 65535, got {n}$"):
        bnorm.set_num_threads(n)
    assert bnorm.get_num_threads() == before


@openmp
@linux
@pytest.mark.parametrize("name", ["threads_from_the_environment", "threads_that_were_set", "threads_of_threadpoolctl"])
def test_who_says_how_many(name):
    output("processes.py", name, OMP_NUM_THREADS=3, OPENBLAS_NUM_THREADS=1)


@linux
def test_rows_without_parameters_need_no_memory():
    output("processes.py", "rows_without_scratch", OPENBLAS_NUM_THREADS=1)


@openmp
@linux
def test_few_rows_or_few_columns_are_shared_out():
    for name, shapes in (
        ("threads_of_tables", ["100x784", "800x1000", "2000x100", "30000x3"]),
        ("threads_of_maps", ["8x16384", "1x70000", "1x300x300"]),
        ("threads_of_gradients", ["9x64x64"]),
    ):
        found = output("processes.py", name, *shapes, OMP_NUM_THREADS=2, OPENBLAS_NUM_THREADS=1)
        assert found.split() == shapes


@openmp
@linux
@pytest.mark.parametrize("team", ["without_cores", "that_has_slept", "that_wakes"])
def test_a_team_that_comes_too_late(team, request):
    """The runtime's threads spin while they wait for one that does not run, where they may: milliseconds a call."""
    if team != "without_cores":  # there the threads of any runtime may be late
        request.getfixturevalue("gnu")
    output("teams.py", team, OMP_NUM_THREADS=2, OPENBLAS_NUM_THREADS=1, OMP_WAIT_POLICY="active")


@openmp
@linux
def test_threads_that_the_system_refuses():
    """OpenMP runtimes end the process there."""
    output("processes.py", "threads_that_the_system_refuses", OMP_NUM_THREADS=3, OPENBLAS_NUM_THREADS=1)


STACKS = [
    ({"OMP_STACKSIZE": "4G"}, True),
    ({"OMP_STACKSIZE": " 4096 M "}, True),
    ({"OMP_STACKSIZE": "4194304"}, True),
    ({"GOMP_STACKSIZE": "4g"}, True),
    ({"OMP_STACKSIZE": "wrong", "GOMP_STACKSIZE": "4294967296b"}, True),
    ({"OMP_STACKSIZE": "1M"}, False),
    ({"OMP_STACKSIZE": "128k"}, True),  # these are started, but too small for the kernels
]
GNU = [
    ({"OMP_STACKSIZE": "1M", "GOMP_STACKSIZE": "4G"}, False),  # LLVM's prefers the second
    ({"OMP_STACKSIZE": "1 k"}, False),  # too small, so the default, which LLVM's does not use
    ({"OMP_STACKSIZE": "4GB"}, False),  # no size, but one for LLVM's
]


@openmp
@linux
@pytest.mark.parametrize(("sizes", "refused"), STACKS + GNU, ids=str)
def test_stacks_that_do_not_fit(sizes, refused, request):
    """OpenMP runtimes end the process there, too, and kernels that overrun their stack do."""
    if (sizes, refused) in GNU:
        request.getfixturevalue("gnu")
    output("processes.py", "threads_without_memory", refused, OMP_NUM_THREADS=3, OPENBLAS_NUM_THREADS=1, **sizes)


def test_a_numpy_integer_is_an_integer():
    before = bnorm.get_num_threads()
    bnorm.set_num_threads(np.int64(before))
    assert bnorm.get_num_threads() == before


def test_openmp_is_named_as_it_is():
    version = threads.openmp_version()
    assert version == 0 or version >= 200805  # the standard of tasks
    assert bool(output("processes.py", "runtimes").strip()) == (version > 0)
    shown = output("processes.py", "show", OMP_NUM_THREADS=3)
    assert re.search(r"Built with OpenMP: (.*)", shown)[1] == (f"True ({version})" if version else "False")
    assert re.search(r" threads: (.*)", shown)[1] == ("3" if version else "1")


# Who may call ---------------------------------------------------------------------------------------------------------


def test_two_threads_at_once():
    output("processes.py", "two_threads_at_once", OMP_NUM_THREADS=2)


def test_other_threads_run_during_a_call():
    output("processes.py", "without_the_lock")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_fork():
    """A child must not wait for threads that it does not have. Where it does, this ends by the time limit."""
    assert output("processes.py", "forks", OMP_NUM_THREADS=4).split() == processes.FORKS


KINDS = ("fork", "spawn", "forkserver", "loky")
ORDERS = [kinds[i:] + kinds[:i] for kinds in (KINDS, KINDS[::-1]) for i in range(4)]  # each after each other


@pytest.mark.slow
@linux
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_pools_of_every_kind(order):
    """Where a worker waits for threads that it does not have, this ends by the time limit."""
    pytest.importorskip("joblib", reason="loky comes with it")
    output("processes.py", "pools", *order, OMP_NUM_THREADS=2, OPENBLAS_NUM_THREADS=1)


@pytest.mark.slow
@openmp
@linux
def test_three_runtimes_in_one_process():
    pytest.importorskip("torch", reason="it brings a runtime of its own")
    output("processes.py", "runtimes_of_three", OMP_NUM_THREADS=2, OPENBLAS_NUM_THREADS=1)


# SIMD -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [*cpu.simd_levels(), ""])
def test_a_simd_level_is_used_and_shown(level):
    shown = output("processes.py", "show", BNORM_SIMD=level)
    assert re.search(r"SIMD level in use: (.*)", shown)[1] == (level or cpu.simd_levels()[-1])
    assert re.search(r"SIMD levels here: (.*)", shown)[1] == ", ".join(cpu.simd_levels())


def test_an_unknown_simd_level():
    have = ", ".join(cpu.simd_levels())
    said = f"BNORM_SIMD: expected one of {have} on this processor, got "
    for level in ("AVX2", "0", " "):
        with pytest.raises(ImportError, match=f"^{re.escape(said + repr(level))}$"):
            cpu._choose(level)
    done = run("-c", "import bnorm", BNORM_SIMD="avx1024")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == f"ImportError: {said}'avx1024'"


@pytest.mark.parametrize("has", [0, 1])
def test_a_simd_level_that_this_processor_lacks(monkeypatch, has):
    monkeypatch.setattr(cpu, "entries", SimpleNamespace(processor_level=lambda: has))
    monkeypatch.setattr(cpu, "find_spec", bool)  # all are built, as they are on the processors that have some of them
    have = cpu.LEVELS[: has + 1]
    assert [cpu._choose(level) for level in have] == list(have)
    assert cpu._choose(None) == have[-1]
    with pytest.raises(
        ImportError, match=f"^BNORM_SIMD: expected one of {', '.join(have)} on this processor, got 'avx"
    ):
        cpu._choose(cpu.LEVELS[has + 1])
