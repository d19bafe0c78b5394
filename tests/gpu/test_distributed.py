"""Ranks and Dask blocks with CuPy arrays, on the stand-in: as with NumPy arrays, on the device they came from."""

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from bnorm.distributed import merge_all
from emulated.device import needs_emulator
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401
from emulated.pairs import assert_alike, there

C = 4
X, DY = np.random.default_rng(0).standard_normal((2, 30, C)) * np.arange(1, C + 1) + 3


class Twice:
    """A communicator of two ranks that send the same."""

    def __init__(self):
        self.sent = []

    def allgather(self, value):
        self.sent.append(value)
        return [value, value]


def layer(comm, **options):
    bn = bnorm.BatchNorm1d(C, comm=comm, activation="relu", **options)
    bn.gamma, bn.beta = np.arange(1.0, C + 1).tolist(), [0.5, -0.5, 0.0, 1.0]
    return bn


@needs_emulator
@pytest.mark.parametrize("options", [{}, {"momentum": None, "nonfinite": "raise"}], ids=str)
def test_synchronized_layers(cupy, options):
    """Two ranks with the same batch, on the CPU and on the GPU: what they send, and what they make of it."""
    on_cpu, on_gpu = layer(Twice(), **options), layer(Twice(), device="cuda", **options)
    for _ in range(2):
        assert_alike(on_gpu(there(X)), on_cpu(X))
        assert_alike(on_gpu.backward(there(DY)), on_cpu.backward(DY))
    for name in ("running_mean", "running_var"):
        assert_alike(getattr(on_gpu, name), getattr(on_cpu, name))
    assert_alike(on_gpu.gamma.grad, on_cpu.gamma.grad)
    assert_alike(on_gpu.beta.grad, on_cpu.beta.grad)
    assert on_gpu.num_batches_tracked == 2
    whole = layer(None)
    assert_alike(on_gpu(there(X)), whole(np.concatenate([X, X]))[:30])
    sent = [message.value if type(message.value) is np.ndarray else message.value[-1] for message in on_gpu.comm.sent]
    assert len(sent) == 5
    assert all(type(numbers) is np.ndarray for numbers in sent)  # by way of the host


@needs_emulator
def test_moments_of_all_ranks(cupy):
    merged = merge_all(F.moments(there(X)), Twice())
    assert type(merged.mean) is cupy.ndarray
    assert_alike(merged.mean, F.moments(np.concatenate([X, X])).mean)
