"""Layers on the GPU, on the stand-in: the errors of the CPU, arrays of the other side, devices that are not there."""

import numpy as np
import pytest

import bnorm
from bnorm.kernels import gpu
from compare import assert_close
from emulated.device import needs_emulator
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401
from emulated.pairs import DY, MAKERS, RNG, C, X, assert_alike, pair, there
from layer_oracle import held


@needs_emulator
def test_arrays_of_the_other_side(cupy):
    """In every place of a call; and nothing has changed."""
    for device, on_side, wrong in (("cuda", there, lambda a: a), ("cpu", lambda a: a, there)):
        want, got, move, _, ways = (
            ("CuPy", "NumPy", "asarray", "asnumpy", "layer.to('cpu')")
            if device == "cuda"
            else ("NumPy", "CuPy", "asnumpy", "asarray", "layer.to('cuda')")
        )
        bn = bnorm.BatchNorm1d(C, device=device)
        bn(on_side(X))
        before, saved = held(bn), bn._saved
        own = f"expected a {want} array, as the layer is on the {'GPU' if device == 'cuda' else 'CPU'}, got a {got}"
        beside = f"expected a {want} array, as x is one, got a {got} array"
        calls = {
            f"x: {own} array: NumPy and CuPy arrays do not mix; cupy.{move}(x) moves the one, {ways} the": (
                lambda bn=bn, wrong=wrong: bn(wrong(X))
            ),
            f"weight: {beside}": lambda bn=bn, s=on_side, w=wrong: bn(s(X), w(np.ones(6))),
            f"out: {beside}": lambda bn=bn, s=on_side, w=wrong: bn(s(X), out=w(X)),
            f"dy: {beside}": lambda bn=bn, w=wrong: bn.backward(w(DY)),
            f"gamma: {own}": lambda bn=bn, w=wrong: setattr(bn, "gamma", w(np.ones(C))),
            f"beta: {own}": lambda bn=bn, w=wrong: setattr(bn, "beta", w(np.ones(C))),
            f"running_mean: {own}": lambda bn=bn, w=wrong: setattr(bn, "running_mean", w(np.ones(C))),
            f"running_var: {own}": lambda bn=bn, w=wrong: setattr(bn, "running_var", w(np.ones(C))),
        }
        for message, call in calls.items():
            with pytest.raises(TypeError) as caught, cupy.nothing_waits():
                call()
            assert str(caught.value).startswith(f"BatchNorm1d(4): {message}"), message
        for name in ("data", "grad"):
            with pytest.raises(TypeError, match=rf"^Parameter: {name}: expected a {want} array, as data is one, got"):
                setattr(bn.gamma, name, wrong(np.ones(C)))
        assert held(bn) == before and bn._saved is saved
        for make, shape in (MAKERS["layer"], MAKERS["group"]):
            with pytest.raises(TypeError, match=rf"x: expected a {want} array, as the layer is on"):
                make(device)(wrong(np.ones(shape)))


@needs_emulator
def test_errors_are_those_of_the_cpu(cupy):
    bn, on_cpu = bnorm.BatchNorm1d(C, device="cuda"), bnorm.BatchNorm1d(C)
    bn(there(X)), on_cpu(X)
    before = held(bn)
    wrong = [
        {"x": X[:, :3]},
        {"x": X[0]},
        {"x": X * 1j},
        {"x": X, "weight": -np.ones(6)},
        {"x": X, "weight": np.ones(5)},
        {"x": X, "out": X[:3]},
        {"x": X, "out": X.astype("f4")},
        {"x": None},
    ]
    for arguments in wrong:
        with pytest.raises((TypeError, ValueError)) as want:
            on_cpu(**arguments)
        with pytest.raises(want.type) as got:
            bn(**{name: there(a) for name, a in arguments.items()})
        part = 60 if arguments["x"] is not None else 25
        assert str(got.value)[:part] == str(want.value)[:part]
    for name, value in (("gamma", np.ones(5)), ("running_var", -np.ones(C)), ("gamma", np.ones(C) > 0)):
        with pytest.raises((TypeError, ValueError)) as want:
            setattr(on_cpu, name, value)
        with pytest.raises(want.type, match=r"^BatchNorm1d\(4\): "):
            setattr(bn, name, there(value))
    assert held(bn) == before


def test_a_device_that_is_not_there(cupy, monkeypatch):
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    gpu.available.cache_clear()
    on_cpu = bnorm.BatchNorm1d(C)
    on_cpu(X)
    before, saved = held(on_cpu), on_cpu._saved
    for call in (lambda: on_cpu.to("cuda"), lambda: bnorm.BatchNorm1d(C, device="cuda")):
        with pytest.raises(
            RuntimeError, match=r"device: expected 'cpu', got 'cuda': CuPy 14.0 finds no CUDA device\.$"
        ):
            call()
    assert held(on_cpu) == before and on_cpu._saved is saved and on_cpu.device == "cpu"
    for wrong, error in (("gpu", ValueError), ("cuda:0", ValueError), (None, TypeError)):
        with pytest.raises(error, match=r"^BatchNorm1d\(4\): device: expected one of cpu, cuda, got"):
            on_cpu.to(wrong)


@pytest.mark.parametrize("options", [{}, {"nonfinite": "propagate"}, {"momentum": None}], ids=str)
def test_a_launch_that_fails_changes_nothing(cupy, options, monkeypatch):
    """The forward that waits for its backward is still the last one that was computed."""
    bn = bnorm.BatchNorm1d(C, device="cuda", **options)
    with cupy.launches_nothing():
        bn(there(X))
        before, saved = held(bn), bn._saved

        def fails(*arguments, **more):
            raise RuntimeError("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")

        monkeypatch.setattr(cupy.Kernel, "__call__", fails)
        for call in (lambda: bn(there(X)), lambda: bn.backward(there(DY))):
            with pytest.raises(RuntimeError, match="CAPTURE_INVALIDATED"):
                call()
            assert held(bn) == before and bn._saved is saved


@needs_emulator
def test_a_layer_without_arrays_takes_those_of_any_device(cupy):
    x = RNG.standard_normal((3, C, 5))
    for device in ("cpu", "cuda"):
        layer = bnorm.InstanceNorm1d(C, device=device)
        want = layer(x)
        assert type(want) is np.ndarray
        assert_alike(layer(there(x)), want)
    assert type(layer(x.tolist())) is cupy.ndarray


@needs_emulator
def test_bfloat16(cupy):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    bn, on_cpu = pair(MAKERS["batch"][0])
    low = X.astype(bfloat16)
    with cupy.nothing_waits():
        y, dx = bn(there(low)), bn.backward(there(DY))
    assert y.dtype == dx.dtype == bfloat16
    want = on_cpu(low.astype("f4"))
    for result in (y.host, on_cpu(low)):
        assert result.dtype == bfloat16
        assert_close(result.astype("f8"), want, 2.0**-8 * np.maximum(1, np.abs(want)))
