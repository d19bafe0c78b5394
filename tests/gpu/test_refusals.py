"""Launches that CUDA refuses, as fewer processors are free than a device says: blocks that meet, and clusters."""

import numpy as np
import pytest

from backends import CLUSTER_RUNS
from bnorm.kernels import gpu
from bnorm.kernels.gpu import launching, plans
from emulated import fake_cupy
from emulated.device import CLUSTERED, MEETING, needs_emulator
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401
from rules import rule

KINDS = {  # the limits of a device, an array, and what CUDA says
    "meetings": (MEETING, (1100, 40), "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: too many blocks in cooperative launch"),
    "clusters": (CLUSTERED, CLUSTER_RUNS[0][0].shape, "CUDA_ERROR_INVALID_CLUSTER_SIZE: invalid cluster size"),
}
ILLEGAL = "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"


@pytest.fixture(params=KINDS)
def together(request):
    return request.param


def tables(shape):
    x, dy = np.random.default_rng(0).standard_normal((2, *shape)).astype("f4")
    return x, dy, np.zeros(shape[1]), np.ones(shape[1])


def batch(x, dy, mean, var):
    """A forward that moves statistics, and its backward, as bytes."""
    x, dy, mean, var = (fake_cupy.wrapped(a.copy()) for a in (x, dy, mean, var))
    y, stats, count, (calls, *_) = gpu.forward(x, None, None, 1e-5, running=rule(mean, var, 0.1, nonfinite="propagate"))
    for call, arguments, options in calls:
        call(*arguments, **options)
    return [a.host.tobytes() for a in (y, stats, *gpu.backward(dy, x, stats, count), mean, var)]


def refuse(monkeypatch, together, message):
    """CUDA would; the blocks of each that it was asked for."""
    asked, launch = [], fake_cupy.Kernel.__call__

    def refused(self, grid, *args, enable_cooperative_groups=False):
        if enable_cooperative_groups if together == "meetings" else self.name.startswith("cluster_"):
            asked.append(grid)
            raise RuntimeError(message)
        launch(self, grid, *args)

    monkeypatch.setattr(fake_cupy.Kernel, "__call__", refused)
    return asked


@needs_emulator
def test_what_cuda_refuses_is_done_by_other_launches_once(cupy, monkeypatch, together):
    """And from then on, without asking again."""
    limits, shape, message = KINDS[together]
    device, without = launching._device(0), limits._replace(**{together: False})
    device.limits = without
    want = batch(*tables(shape))
    device.limits = limits
    asked = refuse(monkeypatch, together, message)
    cupy.launched.clear()
    assert batch(*tables(shape)) == want and len(asked) == 1 and device.limits == without
    first = cupy.launched[:]
    assert batch(*tables(shape)) == want and cupy.launched == 2 * first and len(asked) == 1


def test_other_errors_are_the_callers(cupy, monkeypatch, together):
    device = launching._device(0)
    device.limits, shape, _ = KINDS[together]
    asked = refuse(monkeypatch, together, ILLEGAL)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"), cupy.launches_nothing():
        batch(*tables(shape))
    assert len(asked) == 1 and device.limits == KINDS[together][0]


def sizes(together):
    """(outer, channels, inner) of which some are launched so."""
    most, least = ((9000, 700, 5), (1, 1, 1)) if together == "meetings" else ((60, 300, 40000), (1, 90, 4000))
    return np.random.default_rng(0).integers(least, most, (300, 3)).tolist()


@pytest.mark.parametrize("dtype", sorted(plans.ITEMSIZE))
def test_the_workspace_is_enough_for_what_takes_its_place(dtype, together):
    many = 0
    for outer, channels, inner in sizes(together):
        for name, then in (("moments", "normalize"), ("sums", "gradient")):
            size = outer, channels, inner, dtype, True, False, then, 0
            plan = plans.reduction(name, *size, plans.Limits())
            only = plan.launches[0]
            assert (plan.otherwise is None) == (not only.meeting and only.family != "clusters")
            if not (only.meeting if together == "meetings" else only.family == "clusters"):
                continue
            many += 1
            apart = plans.reduction(name, *size, plans.Limits()._replace(**{together: False}))
            assert plan.otherwise is apart and apart.otherwise is None
            assert not any(launch.meeting or launch.family == "clusters" for launch in apart.launches)
            assert plan.partial >= apart.partial and plan.tickets >= apart.tickets
    assert many > 2
