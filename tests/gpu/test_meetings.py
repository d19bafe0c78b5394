"""Blocks that keep what they have read, and meet between the sums and the map: all of them run at the same time."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest

from bnorm.kernels import gpu, reference
from bnorm.kernels.gpu import jobs, launching, meetings, plans
from cases import Case, c_order
from compare import assert_close
from cuda_on_cpu.emulator import Emulator, EmulatorError
from emulated.device import MEETING, SMALL, EmulatedDevice, emulated_device, needs_emulator  # noqa: F401
from emulated.launches import assert_same_in_every_order, drawn, fields
from kernel_checks import assert_trained, exact, problem
from rules import rule

TABLES = [  # and whether the backward is a meeting, too
    (Case((1100, 40), 1, c_order, "tiles that meet each for itself, one of which is not full"), "float32", False),
    (Case((1100, 16), 1, c_order, "one tile"), "float64", True),
    (Case((4003, 3), 1, c_order, "few channels, which a block joins first, and a rest"), "float32", True),
    (Case((601, 5, 7), 1, c_order, "channels of several columns"), "float32", True),
    (Case((999, 24, 4), 1, c_order, "several tiles to a channel"), "float16", False),
]


def met(device):
    """Of each launch, whether its blocks meet."""
    found = [launch.meeting for launch in device.log]
    device.log.clear()
    return found


@needs_emulator
@pytest.mark.parametrize(("case", "dtype", "both"), TABLES, ids=str)
def test_one_launch_and_the_results_of_two(device, monkeypatch, case, dtype, both):
    monkeypatch.setattr(device, "limits", MEETING)
    p = problem(case, dtype)
    count = p.x.size / case.num_channels
    y, stats, *_ = gpu.forward(p.x, p.gamma, p.beta, 1e-5)
    assert met(device) == [True]
    got = gpu.backward(p.dy, p.x, stats, count)
    assert met(device) == ([True] if both else [False, False])
    assert_trained(p, y, stats, count, got, case, dtype)


@needs_emulator
@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16])
def test_every_schedule_gives_the_same_bits(device, monkeypatch, dtype):
    monkeypatch.setattr(device, "limits", MEETING)
    x, dy = drawn((1500, 24), dtype)
    assert_same_in_every_order(device, monkeypatch, x, dy)
    assert all(met(device))


@needs_emulator
def test_statistics_move_once(device, monkeypatch):
    """In the same launch, each channel by the block that joins it."""
    x, _ = drawn((1100, 40))
    monkeypatch.setattr(device, "limits", MEETING)
    mean, var = np.zeros(40), np.ones(40)
    *_, (calls, *_) = gpu.forward(x, None, None, 1e-5, running=rule(mean, var, 0.1, nonfinite="propagate"))
    for call, arguments, options in calls:
        call(*arguments, **options)
    assert met(device) == [True]
    assert_close(mean, 0.1 * x.mean(0, dtype="f8"), 4e-8)
    assert_close(var, 0.9 + 0.1 * x.var(0, dtype="f8"), 4e-7)


@pytest.mark.parametrize("limits", [SMALL, MEETING, plans.Limits(), plans.Limits(20, 99 << 10, False)])
@pytest.mark.parametrize("dtype", sorted(plans.ITEMSIZE))
def test_all_blocks_run_at_the_same_time(limits, dtype):
    """One to a processor."""
    many = 0
    for outer, channels, inner in np.random.default_rng(0).integers(1, (9000, 700, 5), (300, 3)).tolist():
        for name, then in (("moments", "normalize"), ("sums", "gradient")):
            plan = plans.reduction(name, outer, channels, inner, dtype, True, False, then, 0, limits)
            for launch in plan.launches:
                if not launch.meeting:
                    continue
                many += 1
                geometry, (tiles, chunks) = jobs.JOB.placed(launch.geometry), launch.grid
                assert 1 < tiles * chunks <= limits.processors and launch.block == (256,)
                assert launch.shared + plans.STATIC_SHARED["channels"] <= limits.shared
                own = -(-tiles // geometry["group"]) * (2 if name == "moments" else 1)
                assert plan.tickets == max(own, plan.otherwise.tickets)
                assert geometry["keep"] * 256 * 16 * (1 if name == "moments" else 2) == launch.shared
                assert chunks * geometry["chunk"] >= geometry["steps"] > (chunks - 1) * geometry["chunk"]
    assert many > 2


@needs_emulator
def test_one_block_too_many_never_ends(device, monkeypatch):
    """The emulator says so, and CUDA refuses such a launch."""
    cut = meetings.cut
    monkeypatch.setattr(meetings, "cut", lambda *of: cut(*of[:-1], MEETING._replace(meetings=of[-1].meetings)))
    monkeypatch.setattr(device, "limits", MEETING._replace(processors=2, shared=63 << 10))
    with pytest.raises(EmulatorError, match="every thread that is left spins"):
        gpu.forward(drawn((1100, 40))[0], None, None, 1e-5)


@needs_emulator
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *(((780, 40), dtype) for dtype in ("float32", "float64", ml_dtypes.bfloat16)),
        ((560, 64), "float32"),  # two tiles that meet each for itself, and have a ticket each
    ],
)
@pytest.mark.parametrize("far", [1e4, -1e30])
def test_a_center_that_is_far_from_the_mean(device, monkeypatch, shape, dtype, far):
    """Two of the three values that it is chosen from are: such channels are summed once more, the others are not."""
    monkeypatch.setattr(device, "limits", MEETING)
    x, _ = drawn(shape)
    middle = len(x) // 2
    x[[0, middle], ::3] = far
    x[:, 5] = 7.0
    x[[3, middle], 7] = np.inf, 1e-30
    x = x.astype(dtype)
    found = []
    for order in (0, 1, 2, 3, 4):
        monkeypatch.setattr(device, "order", order)
        y, stats, *_ = gpu.forward(x, None, None, 1e-5)
        found.append((y.tobytes(), stats.tobytes()))
    assert len(set(found)) == 1 and all(met(device))
    with np.errstate(all="ignore"):
        want = reference.forward(exact(x.astype("f8")), None, None, 1e-5)[1]
    eps = max(np.finfo("f8").eps, 2.0**-24 if dtype != "float64" else 0)
    std = np.sqrt(want[1])
    fine = np.isfinite(want[0])
    assert_close(stats[0][fine], want[0][fine], (8 * eps * std + 2e-16 * np.abs(want[0]))[fine])
    assert_close(stats[1][fine], want[1][fine], (32 * eps * want[1])[fine])
    assert not fine[7] and np.isnan(stats[:2, 7]).all() and stats[1][5] == 0


FENCES = [  # of a meeting: before the others are told, and behind
    ("    __threadfence();\n    const unsigned before", "    const unsigned before"),
    ("pause();\n    __threadfence();", "pause();"),
]


@needs_emulator
@pytest.mark.slow
@pytest.mark.parametrize("fence", FENCES)
def test_no_fence_can_be_missed(monkeypatch, fence):
    text = launching.source("channels")
    assert text.count(fence[0]) == 1
    x, _ = drawn((1100, 40))
    x[:550] += 9  # so that both rounds are taken
    for source, fails in ((text, False), (text.replace(*fence), True)):
        device = EmulatedDevice(MEETING, emulator=partial(Emulator, sanitize="races"))
        monkeypatch.setattr(launching, "source", lambda family, source=source: source)
        monkeypatch.setattr(launching, "device_of", lambda x, device=device: device)
        if fails:
            with pytest.raises(EmulatorError, match="race"):
                gpu.forward(x, None, None, 1e-5)
        else:
            gpu.forward(x, None, None, 1e-5)
    assert fields(device.log[0])["keep"]
