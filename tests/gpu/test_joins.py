"""Partial sums of many blocks, which are joined in bunches first, by whichever block comes last; on the emulator."""

import numpy as np
import pytest

from bnorm.kernels import gpu, reference
from bnorm.kernels.gpu import bunches as bunched
from bnorm.kernels.gpu import jobs, launching, plans
from bnorm.kernels.gpu import rows as row_calls
from compare import assert_close
from emulated.device import EmulatedDevice, needs_emulator
from emulated.launches import fields, has_few

pytestmark = needs_emulator

WIDE = plans.Limits(processors=11, shared=64 << 10, clusters=False)  # so that there are more blocks than elsewhere
RNG = np.random.default_rng(0)


def drawn(*shape):
    return RNG.standard_normal((2, *shape)).astype("f4")


def moments(x, dy):
    return [gpu.moments(x)]


def statistics_of(x):
    return np.stack([x.mean((0, 2)), x.var((0, 2)), *np.ones((2, x.shape[1])), np.zeros(x.shape[1])]).astype("f8")


def sums(x, dy):
    return [gpu.grad_moments(dy, x, statistics_of(x))]


def rows(x, dy):
    """The sums are added to others, once."""
    sums = np.zeros((2, x.shape[1] * x.shape[2]))
    mean = x.mean((2, 3)).ravel().astype("f8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_calls, "receiver", lambda *_: (*sums, jobs.TO_FLOAT64, None, (None, None)))
        dx, *_ = gpu.rows_backward(dy, x, mean, np.ones(mean.size), None, None)
    return [dx, *sums]


def rows_of_reference(x, dy):
    mean = x.mean((2, 3)).ravel().astype("f8")
    return reference.rows_backward(dy, x, mean, np.ones(mean.size), None, None)


CASES = {
    "side by side": (moments, (3_000, 64, 1), lambda x, dy: [reference.moments(x)]),
    "a few columns": (moments, (9_000, 5, 3), lambda x, dy: [reference.moments(x)]),
    "few channels": (moments, (40_000, 3, 1), lambda x, dy: [reference.moments(x)]),
    "two channels": (moments, (90_003, 2, 1), lambda x, dy: [reference.moments(x)]),
    "sums of few channels": (
        sums,
        (40_001, 12, 1),  # the last tile has fewer columns than there are channels
        lambda x, dy: [reference.grad_moments(dy, x, statistics_of(x))],
    ),
    "more than a thread loads at a time": (moments, (9_000, 100, 1), lambda x, dy: [reference.moments(x)]),
    "runs": (sums, (100, 5, 300), lambda x, dy: [reference.grad_moments(dy, x, statistics_of(x))]),
    "rows": (rows, (300, 1, 64, 1), rows_of_reference),
    "rows of groups": (rows, (90, 3, 4, 6), rows_of_reference),
}


def bunches(device):
    """Of the only launch: chunks, and those of a bunch; of few channels each tile has a sum of its own."""
    (launch,) = device.log
    f = fields(launch)
    if launch.family == "rows":
        return f["sets"], f["bunch"]
    return f["chunks"] * (launch.grid[0] if has_few(launch) else 1), f["bunch"]


@pytest.mark.parametrize(("call", "shape", "want"), CASES.values(), ids=CASES)
def test_bunches_join_what_all_blocks_have_found(call, shape, want, monkeypatch):
    device = EmulatedDevice(WIDE)
    monkeypatch.setattr(bunched, "TICKET", -100)  # as if it took no time: plans bunch many more sums otherwise
    monkeypatch.setattr(launching, "device_of", lambda x: device)
    x, dy = drawn(*shape)
    first = None
    for order in (0, 1, 2, 3):  # the second call takes the tickets of the first
        device.order = order
        device.log.clear()
        found = [a.copy() for a in call(x, dy)]
        first = first or found
        assert [a.tobytes() for a in found] == [a.tobytes() for a in first]
    chunks, bunch = bunches(device)
    assert 1 < bunch < chunks
    for got, expected in zip(first, want(x.astype("f8"), dy.astype("f8")), strict=True):
        assert_close(got, expected, 1e-4 * np.abs(expected).max())
        if call is moments:  # no value is missing, of the last and incomplete row neither
            np.testing.assert_array_equal(got[0], expected[0])
