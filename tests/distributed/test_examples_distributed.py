"""The examples of Dask and MPI, run as a person runs them, on little."""

import re
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

import child
from ranks import needs_mpi, with_mpi

EXAMPLES = Path(__file__).parents[2] / "examples"


def number(label, text):
    return float(re.search(rf"{re.escape(label)} ?([\d.e+-]+)", text)[1])


@pytest.mark.slow
@needs_mpi
def test_ranks_learn_as_one():
    done = with_mpi(2, EXAMPLES / "mpi_sync.py", "--quick", python=["-m", "mpi4py"])
    assert done.returncode == 0, done.stderr
    assert number("from one rank, comm=:", done.stdout) < 1e-9
    assert number("from one rank, without comm=:", done.stdout) > 1e-3
    losses = [[float(word) for word in line.split()[1:3]] for line in done.stdout.splitlines() if line[4:5].isdigit()]
    assert len(losses) == 3
    assert all(loss == pytest.approx(other, abs=1e-9) for loss, other in losses)


@pytest.mark.slow
def test_a_table_of_files():
    for name in ("distributed", "dask.dataframe", "pyarrow"):
        pytest.importorskip(name)
    done = child.run(EXAMPLES / "dask_table.py", "--rows", 60_000)
    assert done.returncode == 0, done.stderr
    assert "Dashboard: http://" in done.stdout
    assert "100% Completed" in done.stdout
    assert number("means within", done.stdout) < 1e-11
    assert number("variances within", done.stdout) < 1e-11


@pytest.mark.engines
@pytest.mark.skipif(find_spec("pyspark") is None, reason="not installed: pyspark")
@pytest.mark.skipif(which("java") is None, reason="no Java: Debian has openjdk-17-jre-headless")
def test_a_table_of_spark():
    done = child.run(EXAMPLES / "spark_table.py", "--rows", 20_000, "--master", "local[2]", timeout=250)
    assert done.returncode == 0, done.stderr
    assert number("means within", done.stdout) < 2e-11  # half a place of a mean of a million, over a deviation of 12
    assert number("variances within", done.stdout) < 1e-11
    assert len(set(re.findall(r"^  ([0-9a-f]{32})$", done.stdout, re.MULTILINE))) == 1
