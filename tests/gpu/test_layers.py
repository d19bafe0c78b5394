"""Layers on the GPU, on the stand-in: the steps, statistics and counters of the CPU, without waiting for the device."""

import numpy as np
import pytest

import bnorm
from bnorm.checks import SingleValueError
from emulated.device import needs_emulator
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401
from emulated.pairs import DY, MAKERS, C, X, assert_alike, assert_layers_agree, every_layer, pair, step, there
from layer_oracle import held


@needs_emulator
@every_layer
def test_training(cupy, make, shape):
    """Steps of an optimizer in between, and inference at the end."""
    on_gpu, on_cpu = pair(make)
    rng = np.random.default_rng(2)
    for _ in range(3):
        x, dy = rng.standard_normal((2, *shape)) * 2 + 3
        step(on_gpu, on_cpu, x, dy)
        for layer in (on_gpu, on_cpu):
            with cupy.nothing_waits():
                for p in layer.parameters():
                    p.data -= 0.1 * p.grad
                layer.zero_grad()
    assert_layers_agree(on_gpu, on_cpu)
    on_gpu.eval(), on_cpu.eval()
    step(on_gpu, on_cpu, x, dy)
    assert_layers_agree(on_gpu, on_cpu)
    step(on_gpu, on_cpu, x.astype("f4"), dy.astype("f4"))
    assert on_gpu.device == "cuda" and "device='cuda'" in repr(on_gpu)
    with cupy.nothing_waits():
        on_gpu.reset_parameters(), on_gpu.zero_grad()
    on_cpu.reset_parameters(), on_cpu.zero_grad()
    assert_layers_agree(on_gpu, on_cpu)


@needs_emulator
def test_out_and_lists(cupy):
    on_gpu, on_cpu = pair(MAKERS["batch"][0])
    x, dy = there(X), there(DY)
    with cupy.nothing_waits():
        out = cupy.empty(X.shape)
        assert on_gpu(x, out=out) is out
        assert on_gpu.backward(dy, out=dy) is dy
    assert_alike(out, on_cpu(X))
    assert_alike(dy, on_cpu.backward(DY))
    assert_alike(on_gpu(X.tolist()), on_cpu(X.tolist()))
    assert_alike(on_gpu.backward(DY.tolist()), on_cpu.backward(DY.tolist()))
    assert_layers_agree(on_gpu, on_cpu)
    on_gpu.eval()
    for name, own in (
        ("gamma", on_gpu.gamma.data),
        ("beta.grad", on_gpu.beta.grad),
        ("running_var", on_gpu.running_var),
    ):
        with pytest.raises(ValueError, match=rf"^BatchNorm1d\(4\): out: expected .* overlaps {name}$"):
            on_gpu(x[:1], out=own.reshape(1, C))


@needs_emulator
@pytest.mark.parametrize(
    "weight",
    [np.arange(6.0), np.arange(6) > 2, np.zeros(6), np.arange(6) == 2, [1, 1, 0, 0, 1, 1]],
    ids=["floats", "mask", "none", "one", "list"],
)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_weights(cupy, weight, momentum):
    on_gpu, on_cpu = pair(lambda device: bnorm.BatchNorm1d(C, momentum=momentum, on_single="running", device=device))
    if isinstance(weight, list):
        assert_alike(on_gpu(there(X), weight), on_cpu(X, weight))
    else:
        step(on_gpu, on_cpu, X, DY, 1, weight=weight)
    assert_layers_agree(on_gpu, on_cpu)
    on_gpu.momentum = on_cpu.momentum = None  # what came before has to be as large as this batch
    if isinstance(weight, np.ndarray):
        on_gpu(there(X), there(weight)), on_cpu(X, weight)
    on_gpu(there(X)), on_cpu(X)
    assert_layers_agree(on_gpu, on_cpu)


@needs_emulator
def test_switches(cupy):
    on_gpu, on_cpu = pair(MAKERS["batch"][0])
    for layer in (on_gpu, on_cpu):
        layer.gamma.requires_grad = False
    with on_gpu.frozen_stats(), on_cpu.frozen_stats():
        step(on_gpu, on_cpu, X, DY)
    step(on_gpu, on_cpu, X, DY)
    assert (on_gpu.gamma.grad.host == 0).all() and not (on_gpu.beta.grad.host == 0).all()
    assert_layers_agree(on_gpu, on_cpu)
    with pytest.raises(SingleValueError, match=r"^BatchNorm1d\(4\): x: expected more than one value"):
        on_gpu(there(X[:1]))
    assert_alike(on_gpu(there(X[:0])), on_cpu(X[:0]))
    assert_alike(on_gpu.backward(there(X[:0])), on_cpu.backward(X[:0]))
    for layer in (on_gpu, on_cpu):
        layer.on_single = "running"
    assert_alike(on_gpu(there(X[:1])), on_cpu(X[:1]))
    assert_layers_agree(on_gpu, on_cpu)
    with pytest.raises(RuntimeError, match="expected a forward before each backward"):
        on_gpu.backward(there(X[:1])), on_gpu.backward(there(X[:1]))
    on_cpu.backward(X[:1])
    for layer in (on_gpu, on_cpu):
        layer.reset_running_stats()
    assert_layers_agree(on_gpu, on_cpu)


@needs_emulator
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("replace", [False, True])
def test_pooled_statistics(cupy, momentum, replace):
    on_gpu, on_cpu = pair(lambda device: bnorm.BatchNorm1d(C, momentum=momentum, device=device))
    step(on_gpu, on_cpu, X, DY)
    on_gpu.momentum = on_cpu.momentum = 0.5 if momentum else None
    device_parts = [there(X[:2]), there(X[2:])]
    with cupy.nothing_waits(), on_gpu.pooled_stats(replace):
        for part in device_parts:
            on_gpu(part)
    with on_cpu.pooled_stats(replace):
        on_cpu(X[:2]), on_cpu(X[2:])
    assert_layers_agree(on_gpu, on_cpu)
    before = held(on_gpu)
    with pytest.raises(ZeroDivisionError), on_gpu.pooled_stats(replace):
        on_gpu(device_parts[0])
        raise ZeroDivisionError
    assert held(on_gpu) == before
    with on_gpu.pooled_stats(), pytest.raises(RuntimeError, match=r"^BatchNorm1d\(4\): to: expected no pooled_stats"):
        on_gpu.to("cpu")
    assert held(on_gpu) == before


@needs_emulator
def test_a_state_without_counts_goes_on(cupy):
    on_gpu, on_cpu = pair(MAKERS["batch"][0])
    step(on_gpu, on_cpu, X, DY)
    on_gpu.momentum = on_cpu.momentum = None
    with cupy.nothing_waits(), on_gpu.pooled_stats():
        on_gpu(there(X[:3]))
    with on_cpu.pooled_stats():
        on_cpu(X[:3])
    assert_layers_agree(on_gpu, on_cpu)
