"""Batch norm of channels that one block keeps, and which fetch the next one while they map: on the emulator."""

import pytest

from bnorm.kernels import gpu
from bnorm.kernels.gpu import jobs, plans
from cases import Case, c_order
from emulated.device import RESIDENT, emulated_device, needs_emulator  # noqa: F401
from emulated.launches import assert_same_in_every_order, drawn
from kernel_checks import assert_trained, problem

pytestmark = needs_emulator

LARGE = plans.Limits(processors=3, clusters=False)
SHARED = LARGE._replace(shared=163 << 10)  # by two blocks to a processor
RUNS = [
    (Case((2, 20, 2504), 1, c_order, "whole vectors"), "float32", SHARED),
    (Case((3, 13, 1501), 1, c_order, "no vectors"), "float32", SHARED),
    (Case((2, 9, 1202), 1, c_order, "pairs"), "float64", SHARED),
    (Case((2, 8, 13012), 1, c_order, "by large blocks"), "float32", LARGE),
]


@pytest.mark.parametrize(("case", "dtype", "limits"), RUNS, ids=str)
def test_blocks_go_on_from_channel_to_channel(case, dtype, limits, device, monkeypatch):
    monkeypatch.setattr(device, "limits", limits)
    p = problem(case, dtype)
    count = p.x.size / case.num_channels
    y, stats, *_ = gpu.forward(p.x, p.gamma, p.beta, 1e-5)
    got = gpu.backward(p.dy, p.x, stats, count)
    for launch in device.log:
        assert launch.persistent and jobs.JOB.placed(launch.geometry)["keep"]
        assert launch.grid == (case.num_channels, 1) > (RESIDENT * limits.processors, 1)
        assert launch.block == ((512,) if limits is LARGE else (256,))
    assert_trained(p, y, stats, count, got, case, dtype)


def test_every_schedule_gives_the_same_bits(device, monkeypatch):
    assert_same_in_every_order(device, monkeypatch, *drawn((3, 13, 700)))
