"""A layer on the stand-in for a GPU beside the same one on the CPU, and how they are compared."""

import numpy as np
import pytest

import bnorm
from compare import EPS, assert_close
from emulated import fake_cupy

C = 4
RNG = np.random.default_rng(0)
X, DY = RNG.standard_normal((2, 6, C))
BROKEN = X.copy()
BROKEN[0, 1], BROKEN[3, 2] = np.nan, np.inf
IMAGES = RNG.standard_normal((3, C, 3, 2))
MAKERS = {
    "batch": (lambda device: bnorm.BatchNorm1d(C, device=device), (6, C)),
    "images": (lambda device: bnorm.BatchNorm2d(C, momentum=None, ddof=1, device=device), IMAGES.shape),
    "relu": (lambda device: bnorm.BatchNorm1d(C, activation="relu", axis=-1, device=device), (3, 5, C)),
    "float32": (lambda device: bnorm.BatchNorm1d(C, dtype="float32", device=device), (6, C)),
    "volumes": (lambda device: bnorm.BatchNorm3d(C, affine=False, device=device), (2, C, 2, 2, 3)),
    "untracked": (lambda device: bnorm.BatchNorm1d(C, track_running_stats=False, device=device), (6, C)),
    "layer": (lambda device: bnorm.LayerNorm((3, 2), device=device), (4, 3, 2)),
    "rms": (lambda device: bnorm.RMSNorm(C, dtype="float32", device=device), (6, C)),
    "group": (lambda device: bnorm.GroupNorm(2, C, activation="relu", device=device), IMAGES.shape),
    "instance": (lambda device: bnorm.InstanceNorm2d(C, affine=True, device=device), IMAGES.shape),
    "no arrays": (lambda device: bnorm.InstanceNorm1d(C, device=device), (3, C, 5)),
}
every_layer = pytest.mark.parametrize(("make", "shape"), MAKERS.values(), ids=MAKERS)


def there(a):
    return fake_cupy.wrapped(np.array(a)) if isinstance(a, np.ndarray) else a


def back(a):
    return a.host if isinstance(a, fake_cupy.ndarray) else a


def arrays(layer):
    """All that can be seen of a layer, on the host."""
    seen = {name: getattr(layer, name, None) for name in ("running_mean", "running_var")}
    for name, p in layer.named_parameters():
        seen |= {name: p.data, f"{name}.grad": p.grad}
    if isinstance(layer, bnorm.BatchNorm1d) and layer.track_running_stats:
        seen["seen"] = layer._running.seen
    return seen


def assert_layers_agree(got, want):
    for (name, a), b in zip(arrays(got).items(), arrays(want).values(), strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            assert type(a) is fake_cupy.ndarray and type(b) is np.ndarray and a.dtype == b.dtype
            size = 10 if name.endswith("grad") else 1  # of the terms, which may cancel
            assert_close(a.host, b, 64 * EPS[b.dtype] * np.abs(b).max(initial=size), what=name)
    for name in ("num_batches_tracked", "num_batches_skipped", "training"):
        assert getattr(got, name, None) == getattr(want, name, None), name


def assert_alike(got, want, factor=256):
    assert type(got) is fake_cupy.ndarray and got.dtype == want.dtype and got.shape == want.shape
    assert_close(got.host, want, factor * EPS[want.dtype] * np.abs(want).max(initial=1))


def pair(make):
    """The same layer on the GPU and on the CPU, with parameters of their own."""
    layers = make("cuda"), make("cpu")
    rng = np.random.default_rng(1)
    for name, p in layers[1].named_parameters():
        values = rng.uniform(0.5, 2, p.shape)
        setattr(layers[1], name, values)
        setattr(layers[0], name, there(values))
    return layers


def step(on_gpu, on_cpu, x, dy, waits=0, **options):
    """A forward and a backward on both, which agree; the first does not wait for the device."""
    device_x, device_dy, device = there(x), there(dy), {name: there(a) for name, a in options.items()}
    before = fake_cupy.waits, fake_cupy.uploads
    y = on_gpu(device_x, **device)
    assert (fake_cupy.waits - before[0], fake_cupy.uploads - before[1]) == (waits, 0)
    want = on_cpu(x, **options)
    assert_alike(y, want)
    with fake_cupy.nothing_waits():
        dx = on_gpu.backward(device_dy)
    assert_alike(dx, on_cpu.backward(dy))
