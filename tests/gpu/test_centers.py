"""Sums about a center that is chosen from three values of a channel or a row. Where it is far from the mean, they are
added up once more, about the mean that has been found: where x is kept in shared memory, by one block or a cluster, and
where it is read again. tests/gpu/test_meetings.py asks the same where blocks meet."""

import numpy as np
import pytest

from bnorm.kernels import gpu
from bnorm.kernels.gpu import plans
from bnorm.kernels.gpu.jobs import ROW_JOB
from compare import EPS, assert_close
from emulated.device import CLUSTERED, emulated_device, needs_emulator  # noqa: F401

pytestmark = [needs_emulator, pytest.mark.parametrize("far", [1e4, -1e30])]
READ_AGAIN = plans.Limits(2, 20 << 10, False)


def assert_statistics(x, mean, var, axes, dtype):
    wide, eps = x.astype("f8"), EPS[np.dtype(dtype)]
    want, of = wide.mean(axes), wide.var(axes)
    assert_close(mean, want, 8 * eps * np.sqrt(of) + 1e-12 * abs(want))
    assert_close(var, of, 64 * eps * of)


@pytest.mark.parametrize(
    ("family", "limits", "shape", "dtype"),
    [
        ("channels", plans.Limits(), (3, 5, 1100), "float32"),
        ("channels", plans.Limits(), (3, 5, 1100), "float64"),
        ("clusters", CLUSTERED, (3, 5, 12008), "float32"),
        ("clusters", CLUSTERED, (3, 5, 6002), "float64"),
    ],
)
def test_channels(device, monkeypatch, family, limits, shape, dtype, far):
    """Two of the three values of every second one are far away; one of the others is constant."""
    monkeypatch.setattr(device, "limits", limits)
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    x[0, ::2, 0] = x[1, ::2, shape[2] // 2] = far
    x[:, 1] = 7.0
    found = set()
    for order in (0, 1, 2):
        monkeypatch.setattr(device, "order", order)
        y, stats, *_ = gpu.forward(x, None, None, 1e-5)
        found.add((y.tobytes(), stats.tobytes()))
    assert len(found) == 1 and {launch.family for launch in device.log} == {family}
    assert_statistics(x, stats[0], stats[1], (0, 2), dtype)
    assert stats[1, 1] == 0 and (y[:, 1] == 0).all()
    want = (x.astype("f8") - stats[0][:, None]) * stats[2][:, None]
    assert_close(y, want, 16 * EPS[np.dtype(dtype)] * (1 + abs(want)))


@pytest.mark.parametrize("limits", [plans.Limits(), READ_AGAIN], ids=["kept", "read again"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_rows(device, monkeypatch, limits, dtype, far):
    monkeypatch.setattr(device, "limits", limits)
    x = np.random.default_rng(0).standard_normal((4, 9000)).astype(dtype)
    x[::2, [0, 4500]] = far
    x[1] = 7.0
    y, mean, rstd = gpu.rows_forward(x.reshape(4, 1, -1, 1), None, None, 1e-5)
    assert [bool(ROW_JOB.placed(launch.geometry)["keep"]) for launch in device.log] == [limits is not READ_AGAIN]
    var = np.where(np.ptp(x, 1) > 0, rstd**-2 - 1e-5, 0)
    assert_statistics(x, mean, var, 1, dtype)
    assert mean[1] == 7 and (y[1] == 0).all()
