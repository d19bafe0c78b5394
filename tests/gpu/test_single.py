"""Float32 parameters and given statistics give the bits of the same numbers in float64. The kernels of batch norm read
them as they are, without a launch that converts them; for the norms of rows one launch converts both."""

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from backends import CLUSTER_RUNS
from bnorm.kernels import gpu
from bnorm.kernels.gpu import plans
from compare import assert_same
from emulated import fake_cupy
from emulated.device import CLUSTERED, MEETING, SMALL, emulated_device, needs_emulator  # noqa: F401
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401

pytestmark = needs_emulator

SHARED = plans.Limits(processors=3, shared=163 << 10, clusters=False)  # by two blocks that keep a channel
CHANNELS = [
    ((7, 5, 1), SMALL, "one block"),
    ((300, 40, 1), SMALL, "the last block of several"),
    ((6, 16, 49), SMALL, "planes"),
    ((2, 20, 2504), SHARED, "runs"),
    (CLUSTER_RUNS[0][0].shape, CLUSTERED, "a cluster"),
    ((1100, 16, 1), MEETING, "blocks that meet, each for its channels"),
    ((4003, 3, 1), MEETING, "blocks that meet, for all of them"),
]


def drawn(channels, many):
    """Of float32; one of them is subnormal."""
    found = np.random.default_rng(channels).uniform(0.5, 2, (many, channels)).astype("f4")
    found[:, channels // 2] = 1e-40
    return found


def ways(call, *singles):
    """The results with all of these in float32, with one of them, and with none."""
    wide = [a.astype("f8") for a in singles]
    want = call(*wide)
    found = {"all": call(*singles)}
    for i, a in enumerate(singles):
        found[f"number {i}"] = call(*wide[:i], a, *wide[i + 1 :])
    for which, got in found.items():
        for a, b in zip(got, want, strict=True):
            assert_same(a, b, single=which)


@pytest.mark.parametrize(("shape", "limits", "by"), CHANNELS, ids=[name for *_, name in CHANNELS])
def test_channels(device, monkeypatch, shape, limits, by):
    monkeypatch.setattr(device, "limits", limits)
    x = np.random.default_rng(0).standard_normal(shape).astype("f4")
    ways(lambda gamma, beta: gpu.forward(x, gamma, beta, 1e-5)[:2], *drawn(shape[1], 2))


def test_given_statistics_and_finish(device):
    x = np.random.default_rng(0).standard_normal((7, 5, 3)).astype("f4")
    ways(lambda *vectors: gpu.forward(x, vectors[0], vectors[1], 1e-5, *vectors[2:])[:2], *drawn(5, 4))
    parts = gpu.moments(x)
    ways(lambda gamma, beta: [gpu.finish(parts, gamma, beta, 1e-5)], *drawn(5, 2))


def launches_of_both_types(call, shape, n):
    """What a forward launches, and what it and its backward launch, with n vectors of float32, and of float64; last the
    number of CuPy's own launches. Results are the same, although the vectors change before the backward."""
    x, dy = np.random.default_rng(0).standard_normal((2, *shape)).astype("f4")
    found, forwards, both = [], [], []
    for dtype in ("float32", "float64"):
        vectors = [fake_cupy.wrapped(a.astype(dtype)) for a in drawn(8, n)]
        fake_cupy.launched.clear()
        before = fake_cupy.ufuncs
        y, saved = call(fake_cupy.wrapped(x.copy()), *vectors)
        forwards.append([*fake_cupy.launched, fake_cupy.ufuncs - before])
        for a in vectors:
            a.host[...] = 7
        found.append([y, *(a for a in F.backward(fake_cupy.wrapped(dy.copy()), saved) if a is not None)])
        both.append([*fake_cupy.launched, fake_cupy.ufuncs - before])
    for a, b in zip(*found, strict=True):
        assert_same(a.host, b.host)
    return forwards, both


FUNCTIONS = {
    "batch_norm": (lambda x, *two: F.batch_norm(x, *two[:2]), (6, 8)),
    "batch_norm, given": (lambda x, *four: F.batch_norm(x, *four[:2], mean=four[2], var=four[3]), (6, 8)),
    "with weights": (lambda x, *two: F.batch_norm(x, *two[:2], weight=np.arange(6.0).tolist()), (6, 8)),
}


@pytest.mark.parametrize(("call", "shape"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_convert_nothing(cupy, call, shape):
    """Nor do their backwards, which see the parameters of the forward, whatever has become of them."""
    _, both = launches_of_both_types(call, shape, 4)
    assert both[0] == both[1]


ROWS = {
    "layer_norm": (lambda x, *two: F.layer_norm(x, *two, normalized_shape=8), (6, 8)),
    "layer_norm, beta alone": (lambda x, _, beta: F.layer_norm(x, None, beta, normalized_shape=8), (6, 8)),
    "rms_norm": (lambda x, gamma, _: F.rms_norm(x, gamma, normalized_shape=8), (6, 8)),
    "group_norm": (lambda x, *two: F.group_norm(x, 2, *two), (6, 8, 5)),
    "with weights": (
        lambda x, *two: F.group_norm(x, 2, *two, weight=np.arange(30.0).reshape(6, 5).tolist()),
        (6, 8, 5),
    ),
    "no rows": (lambda x, *two: F.layer_norm(x, *two, normalized_shape=8), (0, 8)),
}


@pytest.mark.parametrize(("call", "shape"), ROWS.values(), ids=ROWS)
def test_one_launch_converts_both_for_rows(cupy, call, shape):
    """It makes the copies that a backward needs, which sees the parameters of the forward."""
    forwards, _ = launches_of_both_types(call, shape, 2)
    if shape[0]:
        assert forwards[0] == ["copy_params", *forwards[1]]


LAYERS = {
    "LayerNorm": (lambda **of: bnorm.LayerNorm(8, **of), (6, 8)),
    "GroupNorm": (lambda **of: bnorm.GroupNorm(2, 8, **of), (6, 8)),
    "InstanceNorm1d": (lambda **of: bnorm.InstanceNorm1d(8, affine=True, track_running_stats=True, **of), (6, 8, 5)),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("kind", "shape"), LAYERS.values(), ids=LAYERS)
def test_layers_on_rows(cupy, kind, shape, training):
    x, dy = np.random.default_rng(0).standard_normal((2, *shape)).astype("f4")
    found = []
    for dtype in ("float32", "float64"):
        layer = kind(dtype=dtype, device="cuda")
        layer.gamma.data[...], layer.beta.data[...] = map(fake_cupy.wrapped, drawn(8, 2).astype(dtype))
        y = layer.train(training)(fake_cupy.wrapped(x.copy()))
        found.append([y, layer.backward(fake_cupy.wrapped(dy.copy()))])
    for a, b in zip(*found, strict=True):
        assert_same(a.host, b.host)


def test_what_a_layer_says_of_inference_is_float64(cupy):
    layers = [bnorm.BatchNorm1d(8, dtype=dtype, device="cuda") for dtype in ("float32", "float64")]
    for layer in layers:
        for name, a in zip(("gamma", "beta", "running_mean", "running_var"), drawn(8, 4), strict=True):
            setattr(layer, name, fake_cupy.wrapped(a.astype("f8")))
    for single, double in zip(*(layer.as_affine() for layer in layers), strict=True):
        assert_same(single.host, double.host)
