"""Statistics that a forward moves in its own launch: the bits of another launch, in every plan; on the emulator."""

from itertools import product

import numpy as np
import pytest

import bnorm
from backends import CLUSTER_RUNS
from bnorm.kernels import gpu
from bnorm.running import Statistics
from compare import assert_same
from drawing import every_pair
from emulated.device import CLUSTERED, emulated_device, needs_emulator  # noqa: F401
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401
from emulated.pairs import back, there

pytestmark = needs_emulator

SHAPES = {  # x, and the kernel that moves the statistics of its channels
    "one block": ((7, 5, 1), "moments<"),
    "several channels side by side": ((200, 6, 3), "moments<"),
    "chunks": ((3000, 40, 1), "moments<"),
    "planes": ((6, 16, 49), "planes_moments<"),
    "a cluster": (CLUSTER_RUNS[0][0].shape, "cluster_moments<"),
}
OPTIONS = {
    "average": {"momentum": 0.2},
    "average, ddof": {"momentum": 0.2, "ddof": 1},
    "pool": {"momentum": None},
    "pool, ddof": {"momentum": None, "ddof": 1, "nonfinite": "propagate"},
}


def statistics(channels, dtype, options):
    found = Statistics(np.zeros(channels, dtype), np.ones(channels, dtype), **({"nonfinite": "skip"} | options))
    if found.nonfinite == "skip":  # NumPy's arrays have no such counts
        left = np.zeros(2 + 2 * channels, np.int32)
        found.rule = found.rule._replace(left=left)
    return found


def forwards(x, dtype, options, waits, weight):
    """Three batches: a channel of the second is not finite, and when the third comes one more is uncounted."""
    moving = statistics(x.shape[1], dtype, options)
    rule = moving.rule._replace(waits=waits)
    found = []
    for k, batch in enumerate((x, x * 2 + 1, x - 3)):
        batch[0, 0, 0] = np.inf if k == 1 else batch[0, 0, 0]
        moving.counters[3] += k == 2 and rule.mode != 0
        y, stats, count, left = gpu.forward(batch, None, None, 1e-5, weight=weight, running=rule)
        before = moving.mean.copy()
        assert np.isnan(y).all() == waits  # not launched yet
        gpu.settle(rule, stats, count, y.size, left)
        assert (moving.mean != before).all() or k == 1
        found += [y, stats]
    return found, moving, rule


@every_pair(["name", "dtype"], product([*SHAPES, "weights"], ["float32", "float64"]), options=OPTIONS)
def test_a_forward_moves_statistics_as_their_own_launch_does(device, name, dtype, options, monkeypatch):
    shape, kernel = SHAPES.get(name, ((30, 5, 2), "moments<"))
    monkeypatch.setattr(device, "limits", CLUSTERED if name == "a cluster" else device.limits)
    x = np.random.default_rng(0).standard_normal(shape).astype("f4").reshape(*shape[:2], -1)
    weight = (np.arange(1, 61.0) % 3).reshape(30, 2) if name == "weights" else None
    results = []
    for waits in (True, False):
        device.log.clear()
        results.append(forwards(x.copy(), dtype, OPTIONS[options], waits, weight))
        names = [launch.kernel for launch in device.log]
        assert names[0].startswith(kernel)
        assert names.count("move_statistics") == (0 if waits else 3)
    (got, moved, rule), (want, moved_alone, rule_alone) = results
    for a, b in zip((*got, *moved.arrays().values()), (*want, *moved_alone.arrays().values()), strict=True):
        assert_same(a, b)
    assert_same(moved.counters, moved_alone.counters)
    if rule.left is not None:
        assert_same(rule.left, rule_alone.left)
        assert rule.left[0] == 1 and rule.left[2] == 1 and not rule.left[3 : 2 + shape[1]].any()


@pytest.mark.parametrize("way", ["strided out", "no weight at all", "raise", "an empty batch"])
def test_a_forward_that_cannot_wait_for_its_statistics(cupy, way):
    """y is copied before they are settled, nothing is settled, or the host looks at the batch first."""
    nonfinite = "raise" if way == "raise" else "skip"
    on_gpu, on_cpu = (bnorm.BatchNorm1d(4, device=d, nonfinite=nonfinite) for d in ("cuda", "cpu"))
    x = np.random.default_rng(0).standard_normal((0 if way == "an empty batch" else 6, 4))
    weight = np.zeros(6) if way == "no weight at all" else None
    out = there(np.zeros((6, 8)))[:, ::2] if way == "strided out" else None
    want = on_cpu(x, weight)
    got = on_gpu(there(x), None if weight is None else there(weight), out)
    np.testing.assert_allclose(back(got), want, rtol=1e-12, atol=1e-14)
    for name in ("running_mean", "running_var"):
        np.testing.assert_allclose(back(getattr(on_gpu, name)), getattr(on_cpu, name), rtol=1e-12)
    assert on_gpu.num_batches_tracked == on_cpu.num_batches_tracked
    assert not len(x) or on_gpu.backward(there(x)).shape == x.shape
