"""Real ranks of MPI. Each run has a time limit: a hang is a failure."""

import subprocess

import pytest

from ranks import needs_mpi, with_mpi

pytestmark = needs_mpi
SCRIPT = "mpi_ranks.py"


def test_layers_statistics_and_errors():
    """On three ranks, and on two of them."""
    names = ["training", "merging", "failing"]
    done = with_mpi(3, SCRIPT, *names, 2, *names)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} {n}" for n in (3, 2) for name in names]


def test_a_rank_that_never_comes_is_not_waited_for_here():
    """All ranks are killed: else their end would be waited for, which does not come. Ranks that wait take all cores, so
    they get as long as they need to begin, and little more."""
    for timeout in (1, 4, 60):
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            with_mpi(2, SCRIPT, "hanging", timeout=timeout)
        if (caught.value.output or b"").count(b"here") == 2:  # not always on a line each
            return
    pytest.fail(f"two ranks have not begun in {timeout} s")


def test_an_error_outside_of_a_layer_ends_all_ranks():
    done = with_mpi(2, SCRIPT, "dying", python=["-m", "mpi4py"])
    assert done.returncode != 0
    assert "KeyError" in done.stderr
