"""Dask with worker processes and a scheduler. Each run has a process of its own and a time limit."""

import numpy as np
import pytest

import bnorm.functional as F
import child

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")


@pytest.mark.parametrize(
    "names", [["results"], pytest.param(["kernel_threads", "worker_killed"], marks=pytest.mark.slow)]
)
def test_two_workers(names):
    pytest.importorskip("distributed")
    assert child.output("cluster.py", *names).split() == names


def test_a_pool_of_processes():
    lazy = da.from_array(np.random.default_rng(0).standard_normal((1000, 3)), chunks=(100, 3))
    with dask.config.set(scheduler="processes", num_workers=2):
        moments = F.moments(lazy)
    with dask.config.set(scheduler="synchronous"):
        assert F.moments(lazy) == moments
