"""The CUDA kernels at the ends, on the emulator, beside what tests/kernels/test_extremes.py asks of all."""

import numpy as np
import pytest

from backends import ENDS, Backend
from bnorm.kernels import gpu, reference
from compare import assert_close, assert_same
from emulated.device import emulated_device, needs_emulator  # noqa: F401
from kernel_checks import assert_moments, exact, problem

pytestmark = [needs_emulator, pytest.mark.usefixtures("device")]

every_case = pytest.mark.parametrize("case", ENDS, ids=lambda case: case.name)
both = Backend("emulator", gpu).both


@every_case
def test_constant_channels_are_not_added_up_twice(case, device):
    """Among others: sums that are 0 because nothing differs are exact, and those of tiny values are not."""
    p = problem(case, "float32")
    x, constant = p.x.copy(), np.arange(case.num_channels) % 3 == 0
    for value in (0.0, 3.0, 1e-30):
        x[:, constant] = value
        tiny = x * np.float32(1e-25)
        for a in (x, tiny):
            got, want = both("moments", a)
            assert_moments(got, want, "float32", False, case=case.name, value=value)
            assert_same(got[2][constant], np.zeros(constant.sum()), what="m2", case=case.name)
        _, stats, count, _ = reference.forward(x, p.gamma, p.beta, 1e-5)
        got, want = gpu.backward(p.dy, x, stats, count), reference.backward(exact(p.dy), exact(x), stats, count)
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, 1e-5 * np.abs(w).max(), case=case.name, value=value)


def test_pieces_of_a_trend_join_about_one_center(device):
    """The first rows are far from the mean of all, in units of a deviation; and weights of 0 have no center at all."""
    rng = np.random.default_rng(2)
    for dtype, unit in (("float32", 1e-6), ("float64", 1e-13)):
        x = rng.standard_normal((5000, 3))
        x[0], x[1:300] = 1e6, x[1:300] + 50
        x = (x + 1e3).astype(dtype)
        got, want = both("moments", x)
        assert_close(got[2], want[2], unit * want[2], dtype=dtype)
        weight = np.zeros((5000, 1))
        weight[4000:] = 1
        got, want = both("moments", x, weight)
        assert_close(got[1].astype("longdouble") + got[3], want[1].astype("longdouble") + want[3], 1e-13, dtype=dtype)
        assert_close(got[2], want[2], 1e-12 * want[2], dtype=dtype)


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@every_case
def test_moments_that_are_kept_are_summed_in_float64(case, dtype, offset):
    """To 1e-12 of the standard deviation, whatever the type."""
    p = problem(case, "float32")
    x = (p.x + np.float32(offset)).astype(dtype)
    got, want = both("moments", x)
    std = np.sqrt(want[2] / want[0])
    exact_mean = want[1].astype(np.longdouble) + want[3]
    assert_close(got[1].astype(np.longdouble) + got[3], exact_mean, 1e-12 * std, case=case.name, dtype=dtype)
    assert_close(got[2], want[2], 1e-12 * want[2], case=case.name, dtype=dtype)
