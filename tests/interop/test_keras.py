"""Layers from and to Keras, with Keras on the other side: every bit of state, predictions, and training that goes on.

Keras computes batch norm in float32 whatever the dtype of the layer, so float64 is compared with the formula.
"""

import os

import numpy as np
import pytest

import bnorm
from later import Later, later

if "KERAS_BACKEND" not in os.environ:
    os.environ["KERAS_BACKEND"] = "torch"
pytest.importorskip("torch", reason="the backend that Keras runs on here")
keras = later("keras", "Keras is the other side")

from bnorm.interop.keras import from_keras, to_keras  # noqa: E402  after the skips

K = Later("keras.layers")

# NumPy warns of how PyTorch hands over its tensors, on which Keras runs here.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

LAYERS = {  # a layer, and the shape of a batch
    "batch of tables": (lambda **k: K.BatchNormalization(**k), (16, 4)),
    "batch of sequences": (lambda **k: K.BatchNormalization(**k), (8, 5, 4)),
    "batch of images": (lambda **k: K.BatchNormalization(momentum=0.9, epsilon=1e-5, **k), (8, 3, 5, 4)),
    "batch of images, channels first": (lambda **k: K.BatchNormalization(axis=1, **k), (8, 4, 3, 5)),
    "batch of volumes": (lambda **k: K.BatchNormalization(**k), (4, 3, 2, 5, 4)),
    "batch without scale": (lambda **k: K.BatchNormalization(scale=False, **k), (16, 4)),
    "batch without center": (lambda **k: K.BatchNormalization(center=False, **k), (16, 4)),
    "batch without both": (lambda **k: K.BatchNormalization(center=False, scale=False, **k), (16, 4)),
    "layer": (lambda **k: K.LayerNormalization(**k), (8, 4)),
    "layer of two axes": (lambda **k: K.LayerNormalization(axis=[-2, -1], **k), (8, 3, 4)),
    "layer without center": (lambda **k: K.LayerNormalization(center=False, **k), (8, 4)),
    "group": (lambda **k: K.GroupNormalization(groups=2, **k), (8, 5, 4)),
    "group, channels first": (lambda **k: K.GroupNormalization(groups=2, axis=1, **k), (8, 4, 3, 5)),
    "instance": (lambda **k: K.GroupNormalization(groups=-1, **k), (8, 5, 4)),
    "rms": (lambda **k: K.RMSNormalization(**k), (8, 4)),
}


def test_pytest_looks_for_fixtures_and_imports_nothing():
    for name in ("_mock_name", "__wrapped__"):
        assert not hasattr(Later("no_module_of_this_name"), name)


def array(variable):
    return np.asarray(keras.ops.convert_to_numpy(variable))


def made(name, dtype="float32"):
    """A layer of Keras that has learned something, and a generator of batches."""
    rng = np.random.default_rng(len(name))
    build, shape = LAYERS[name]
    layer = build(dtype=dtype)

    def batch():
        return (2 * rng.normal(size=shape) + 1).astype(dtype)

    for _ in range(3):
        layer(batch(), training=True)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    return layer, batch


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LAYERS)
def test_round_trip_changes_no_bit(name, dtype):
    theirs, _ = made(name, dtype)
    layer = from_keras(theirs)
    assert layer.dtype == dtype
    back = to_keras(layer, ndim=len(LAYERS[name][1]))
    assert type(back) is type(theirs)
    mine, others = ({v.name: array(v) for v in one.variables} for one in (back, theirs))
    assert list(mine) == list(others)
    for key, value in mine.items():
        assert value.dtype == others[key].dtype
        assert value.tobytes() == others[key].tobytes(), key
    for key in ("epsilon", "momentum", "center", "scale", "groups"):
        assert back.get_config().get(key) == theirs.get_config().get(key)
    again = from_keras(back)
    assert repr(again) == repr(layer)
    for key, value in layer.state_dict().items():
        assert value.tobytes() == again.state_dict()[key].tobytes()


@pytest.mark.parametrize("name", LAYERS)
def test_predictions_are_the_same(name):
    theirs, batch = made(name)
    layer, x = from_keras(theirs), batch()
    assert not layer.training
    np.testing.assert_allclose(layer(x), array(theirs(x)), rtol=0, atol=8e-6)  # 1e-6 for values up to 8
    back = to_keras(layer, ndim=x.ndim)
    np.testing.assert_array_equal(array(back(x)), array(theirs(x)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_eps_of_a_type(dtype):
    layer = bnorm.RMSNorm(3, eps=None, dtype=dtype)
    x = np.array([[1, 2, 3]], dtype) * np.sqrt(np.finfo(dtype).eps)
    np.testing.assert_allclose(array(to_keras(layer)(x)), layer(x), rtol=1e-6)


def test_the_epsilon_that_keras_takes_for_none():
    theirs = keras.layers.RMSNormalization(epsilon=None)
    theirs.build((None, 3))
    x = np.array([[1e-4, 2e-4, 3e-4]], np.float32)
    np.testing.assert_allclose(from_keras(theirs)(x), array(theirs(x)), rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in LAYERS if name.startswith("batch")])
def test_float64_is_what_the_formula_gives(name):
    theirs, batch = made(name, "float64")
    x = batch()
    shape = [1] * x.ndim
    shape[theirs.axis] = -1
    numbers = [theirs.moving_mean, theirs.moving_variance, theirs.gamma, theirs.beta]
    mean, var, gamma, beta = (None if v is None else array(v).reshape(shape) for v in numbers)
    y = (x - mean) / np.sqrt(var + theirs.epsilon)
    y = y if gamma is None else y * gamma
    y = y if beta is None else y + beta
    np.testing.assert_allclose(from_keras(theirs)(x), y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in LAYERS if name.startswith("batch")])
def test_training_goes_on_with_the_same_statistics(name):
    theirs, batch = made(name)
    layer = from_keras(theirs).train()
    for _ in range(5):
        x = batch()
        np.testing.assert_allclose(layer(x), array(theirs(x, training=True)), rtol=0, atol=8e-6)
    np.testing.assert_allclose(layer.running_mean, array(theirs.moving_mean), rtol=0, atol=2e-6)
    np.testing.assert_allclose(layer.running_var, array(theirs.moving_variance), rtol=2e-6)


def test_a_trained_net_predicts_the_same_here():
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(1)
    net = keras.Sequential([K.Dense(16), K.BatchNormalization(), K.ReLU(), K.Dense(8), K.LayerNormalization()])
    x = rng.normal(size=(64, 5)).astype(np.float32)
    net.compile(optimizer="sgd", loss="mse")
    net.fit(x, rng.normal(size=(64, 8)), epochs=2, batch_size=16, verbose=0)
    first, second, third, fourth = (net.layers[i] for i in (0, 1, 3, 4))
    hidden = np.maximum(from_keras(second)(x @ array(first.kernel) + array(first.bias)), 0)
    y = from_keras(fourth)(hidden @ array(third.kernel) + array(third.bias))
    np.testing.assert_allclose(y, net.predict(x, verbose=0), rtol=0, atol=4e-6)


def test_what_does_not_train_there_does_not_here():
    theirs, _ = made("batch of tables")
    theirs.trainable = False
    layer = from_keras(theirs)
    assert not any(p.requires_grad for p in layer.parameters())
    assert not to_keras(layer).trainable
    assert to_keras(layer.train()).trainable  # its statistics follow the batches
    layer = from_keras(made("batch without scale")[0])
    assert not layer.gamma.requires_grad
    assert (layer.gamma.data == 1).all()
    assert layer.beta.requires_grad


def test_the_running_variance_is_said_to_follow_keras():
    with pytest.warns(UserWarning, match=r"divides by the count - 1 here \(ddof=1\), and by the count in Keras"):
        to_keras(bnorm.BatchNorm1d(3, ddof=1))
    to_keras(bnorm.BatchNorm1d(3, ddof=1).eval())


def test_what_keras_does_not_have_is_refused():
    for layer, message in (
        (bnorm.BatchNorm1d(3, momentum=None), "expected a moving average of batches.*momentum=None"),
        (bnorm.BatchNorm1d(3, track_running_stats=False), "expected a moving average of batches"),
        (bnorm.BatchNorm1d(3, activation="relu"), "expected activation=None"),
        (bnorm.InstanceNorm1d(3, track_running_stats=True), "expected no running statistics"),
        (bnorm.GroupNorm(1, 3, axis=0), "expected samples on axis 0, as Keras has them, got axis=0"),
        (bnorm.InstanceNorm1d(3, axis=-3), "expected samples on axis 0, as Keras has them, got axis=-3"),
    ):
        with pytest.raises(ValueError, match=f"to_keras: layer: {message}"):
            to_keras(layer)
    with pytest.raises(ValueError, match="from_keras: keras_layer: expected one that has been built"):
        from_keras(K.BatchNormalization())
    with pytest.raises(TypeError, match="from_keras: keras_layer: expected one of BatchNormalization"):
        from_keras(K.Dense(3))
    renorm = K.BatchNormalization(renorm=True)
    renorm.build((None, 3))
    with pytest.raises(ValueError, match="expected no renorm"):
        from_keras(renorm)
    scaled = K.LayerNormalization()
    scaled.build((None, 3))
    scaled.rms_scaling = True  # an option of Keras before 3.9
    with pytest.raises(ValueError, match="expected no renorm and no rms_scaling"):
        from_keras(scaled)
    inner = K.LayerNormalization(axis=1)
    inner.build((None, 3, 4))
    with pytest.raises(ValueError, match="expected the last axes"):
        from_keras(inner)


@pytest.mark.parametrize("ndim", [1, 3, "4"])
@pytest.mark.parametrize(
    "layer", [bnorm.BatchNorm2d(3), bnorm.InstanceNorm2d(3), bnorm.GroupNorm(1, 3, axis=3)], ids=repr
)
def test_a_number_of_dimensions_that_the_layer_does_not_take(layer, ndim):
    with pytest.raises((TypeError, ValueError), match=r"^to_keras: ndim: expected one of (4|4, 5, .*, 9), got"):
        to_keras(layer, ndim=ndim)


@pytest.mark.parametrize("given", ["a layer of Keras", None, 3])
def test_what_is_no_layer_here(given):
    given = K.BatchNormalization() if isinstance(given, str) else given
    with pytest.raises(TypeError, match=r"to_keras: layer: expected one of BatchNorm1d, .*GroupNorm, got \w+"):
        to_keras(given)
