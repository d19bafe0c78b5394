"""What a call on the GPU costs the host: launches, new arrays, and calls of Python and C around them.

Counted and not timed, as time depends on who else is working; `python -m benchmarks.gpu_host` times the same calls.
"""

import gc
import sys

import pytest
from benchmarks import gpu_host

from bnorm.kernels import BACKENDS, gpu
from bnorm.kernels.gpu import launching

# What there are, and one. A forward that moves running statistics is launched and counts the batch in a call of its
# own, so that an interrupt leaves both or none. Calls of compiled functions of our own are not counted.
MOST = {
    "gpu.forward": 12,
    "gpu.forward, running": 15,
    "gpu.forward, inference": 12,
    "gpu.backward": 18,
    "gpu.rows_forward": 15,
    "gpu.rows_backward": 19,
    "F.batch_norm": 20,
    "F.backward of it": 26,
    "F.layer_norm": 21,
    "F.backward of that": 28,
    "BatchNorm1d": 23,
    "BatchNorm1d and backward": 44,
    "BatchNorm1d, inference": 20,
    "LayerNorm": 19,
    "LayerNorm and backward": 40,
}
# Launches, CuPy's own among them, and new arrays. A forward of rows copies gamma and beta in its one launch, and keeps
# them with the statistics in one array. The forward of a layer moves its statistics, and its backward adds to its
# gradients.
ASKED = {
    "gpu.forward": (1, 1),
    "gpu.forward, running": (1, 1),
    "gpu.forward, inference": (1, 1),
    "gpu.backward": (1, 2),
    "gpu.rows_forward": (1, 2),
    "gpu.rows_backward": (1, 2),
    "F.batch_norm": (1, 1),
    "F.backward of it": (1, 2),
    "F.layer_norm": (1, 1),
    "F.backward of that": (1, 2),
    "BatchNorm1d": (1, 1),
    "BatchNorm1d and backward": (2, 1),
    "BatchNorm1d, inference": (1, 1),
    "LayerNorm": (1, 1),
    "LayerNorm and backward": (2, 1),
}
CACHED = gpu.available, launching._device, launching.current_stream


# Those of float32 are converted by one more launch, except in batch norm.
CONVERTED = {"gpu.rows_forward": (2, 1), "F.layer_norm": (2, 1), "LayerNorm": (2, 1), "LayerNorm and backward": (3, 1)}


@pytest.fixture
def calls(monkeypatch, request):
    """With parameters of float64, or of the type that a test names."""
    monkeypatch.setitem(sys.modules, "cupy", gpu_host.stand_in())
    for cached in CACHED:
        cached.cache_clear()
    yield gpu_host.calls(getattr(request, "param", "float64"))
    for cached in CACHED:
        cached.cache_clear()
    BACKENDS.pop(gpu_host.Array, None)


def counted(call):
    events = []
    gc.disable()  # what other tests have left calls back when it is collected
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return sum(event in ("call", "c_call") for event in events)


def test_calls_are_few(calls):
    assert calls.keys() == MOST.keys()
    for call in calls.values():
        call()  # plans are made, kernels compiled
    found = {name: counted(call) for name, call in calls.items()}
    assert {name: n for name, n in found.items() if n > MOST[name]} == {}


@pytest.mark.parametrize(("calls", "converted"), [("float64", {}), ("float32", CONVERTED)], indirect=["calls"])
def test_launches_and_arrays_are_few(calls, converted):
    assert calls.keys() == ASKED.keys()
    for name, call in calls.items():
        call()
        gpu_host.Tally.take()
        call()
        assert gpu_host.Tally.take() == (ASKED | converted)[name], name
    for _ in range(300):  # that channels were left alone is counted where they are moved
        calls["BatchNorm1d"]()
    assert gpu_host.Tally.take()[0] == 300
