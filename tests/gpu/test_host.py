"""What a call on the GPU costs the host: calls of Python and C before, between and behind the launches.

Counted and not timed, as time depends on who else is working; `python -m benchmarks.gpu_host` times the same calls.
"""

import sys

import pytest
from benchmarks import gpu_host

from bnorm.kernels import BACKENDS, gpu
from bnorm.kernels.gpu import launching

# What there are, and a few. A forward that moves running statistics launches the move and counts the batch in a call of
# its own, so that an interrupt leaves both or none. A backward adds to gradients by a launch of its own, which takes a
# dozen calls, in place of two launches by CuPy, each of which counts as one call here.
MOST = {
    "gpu.forward": 36,
    "gpu.forward, running": 70,
    "gpu.forward, inference": 32,
    "gpu.backward": 39,
    "gpu.rows_forward": 32,
    "gpu.rows_backward": 44,
    "F.batch_norm": 56,
    "F.backward of it": 60,
    "F.layer_norm": 65,
    "F.backward of that": 82,
    "BatchNorm1d": 103,
    "BatchNorm1d and backward": 178,
    "BatchNorm1d, inference": 51,
    "LayerNorm": 63,
    "LayerNorm and backward": 162,
}
CACHED = gpu.available, launching._device, launching.current_stream


@pytest.fixture
def calls(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", gpu_host.stand_in())
    for cached in CACHED:
        cached.cache_clear()
    yield gpu_host.calls()
    for cached in CACHED:
        cached.cache_clear()
    BACKENDS.pop(gpu_host.Array, None)


def counted(call):
    events = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        call()
    finally:
        sys.setprofile(None)
    return sum(event in ("call", "c_call") for event in events)


def test_calls_are_few(calls):
    assert calls.keys() == MOST.keys()
    for call in calls.values():
        call()  # plans are made, kernels compiled
    found = {name: counted(call) for name, call in calls.items()}
    assert {name: n for name, n in found.items() if n > MOST[name]} == {}
