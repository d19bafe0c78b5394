"""What the conversions share, and what happens where a neighbor is not installed."""

import subprocess
import sys

import numpy as np
import pytest

import bnorm
import child
from bnorm.interop import neighbors

APART = ("gymnasium", "stable_baselines3", "xarray", "dask", "pyspark", "ray", "tqdm")
PACKAGES = ("torch", "keras", "flax", "jax", "onnx", "skl2onnx", "autograd")


@pytest.mark.parametrize("old", [0.99, 0.9, 0.999, 0.1, 0.3, 0.0, 1.0, 1 / 3])
def test_momentum_turns_round_and_back(old):
    new = neighbors.complement(old)
    assert new == pytest.approx(1 - old, abs=1e-16)
    assert neighbors.complement(new) == pytest.approx(old, abs=1e-16)
    assert neighbors.complement(0.99) == 0.01
    assert neighbors.complement(0.01) == 0.99


@pytest.mark.parametrize(("scale", "center"), [(True, True), (True, False), (False, True), (False, False)])
def test_flags_turn_round_and_back(scale, center):
    layer = bnorm.LayerNorm(3, **neighbors.parameters(scale, center))
    neighbors.fix(layer, scale, center)
    assert neighbors.scales_and_centers(layer) == (scale, center)


def test_a_gamma_that_is_not_1_is_a_scale():
    layer = bnorm.LayerNorm(3)
    layer.gamma.requires_grad = False
    assert neighbors.scales_and_centers(layer) == (False, True)
    layer.gamma.data[1] = 2
    assert neighbors.scales_and_centers(layer) == (True, True)


def test_a_running_variance_of_another_convention_is_said():
    """In the library that a layer is converted to; from its next training batch on, if there will be one."""
    unbiased = bnorm.BatchNorm1d(3, ddof=1)
    with pytest.warns(
        UserWarning, match=r"^to: .* divides by the count - 1 here \(ddof=1\), and by the count in Keras"
    ):
        neighbors.warn_of_variance("to", unbiased, 0, "Keras")
    neighbors.warn_of_variance("to", unbiased, 1, "PyTorch")
    neighbors.warn_of_variance("to", unbiased.eval(), 0, "Keras")
    neighbors.warn_of_variance("to", bnorm.BatchNorm1d(3, momentum=0.0), 1, "PyTorch")
    neighbors.warn_of_variance("to", bnorm.InstanceNorm1d(3), 1, "PyTorch")


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=child.LIMIT)
    assert done.returncode == 0, done.stderr
    return done.stdout


CALLS = {  # the call, the extra that its error names
    "torch": ("bnorm.interop.torch.from_torch(None)", "torch"),
    "torch function": ("bnorm.interop.torch.batch_norm([[1.0], [2.0]])", "torch"),
    "keras": ("bnorm.interop.keras.to_keras(bnorm.BatchNorm1d(3))", "keras"),
    "flax": ("bnorm.interop.flax.to_flax(bnorm.BatchNorm1d(3))", "flax"),
    "onnx": ("bnorm.interop.onnx.to_onnx(bnorm.BatchNorm1d(3))", "onnx"),
    "skl2onnx": ("bnorm.interop.onnx.register()", "onnx"),
    "autograd": ("bnorm.interop.autograd.batch_norm([[1.0], [2.0]])", "autograd"),
    "jax": ("bnorm.interop.jax.batch_norm([[1.0], [2.0]])", "jax"),
    "gymnasium": ("import bnorm.interop.gymnasium", "rl"),
    "sb3": ("bnorm.interop.sb3", "sb3"),
    "xarray": ("bnorm.xarray", "xarray"),
    "dask": ("bnorm.distributed.dask.fit(bnorm.BatchNormTransformer(), None)", "dask"),
    "spark": ("from bnorm.distributed import spark", "spark"),
    "ray": ("import bnorm.distributed.ray", "ray"),
    "tqdm": ("bnorm.dataset_moments([[[1.0], [2.0]]], progress=True)", "progress"),
}


def test_a_missing_neighbor_is_named_with_its_extra():
    lines = [f"import sys; sys.modules.update(dict.fromkeys({PACKAGES + APART}))", "import bnorm"]
    for call, _ in CALLS.values():
        lines += [f"try: {call}", "except ImportError as error: print(error)"]
    for line, (_, extra) in zip(run("\n".join(lines)).splitlines(), CALLS.values(), strict=True):
        assert line.endswith(f"pip install 'bnorm[{extra}]'")
        assert "to be installed" in line


def test_every_module_is_there_and_imports_no_neighbor():
    names = [name for name in dir(bnorm.interop) if not name.startswith("_") and name != "neighbors"]
    modules = [name for name in names if name in bnorm.interop._MODULES]
    assert modules == sorted(bnorm.interop._MODULES)
    apart = ["gymnasium", "sb3"]  # their classes are subclasses of those of the neighbor
    lines = ["import sys, bnorm", *(f"bnorm.interop.{name}" for name in modules if name not in apart)]
    assert run("\n".join([*lines, f"print(*set(sys.modules) & set({PACKAGES}))"])).strip() == ""
    with pytest.raises(AttributeError, match=r"module 'bnorm.interop' has no attribute 'tensorflow'"):
        bnorm.interop.tensorflow  # noqa: B018


def test_engines_are_attributes_too():
    engines = [name for name in dir(bnorm.distributed) if name in ("dask", "engine", "ray", "spark")]
    found = "import bnorm; print(bnorm.distributed.engine.__name__)"
    assert run(found).strip() == "bnorm.distributed.engine"
    assert engines == ["dask", "engine", "ray", "spark"]
    with pytest.raises(AttributeError, match=r"module 'bnorm.distributed' has no attribute 'mpi'"):
        bnorm.distributed.mpi  # noqa: B018


@pytest.mark.parametrize("name", ["autograd", "jax", "torch"])
def test_a_residual_is_refused_as_its_gradient_would_be_lost(name):
    pytest.importorskip(name, reason=f"{name} is the other side")
    x = np.ones((2, 3), "f4")
    given = __import__("torch").from_numpy(x) if name == "torch" else x
    norm = getattr(bnorm.interop, name).layer_norm
    with pytest.raises(TypeError, match=rf"interop.{name}.layer_norm: residual: expected None.*layer_norm\(x \+ res"):
        norm(given, normalized_shape=3, residual=x)
    norm(given, normalized_shape=3, residual=None)


@pytest.mark.parametrize("subtract_last", [False, True])
@pytest.mark.parametrize("name", ["keras", "flax", "onnx"])
def test_a_layer_with_an_inverse_is_refused(name, subtract_last, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip(name, reason=f"{name} is the other side")
    convert = getattr(getattr(bnorm.interop, name), f"to_{name}")
    with pytest.raises(TypeError, match=rf"to_{name}: (layer|obj): expected a layer without an inverse, .* got RevIN"):
        convert(bnorm.RevIN(3, subtract_last=subtract_last))


class Doubling(bnorm.LayerNorm):
    """A layer of a user that computes something else."""

    def __call__(self, x):
        return 2 * super().__call__(x)


class DoublingBatch(bnorm.BatchNorm1d):
    def __call__(self, x):
        return 2 * super().__call__(x)


@pytest.mark.parametrize("name", ["torch", "keras", "flax", "onnx"])
def test_only_the_layers_of_this_package_are_converted(name, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip(name, reason=f"{name} is the other side")
    convert = getattr(getattr(bnorm.interop, name), f"to_{name}")
    for layer in (Doubling(3), DoublingBatch(3, axis=1 if name == "torch" else -1)):
        with pytest.raises(TypeError, match=rf"to_{name}: (layer|obj): expected one of BatchNorm1d.*, got .*Doubling"):
            convert(layer)
    with pytest.raises(TypeError, match=rf"to_{name}: (layer|obj): expected .*, got NoneType"):
        convert(None)


def there(name, layer, x):
    """What the module of another library that a layer becomes makes of x in inference."""
    if name == "torch":
        import torch

        with torch.no_grad():
            return bnorm.interop.torch.to_torch(layer, layer.dtype)(torch.from_numpy(x)).numpy()
    if name == "keras":
        import keras

        return keras.ops.convert_to_numpy(bnorm.interop.keras.to_keras(layer)(x))
    import jax

    module, variables = bnorm.interop.flax.to_flax(layer)
    with jax.enable_x64(True):
        return np.asarray(module.apply(variables, x))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras on PyTorch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["torch", "keras", "flax"])
def test_a_constant_channel_is_not_divided_by_zero(name, dtype, monkeypatch):
    """Or by rounding errors, with eps=0; and the variances of all other channels stay as they are."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip(name, reason=f"{name} is the other side")
    layer = bnorm.BatchNorm1d(4, 0.0, dtype=dtype, axis=1 if name == "torch" else -1).eval()
    layer.running_mean, layer.running_var = [1.0, 7.1, 1e6, 0.0], [3.0, 0.0, 1e-20, 1e-20]
    x = np.array([[2.0, 7.1, 1e6, 3e-10]], dtype)
    np.testing.assert_allclose(there(name, layer, x), layer(x), rtol=1e-5, atol=1e-6)
    kept = bnorm.interop.neighbors.arrays(layer)["running_var"]
    assert kept.tobytes() == np.where([0, 1, 1, 0], 1, layer.running_var).astype(dtype).tobytes()


def test_keras_without_its_backend(monkeypatch):
    """Keras is installed then, and what to do is something else."""

    def absent(name):
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")

    monkeypatch.setattr(neighbors, "import_module", absent)
    with pytest.raises(ImportError, match="KERAS_BACKEND is jax or torch"):
        neighbors.load("to_keras", "keras", "keras")
    with pytest.raises(ImportError, match=r"expected flax to be installed, got .*: pip install 'bnorm\[flax\]'"):
        neighbors.load("to_flax", "flax.nnx", "flax")
