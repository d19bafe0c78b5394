"""Layers from and to Flax, linen and nnx, with Flax on the other side."""

import numpy as np
import pytest

import bnorm

jax = pytest.importorskip("jax", reason="Flax stands on JAX")
linen = pytest.importorskip("flax.linen", reason="Flax is the other side")
nnx = pytest.importorskip("flax.nnx", reason="Flax is the other side")

from bnorm.interop.flax import from_flax, to_flax  # noqa: E402  after the skips

# A module by both names, what nnx wants to know of shapes, and the shape of a batch.
MODULES = {
    "batch": ("BatchNorm", (4,), {}, (16, 4)),
    "batch of images": ("BatchNorm", (4,), {"momentum": 0.9, "epsilon": 1e-3}, (8, 3, 5, 4)),
    "batch, channels first": ("BatchNorm", (4,), {"axis": 1}, (8, 4, 5)),
    "batch without scale": ("BatchNorm", (4,), {"use_scale": False}, (16, 4)),
    "batch without bias": ("BatchNorm", (4,), {"use_bias": False}, (16, 4)),
    "batch without both": ("BatchNorm", (4,), {"use_bias": False, "use_scale": False}, (16, 4)),
    "layer": ("LayerNorm", (4,), {}, (8, 4)),
    "layer without bias": ("LayerNorm", (4,), {"use_bias": False}, (8, 3, 4)),
    "layer of two axes": ("LayerNorm", ((3, 4),), {"reduction_axes": (-2, -1), "feature_axes": (-2, -1)}, (8, 3, 4)),
    "rms": ("RMSNorm", (4,), {}, (8, 4)),
    "group": ("GroupNorm", (4,), {"num_groups": 2}, (8, 5, 4)),
    "group of a size": ("GroupNorm", (4,), {"num_groups": None, "group_size": 2}, (8, 5, 4)),
    "instance": ("InstanceNorm", (4,), {}, (8, 5, 4)),
}
BOTH = [(name, api) for name in MODULES for api in ("linen", "nnx")]
BOTH.remove(("layer of two axes", "nnx"))  # which has a number of features, not a shape


def made(name, api):
    """A module that has learned something and its variables, None of nnx, and a generator of batches."""
    rng = np.random.default_rng(len(name))
    kind, sizes, options, shape = MODULES[name]

    def batch():
        return (2 * rng.normal(size=shape) + 1).astype(np.float32)

    if kind == "BatchNorm":
        options = {**options, "use_running_average": False}
    if api == "linen":
        module = getattr(linen, kind)(**options)
        variables = module.init(jax.random.key(0), batch())
        params = jax.tree.map(lambda a: rng.normal(size=a.shape).astype(a.dtype), variables.get("params", {}))
        variables = {**variables, "params": params}
        for _ in range(3 if kind == "BatchNorm" else 0):
            variables = {**variables, **module.apply(variables, batch(), mutable=["batch_stats"])[1]}
        return module, variables, batch
    module = getattr(nnx, kind)(*sizes, **options, rngs=nnx.Rngs(0))
    for parameter in ("scale", "bias"):
        if (p := getattr(module, parameter, None)) is not None:
            p[...] = rng.normal(size=p.shape).astype(np.float32)
    for _ in range(3 if kind == "BatchNorm" else 0):
        module(batch())
    return module, None, batch


def applied(module, variables, x, training=False):
    """y, and variables that have moved."""
    mode = {"use_running_average": not training} if type(module).__name__ == "BatchNorm" else {}
    if variables is None:
        return np.asarray(module(x, **mode)), None
    if mode:  # which linen takes once, here or there
        module = module.clone(use_running_average=None)
    y, moved = module.apply(variables, x, **mode, mutable=["batch_stats"])
    return np.asarray(y), {**variables, **moved}


def arrays(module, variables):
    if variables is not None:
        flat = {**variables.get("params", {}), **variables.get("batch_stats", {})}
    else:
        named = {name: getattr(module, name, None) for name in ("scale", "bias", "mean", "var")}
        flat = {name: v[...] for name, v in named.items() if v is not None}
    return {name: np.asarray(a) for name, a in flat.items()}


@pytest.mark.parametrize(("name", "api"), BOTH)
def test_round_trip_changes_no_bit(name, api):
    module, variables, _ = made(name, api)
    layer = from_flax(module, variables, ndim=len(MODULES[name][3]))
    assert layer.dtype == "float32"
    back = to_flax(layer, api)
    module_back, variables_back = back if api == "linen" else (back, None)
    mine, theirs = arrays(module_back, variables_back), arrays(module, variables)
    assert sorted(mine) == sorted(theirs)
    for key, value in mine.items():
        assert value.dtype == theirs[key].dtype
        assert value.tobytes() == theirs[key].tobytes(), key
    for key in ("epsilon", "momentum", "use_scale", "use_bias", "axis"):
        assert getattr(module_back, key, None) == getattr(module, key, None)
    again = from_flax(module_back, variables_back, ndim=len(MODULES[name][3]))
    assert repr(again) == repr(layer)


@pytest.mark.parametrize(("name", "api"), BOTH)
def test_predictions_are_the_same(name, api):
    module, variables, batch = made(name, api)
    layer, x = from_flax(module, variables, ndim=len(MODULES[name][3])), batch()
    wanted, _ = applied(module, variables, x)
    np.testing.assert_allclose(layer.eval()(x), wanted, rtol=0, atol=8e-6)  # 1e-6 for values up to 8
    back = to_flax(layer, api)
    y, _ = applied(*(back if api == "linen" else (back, None)), x)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize(("name", "api"), [case for case in BOTH if case[0].startswith("batch")])
def test_training_goes_on_with_the_same_statistics(name, api):
    module, variables, batch = made(name, api)
    layer = from_flax(module, variables, ndim=len(MODULES[name][3])).train()
    for _ in range(5):
        x = batch()
        wanted, variables = applied(module, variables, x, training=True)
        np.testing.assert_allclose(layer(x), wanted, rtol=0, atol=8e-6)
    theirs = arrays(module, variables)
    np.testing.assert_allclose(layer.running_mean, theirs["mean"], rtol=0, atol=2e-6)
    np.testing.assert_allclose(layer.running_var, theirs["var"], rtol=4e-6)


def test_float64_is_what_flax_computes_with_it():
    layer = bnorm.BatchNorm1d(4, momentum=0.25, axis=-1)
    rng = np.random.default_rng(1)
    layer(rng.normal(size=(16, 4)) + 3)
    layer.gamma, layer.beta = rng.normal(size=(2, 4))
    x = rng.normal(size=(8, 4)) + 3
    module, variables = to_flax(layer.eval())
    assert variables["batch_stats"]["mean"].tobytes() == layer.running_mean.tobytes()
    with jax.enable_x64(True):
        y, _ = applied(module, variables, x)
        np.testing.assert_allclose(layer(x), y, rtol=0, atol=1e-12)
        np.testing.assert_allclose(layer(x), np.asarray(to_flax(layer, "nnx")(x)), rtol=0, atol=1e-12)


def test_the_eps_of_a_type():
    layer = bnorm.RMSNorm(3, eps=None, dtype="float32")
    x = np.array([[1e-4, 2e-4, 3e-4]], np.float32)
    y, _ = applied(*to_flax(layer), x)
    np.testing.assert_allclose(y, layer(x), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parameters_that_flax_makes_anew_have_the_type_of_the_layer(dtype):
    layer = bnorm.LayerNorm(3, dtype=dtype)
    assert to_flax(layer)[0].param_dtype == to_flax(layer, "nnx").param_dtype == dtype


def test_a_scale_that_is_frozen_is_still_a_scale():
    layer = bnorm.LayerNorm(3, dtype="float32")
    layer.gamma = [1.0, 2.0, 3.0]
    layer.gamma.requires_grad = False
    x = np.array([[1.0, 2.0, 4.0]], np.float32)
    y, _ = applied(*to_flax(layer), x)
    np.testing.assert_allclose(y, layer(x), rtol=1e-6)


def test_mode_is_use_running_average():
    for average in (True, False):
        module = nnx.BatchNorm(3, use_running_average=average, rngs=nnx.Rngs(0))
        layer = from_flax(module)
        assert layer.training is not average
        assert to_flax(layer, "nnx").use_running_average is average


def test_the_running_variance_is_said_to_follow_flax():
    with pytest.warns(UserWarning, match=r"divides by the count - 1 here \(ddof=1\), and by the count in Flax"):
        to_flax(bnorm.BatchNorm1d(3, ddof=1))
    to_flax(bnorm.BatchNorm1d(3, ddof=1).eval())


def test_what_flax_does_not_have_is_refused():
    for layer, message in (
        (bnorm.BatchNorm1d(3, momentum=None), "expected a moving average of batches"),
        (bnorm.LayerNorm(3, activation="relu"), "expected activation=None"),
        (bnorm.GroupNorm(1, 3), "expected axis=-1, where Flax has its channels, got 1"),
        (bnorm.InstanceNorm1d(3, track_running_stats=True, axis=-1), "expected no running statistics"),
    ):
        with pytest.raises(ValueError, match=f"to_flax: layer: {message}"):
            to_flax(layer)
    with pytest.raises(ValueError, match="to_flax: layer: expected one axis to normalize, as nnx has it"):
        to_flax(bnorm.LayerNorm((3, 4)), "nnx")
    with pytest.raises(ValueError, match="to_flax: api: expected 'linen' or 'nnx', got 'haiku'"):
        to_flax(bnorm.BatchNorm1d(3), "haiku")
    with pytest.raises(TypeError, match="from_flax: variables: expected those of a module of linen"):
        from_flax(linen.BatchNorm())
    with pytest.raises(TypeError, match="from_flax: module: expected one of"):
        from_flax(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match="expected a scale or a bias, whose shape"):
        from_flax(linen.LayerNorm(use_scale=False, use_bias=False), {})
    x = np.ones((2, 4, 4))
    for odd, ndim, message in (
        (linen.GroupNorm(num_groups=2, reduction_axes=(-1,)), 3, r"reduction_axes: expected None, .* got \(-1,\) with"),
        (linen.GroupNorm(num_groups=2, reduction_axes=(1, -1)), None, "reduction_axes: expected None, or all axes but"),
        (linen.InstanceNorm(feature_axes=1), 3, "feature_axes: expected -1, the last axis, got 1"),
    ):
        with pytest.raises(ValueError, match=f"from_flax: module: {message}"):
            from_flax(odd, odd.init(jax.random.key(0), x), ndim=ndim)
    own = linen.BatchNorm().init(jax.random.key(0), x, use_running_average=False)
    whole = {kind: {"bn": own[kind], "dense": {}} for kind in ("params", "batch_stats")}
    without = {"batch_stats": own["batch_stats"]}
    for given, got in (
        ({}, "none"),
        ({"params": own["params"]}, r"params with \['scale', 'bias'\]"),
        (without, r"batch_stats with \['mean', 'var'\]"),
        (whole, r"params with \['bn', 'dense'\], batch_stats with \['bn', 'dense'\]"),
    ):
        expected = "params with scale and bias and batch_stats with mean and var of this module"
        with pytest.raises(ValueError, match=f"^from_flax: variables: expected {expected}, got {got}$"):
            from_flax(linen.BatchNorm(), given)
    with pytest.raises(ValueError, match=r"expected params with scale of this module, got params with \['bn', 'dense"):
        from_flax(linen.RMSNorm(), whole | {"batch_stats": {}})
    assert not from_flax(linen.BatchNorm(use_scale=False, use_bias=False), without).affine
    every = linen.GroupNorm(num_groups=2, reduction_axes=(1, -1))
    assert from_flax(every, every.init(jax.random.key(0), x), ndim=3).num_groups == 2
    with pytest.raises(ValueError, match="from_flax: ndim: expected one of 2, 3, 4 and 5 dimensions of x, got 6"):
        from_flax(nnx.BatchNorm(3, rngs=nnx.Rngs(0)), ndim=6)
    several = linen.BatchNorm(use_running_average=False, axis=(1, 2))
    with pytest.raises(ValueError, match=r"from_flax: module: axis: expected one axis, got \(1, 2\)"):
        from_flax(several, several.init(jax.random.key(0), x))
    for axes in ((1, 1), (1, -1), (-1, 1)):
        inner = linen.LayerNorm(reduction_axes=axes[0], feature_axes=axes[1])
        with pytest.raises(ValueError, match="from_flax: module: expected the last axes"):
            from_flax(inner, inner.init(jax.random.key(0), np.ones((2, 3, 4))))
