"""The CUDA kernels on arrays of more than 2^31 values, whose places do not fit 32 bits.

Only the block that has the end of an array is run; the rest of it is memory that nobody touches.
"""

import numpy as np
import pytest

from bnorm.kernels import gpu, reference
from bnorm.kernels.activation import RELU
from bnorm.kernels.gpu import jobs
from compare import assert_close, assert_same
from emulated.device import SMALL, emulated_device, needs_emulator  # noqa: F401
from kernel_checks import exact, stats_of

pytestmark = needs_emulator

VALUES = 1 << 31


@pytest.fixture
def large(device, monkeypatch):
    """A device with more processors than any, so that a block has little to do; new memory is not touched."""
    monkeypatch.setattr(device, "empty", np.empty)
    monkeypatch.setattr(device, "only", lambda launch: [launch.grid[0] * launch.grid[1] - 1])
    monkeypatch.setattr(device, "limits", SMALL._replace(processors=1 << 18))
    return device


def arrays(shape, end):
    """Two arrays of zeros but for their end, which is random, and one for a result."""
    try:
        x, dy, result = (np.zeros(shape, "float16") for _ in range(3))
    except MemoryError as error:
        pytest.skip(str(error))
    rng = np.random.default_rng(0)
    for a in (x, dy):
        a[end] = rng.standard_normal(a[end].shape)
    return x, dy, result


def last_of_a_map(launch):
    """The block with the end of an array: parts of a chunk are far apart in a map."""
    f = jobs.JOB.placed(launch.geometry)
    whole, part = divmod((f["steps"] - 1) // f["chunk"], f["split"])
    chunk = (f["split"] - 1 - part) * (f["chunks"] // f["split"]) + whole
    return [chunk * launch.grid[0] + launch.grid[0] - 1]


@pytest.mark.parametrize("shape", [(VALUES // 64 + 999, 64), (2, 3, VALUES // 2 + 8)], ids=["rows", "runs"])
def test_maps(large, monkeypatch, shape):
    x, dy, result = arrays(shape, np.s_[-1:, ..., -1:])
    x.reshape(-1)[-64:], dy.reshape(-1)[-64:] = 4, 2
    channels = np.arange(1.0, shape[1] + 1)
    monkeypatch.setattr(large, "only", last_of_a_map)
    monkeypatch.setattr(large, "limits", SMALL._replace(processors=20000))  # many chunks, so that the last one is short
    stats = stats_of(np.ones(shape[1]), channels, channels)
    gpu.normalize(x, stats, out=result)
    want = (4 - 1) * channels + channels if len(shape) == 2 else np.full(64, 4 * channels[-1])
    assert_same(result.reshape(-1)[-64:], want.astype("float16"))
    gpu.grad_input(dy, x, stats, np.stack([channels, np.ones_like(channels), channels]), act=RELU, out=result)
    each = channels if len(shape) == 2 else np.full(64, channels[-1])
    assert_same(result.reshape(-1)[-64:], (each * (2 + (4 - 1) + each)).astype("float16"))


def test_rows(large):
    end = slice(-50, None)
    x, dy, result = arrays((VALUES // 64 + 999, 1, 64, 1), end)
    gamma, beta = np.random.default_rng(1).standard_normal((2, 64))
    y, mean, rstd = gpu.rows_forward(x, gamma, beta, 1e-5, out=result)
    few = exact(x[end]), exact(dy[end])
    want = reference.rows_forward(few[0], gamma, beta, 1e-5)
    assert_close(mean[end], want[1], 1e-6)
    assert_close(y[end], want[0], 2e-3 * np.maximum(1, np.abs(want[0])))
    dx, *_ = gpu.rows_backward(dy, x, mean, rstd, gamma, None, params=False, out=result)
    want = reference.rows_backward(few[1], few[0], *want[1:], gamma, None)[0]
    assert_close(dx[end], want, 2e-3 * np.maximum(1, np.abs(want)))


def test_rows_with_weights(large, monkeypatch):
    monkeypatch.setattr(large, "limits", SMALL._replace(processors=1 << 25))  # a row to a block
    x, dy, result = arrays((VALUES // 64 + 999, 1, 32, 2), -1)
    weight = np.zeros((len(x), 2))
    weight[-1] = 1, 3
    y, mean, rstd = gpu.rows_forward(x, None, None, 1e-5, weight=weight, out=result)
    few, few_dy = exact(x[-1:]), exact(dy[-1:])
    want = reference.rows_forward(few, None, None, 1e-5, weight=weight[-1:])
    assert_close(y[-1:], want[0], 2e-3 * np.maximum(1, np.abs(want[0])))
    dx, *_ = gpu.rows_backward(dy, x, mean, rstd, None, None, params=False, weight=weight, out=result)
    want = reference.rows_backward(few_dy, few, *want[1:], None, None, weight=weight[-1:])[0]
    assert_close(dx[-1:], want, 2e-3 * np.maximum(1, np.abs(want)))


@pytest.mark.parametrize(("inner", "family"), [(49, "planes"), (360, "channels")], ids=["planes", "runs"])
def test_channels_that_blocks_keep(large, monkeypatch, inner, family):
    """Forward and backward in one launch each."""
    monkeypatch.setattr(large, "limits", SMALL._replace(processors=1 << 21))
    x, dy, result = arrays((2, VALUES // (2 * inner * 64) * 64 + 64, inner), np.s_[:, -16:])
    few, few_dy = exact(x[:, -1:]), exact(dy[:, -1:])
    large.log.clear()
    y, stats, count, _ = gpu.forward(x, None, None, 1e-5, out=result)
    want = reference.forward(few, None, None, 1e-5)
    assert_close(y[:, -1], want[0][:, 0], 2e-3 * np.maximum(1, np.abs(want[0][:, 0])))
    dx, *_ = gpu.backward(dy, x, stats, count, out=result)
    want = reference.backward(few_dy, few, want[1], count)[0]
    assert_close(dx[:, -1], want[:, 0], 2e-3 * np.maximum(1, np.abs(want[:, 0])))
    assert [launch.family for launch in large.log] == [family] * 2
