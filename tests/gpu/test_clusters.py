"""Batch norm by clusters, which keep a channel from the sums to the map. tests/kernels has what all kernels must do."""

import numpy as np
import pytest

from backends import CLUSTER_RUNS
from bnorm.kernels import gpu, reference
from bnorm.kernels.gpu import plans
from compare import assert_close
from emulated.device import CLUSTERED, emulated_device, needs_emulator  # noqa: F401
from emulated.launches import assert_same_in_every_order, drawn, names
from kernel_checks import assert_trained, exact, problem

pytestmark = needs_emulator
SHAPE = CLUSTER_RUNS[0][0].shape


@pytest.mark.parametrize(("case", "dtype"), CLUSTER_RUNS, ids=str)
def test_clusters_are_what_is_launched(device, monkeypatch, case, dtype):
    """In the tests of all backends too, which have these cases."""
    monkeypatch.setattr(device, "limits", CLUSTERED)
    p = problem(case, dtype)
    count = p.x.size / case.num_channels
    y, stats, *_ = gpu.forward(p.x, p.gamma, p.beta, 1e-5)
    assert names(device) == ["cluster_moments"]
    got = gpu.backward(p.dy, p.x, stats, count)
    assert names(device) == ["cluster_sums"]
    assert_trained(p, y, stats, count, got, case, dtype)


def test_every_schedule_gives_the_same_bits(device, monkeypatch):
    monkeypatch.setattr(device, "limits", CLUSTERED)
    x, dy = drawn(SHAPE)
    assert_same_in_every_order(device, monkeypatch, x, dy)


def test_clusters_that_start_late_take_no_channel_along(device, monkeypatch):
    """The last ones have their first channel by a ticket. Of one at a time, the first one takes all that are left."""
    monkeypatch.setattr(device, "limits", CLUSTERED._replace(processors=64))
    x, dy = drawn((2, 24, 8100))
    first = None
    for order in (0, 1, 2):
        monkeypatch.setattr(device, "order", order)
        y, stats, count, _ = gpu.forward(x, None, None, 1e-5)
        results = [y, stats, *gpu.backward(dy, x, stats, count)]
        first = first or [a.tobytes() for a in results]
        assert [a.tobytes() for a in results] == first, order
    assert {(launch.family, launch.grid) for launch in device.log} == {("clusters", (16, plans.CLUSTER))}
    want = reference.forward(exact(x), None, None, 1e-5)
    assert_close(y, want[0], 1e-5 * np.maximum(1, np.abs(want[0])))


def test_large_blocks_and_half_precision(device, monkeypatch):
    """Blocks of 512 threads, alone on their processors."""
    monkeypatch.setattr(device, "limits", plans.Limits(processors=8))
    for dtype, shape, error in (("float32", (2, 1, 106000), 1e-5), ("float16", (2, 1, 212000), 2e-3)):
        x, dy = drawn(shape, dtype)
        gamma, beta = np.array([1.5]), np.array([-0.5])
        y, stats, count, _ = gpu.forward(x, gamma, beta, 1e-5)
        dx, dgamma, dbeta = gpu.backward(dy, x, stats, count)
        assert {launch.block for launch in device.log} == {(2 * plans.THREADS,)}
        assert names(device) == ["cluster_moments", "cluster_sums"]
        want = reference.forward(exact(x), gamma, beta, 1e-5)
        assert_close(y, want[0], error * np.maximum(1, np.abs(want[0])), dtype=dtype)
        want = reference.backward(exact(dy), exact(x), stats, count)
        for got, wanted in zip((dx, dgamma, dbeta), want, strict=True):
            assert_close(got, wanted, error * np.maximum(4, np.abs(wanted)), dtype=dtype)
