"""Batch norm of small planes, of which a block has several channels. tests/kernels has what all kernels must do."""

import numpy as np
import pytest

from bnorm.kernels import gpu, reference
from bnorm.kernels.activation import RELU
from bnorm.kernels.gpu import jobs, plans
from cases import Case, c_order
from compare import assert_close
from emulated.device import SMALL, emulated_device, needs_emulator  # noqa: F401
from emulated.launches import names
from kernel_checks import assert_backward, assert_forward, exact, problem

pytestmark = needs_emulator
LITTLE = plans.STATIC_SHARED["planes"] + (2 << 10)  # bytes of shared memory: too little to keep anything
CASES = [
    (Case((6, 8, 7, 7), 1, c_order, "four channels of 49 values are 49 vectors"), "float32"),
    (Case((7, 64, 3, 3), 1, c_order, "smaller ones: sixteen channels"), "float32"),
    (Case((6, 16, 7, 7), 1, c_order, "four channels of halves, in vectors of eight bytes"), "float16"),
    (Case((3, 1024, 7, 7), 1, c_order, "so many channels that a block has eight"), "float16"),
    (Case((5, 4, 7, 7), 1, c_order, "two of float64"), "float64"),
    (Case((5, 8, 9, 9), 1, c_order, "more columns than threads"), "float32"),
    (Case((7, 64, 2, 3), 1, c_order, "so few columns that a thread has some of their values"), "float32"),
]
DEVICES = (20, 64), (84, 99), (132, 227), (160, 227)  # processors, and KB of shared memory


def results(x, dy, gamma, beta, act):
    y, stats, count, _ = gpu.forward(x, gamma, beta, 1e-5, act=act)
    return y, stats, *gpu.backward(dy, x, stats, count, act=act)


@pytest.mark.parametrize("shared", [SMALL.shared, LITTLE], ids=["kept", "read again"])
@pytest.mark.parametrize(("case", "dtype"), CASES, ids=str)
def test_forward_and_backward(device, monkeypatch, case, dtype, shared):
    """One launch each, whose pieces have the bits of the whole."""
    monkeypatch.setattr(device, "limits", SMALL._replace(shared=shared))
    p = problem(case, dtype)
    count, tags = p.x.size / case.num_channels, {"case": case.name, "shared": shared}
    y, stats, *_ = gpu.forward(p.x, p.gamma, p.beta, 1e-5)
    assert bool(device.log[-1].shared) == (shared != LITTLE)
    got = gpu.backward(p.dy, p.x, stats, count)
    assert names(device) == ["planes_moments", "planes_sums"]
    parts = gpu.finish(gpu.moments(p.x), p.gamma, p.beta, 1e-5)
    if dtype == "float64":
        assert parts.tobytes() == stats.tobytes()
    assert gpu.normalize(p.x, stats).tobytes() == y.tobytes()
    coefficients = gpu.finish_gradients(gpu.grad_moments(p.dy, p.x, stats), stats, count)
    assert gpu.grad_input(p.dy, p.x, stats, coefficients).tobytes() == got[0].tobytes()
    assert gpu.backward(p.dy, p.x, stats, count, frozen=True)[1].tobytes() == got[1].tobytes()
    want = reference.forward(exact(p.x), p.gamma, p.beta, 1e-5)
    assert_forward((y, stats, count, 0), want, p, dtype, False, **tags)
    assert_forward((y, parts, count, 0), want, p, dtype, False, **tags)
    want = reference.backward(exact(p.dy), exact(p.x), stats, count)
    assert_backward(got, want, p.dy, p.x, stats, count, None, False, dtype, **tags)


@pytest.mark.parametrize(("case", "dtype"), CASES[:3], ids=str)
def test_no_device_changes_a_bit(device, monkeypatch, case, dtype):
    """Neither how many processors it has, nor how much shared memory, nor the order of its blocks and threads."""
    p = problem(case, dtype)
    first = None
    for order, (processors, shared) in enumerate(DEVICES):
        for limits in (plans.Limits(processors, shared << 10, False), plans.Limits(processors, LITTLE, False)):
            monkeypatch.setattr(device, "limits", limits)
            monkeypatch.setattr(device, "order", order)
            found = [a.tobytes() for a in results(p.x, p.dy, p.gamma, p.beta, RELU)]
            first = first or found
            assert found == first, limits


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("shared", [SMALL.shared, LITTLE], ids=["kept", "read again"])
def test_a_center_that_is_far_from_the_mean(device, monkeypatch, dtype, shared):
    """The values that it is chosen from are: such channels are summed once more, and no bit of the others changes."""
    monkeypatch.setattr(device, "limits", SMALL._replace(shared=shared))
    x = np.random.default_rng(0).standard_normal((6, 16, 49)).astype(dtype)
    calm = gpu.forward(x, None, None, 1e-5)[1]
    for n, at in ((0, 0), (3, 24), (5, 48)):
        x[n, ::3, at] = 1e4
    _, stats, *_ = gpu.forward(x, None, None, 1e-5)
    assert names(device)[-1] == "planes_moments"
    others = np.arange(16) % 3 != 0
    assert stats[:, others].tobytes() == calm[:, others].tobytes()
    want, eps = reference.forward(exact(x), None, None, 1e-5)[1], np.finfo("f8").eps if dtype == "float64" else 2.0**-24
    for found in (stats, gpu.finish(gpu.moments(x), None, None, 1e-5)):
        assert_close(found[0], want[0], 8 * eps * np.sqrt(want[1]), what="mean")
        assert_close(found[1], want[1], 32 * eps * want[1], what="variance")


def test_rare_values_are_added_up_once_more(device):
    """Squares that float32 does not hold, and a constant channel."""
    x, dy, gamma, beta, _ = problem(*CASES[0])
    x = x.copy()
    x[:, 1], x[:, 2] = x[:, 1] * np.float32(1e-25), x[:, 2] * np.float32(1e25)
    x[:, 3] = 7
    y, stats, dx, dgamma, _ = results(x, dy, gamma, beta, RELU)
    want = reference.forward(exact(x), gamma, beta, 1e-5)[1][:2]
    assert_close(stats[:2], want, 1e-6 * np.abs(want), what="mean and variance")
    assert stats[0, 3] == 7 and stats[1, 3] == 0 and dgamma[3] == 0
    assert np.isfinite(y).all() and np.isfinite(dx).all()


@pytest.mark.parametrize("processors", [20, 84, 132, 160])
def test_which_planes(processors):
    """By shape and type alone. What is read of an outer position are vectors of 16 bytes."""

    def plan(name, shape, dtype, vectors=True):
        limits = plans.Limits(processors=processors)
        then = "normalize" if name == "moments" else "gradient"
        launches = plans.reduction(name, *shape, dtype, vectors, False, then, 0, limits).launches
        return (
            launches[0].kernel.partition(",")[0].partition("<")[0],
            jobs.JOB.placed(launches[0].geometry),
            launches[0],
        )

    assert [plan("moments", (64, channels, 49), "float16")[2].grid[0] for channels in (512, 1024)] == [128, 128]
    for dtype, together in (("float32", 4), ("bfloat16", 8)):
        for name, arrays in (("moments", 1), ("sums", 2)):
            kernel, f, launch = plan(name, (64, 2048, 49), dtype)
            assert kernel == f"planes_{name}" and launch.grid == (2048 // together, 1)
            assert launch.shared == arrays * 64 * 49 * 16 and f["keep"]
    assert plan("moments", (2, 16384, 9), "float32")[2].grid == (1024, 1)  # 16 channels to a block
    others = [(64, 2047, 49), (64, 2048, 64), (64, 256, 56 * 56), (64, 2048, 1), (4096, 2048, 49)]
    for shape in others:
        assert not plan("moments", shape, "float32")[0].startswith("planes"), shape
    assert not plan("moments", (64, 2048, 49), "float32", vectors=False)[0].startswith("planes")
