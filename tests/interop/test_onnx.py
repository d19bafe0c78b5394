"""Models of ONNX, run by onnxruntime and by ONNX's own evaluator."""

import numpy as np
import pytest

import bnorm

onnx = pytest.importorskip("onnx", reason="ONNX is the other side")
onnxruntime = pytest.importorskip("onnxruntime", reason="a runtime of ONNX is the other side")
reference = pytest.importorskip("onnx.reference", reason="ONNX's evaluator is the other side")

from bnorm.interop.onnx import register, to_onnx  # noqa: E402  after the skips

TOLERANCE = {"float32": 5e-7, "float64": 1e-12}

LAYERS = {  # a layer, the shape of a batch, the nodes
    "batch of tables": (lambda: bnorm.BatchNorm1d(4), (9, 4), ["BatchNormalization"]),
    "batch of sequences": (lambda: bnorm.BatchNorm1d(4, eps=1e-3), (9, 4, 5), ["BatchNormalization"]),
    "batch of images": (lambda: bnorm.BatchNorm2d(4, momentum=None), (3, 4, 5, 2), ["BatchNormalization"]),
    "batch of volumes": (lambda: bnorm.BatchNorm3d(4), (3, 4, 5, 2, 2), ["BatchNormalization"]),
    "batch, channels last": (
        lambda: bnorm.BatchNorm2d(4, axis=-1),
        (3, 5, 2, 4),
        ["Transpose", "BatchNormalization", "Transpose"],
    ),
    "batch without affine": (lambda: bnorm.BatchNorm1d(4, affine=False), (9, 4), ["BatchNormalization"]),
    "batch without bias": (lambda: bnorm.BatchNorm1d(4, bias=False), (9, 4), ["BatchNormalization"]),
    "batch and ReLU": (lambda: bnorm.BatchNorm1d(4, activation="relu"), (9, 4), ["BatchNormalization", "Relu"]),
    "batch and leaky ReLU": (
        lambda: bnorm.BatchNorm1d(4, activation="leaky_relu", negative_slope=0.3),
        (9, 4),
        ["BatchNormalization", "Mul", "Max"],
    ),
    "batch and SiLU": (
        lambda: bnorm.BatchNorm1d(4, activation="silu"),
        (9, 4),
        ["BatchNormalization", "Sigmoid", "Mul"],
    ),
    "layer and GELU": (
        lambda: bnorm.LayerNorm(8, activation="gelu"),
        (5, 8),
        ["LayerNormalization", "Mul", "Mul", "Add", "Mul", "Sigmoid", "Mul"],
    ),
    "layer": (lambda: bnorm.LayerNorm(8), (5, 8), ["LayerNormalization"]),
    "layer of two axes": (lambda: bnorm.LayerNorm((4, 5), eps=1e-3), (3, 4, 5), ["LayerNormalization"]),
    "layer without bias": (lambda: bnorm.LayerNorm(8, bias=False), (5, 3, 8), ["LayerNormalization"]),
    "rms": (lambda: bnorm.RMSNorm(8), (5, 8), ["RMSNormalization"]),
    "rms with the eps of its type": (lambda: bnorm.RMSNorm(8, eps=None), (5, 8), ["RMSNormalization"]),
    "group": (lambda: bnorm.GroupNorm(2, 4), (3, 4, 5, 6), ["GroupNormalization"]),
    "group, channels last": (
        lambda: bnorm.GroupNorm(2, 4, axis=-1),
        (3, 5, 4),
        ["Transpose", "GroupNormalization", "Transpose"],
    ),
    "instance": (lambda: bnorm.InstanceNorm1d(4), (3, 4, 9), ["GroupNormalization"]),
    "instance with statistics": (
        lambda: bnorm.InstanceNorm2d(4, affine=True, track_running_stats=True),
        (3, 4, 5, 6),
        ["BatchNormalization"],
    ),
}


def run(model, x):
    """By both."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"X": x})[0], reference.ReferenceEvaluator(model).run(None, {"X": x})[0]


def check(model, x, wanted, tolerance):
    onnx.checker.check_model(model, full_check=True)
    for y in run(model, x):
        assert (y.dtype, y.shape) == (x.dtype, wanted.shape)
        np.testing.assert_allclose(y, wanted, rtol=tolerance, atol=tolerance * max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, dtype):
    build, shape, nodes = LAYERS[name]
    layer, rng = build(), np.random.default_rng(len(name))
    for p in layer.parameters():
        p.data[...] = rng.normal(size=p.shape)
    for _ in range(2):
        layer(2 * rng.normal(size=shape) + 1)
    x = (2 * rng.normal(size=shape) + 1).astype(dtype)
    model = to_onnx(layer, dtype, ndim=len(shape))
    assert [node.op_type for node in model.graph.node] == nodes
    if "BatchNormalization" not in nodes and layer.eps is not None:
        layer.eps = float(np.float32(layer.eps))  # as ONNX keeps it, and no variance takes up the rest
    check(model, x, layer.eval()(x), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "options", [{}, {"eps": 1e-5}, {"momentum": None, "affine": False}, {"halflife": 10.0, "eps": 0}]
)
def test_transformers(options, dtype):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 4)) + np.arange(4)
    x[:, 3] = 7.0  # constant
    transformer = bnorm.BatchNormTransformer(**options).partial_fit(x)
    if "affine" not in options:
        transformer.gamma_, transformer.beta_ = rng.normal(size=(2, 4))
    given = x.astype(dtype)
    check(to_onnx(transformer, dtype), given, transformer.transform(given), TOLERANCE[dtype])


@pytest.mark.parametrize(("axis", "shape"), [(0, (4, 3, 2, 1)), (4, (3, 2, 1, 2, 4)), (-5, (4, 3, 2, 1, 2))])
def test_a_model_has_at_least_the_axis_of_the_channels(axis, shape):
    layer = bnorm.GroupNorm(2, 4, axis=axis)
    layer.gamma, layer.beta = np.random.default_rng(2).normal(size=(2, 4))
    x = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    check(to_onnx(layer), x, layer(x), TOLERANCE["float32"])


def test_a_batch_is_the_least_that_a_model_takes():
    shapes = {
        "LayerNorm": (bnorm.LayerNorm((4, 5)), 3),
        "GroupNorm": (bnorm.GroupNorm(2, 4), 4),
        "BatchNorm2d": (bnorm.BatchNorm2d(4), 4),
    }
    for name, (layer, rank) in shapes.items():
        model = to_onnx(layer)
        assert len(model.graph.input[0].type.tensor_type.shape.dim) == rank, name
        assert (model.ir_version, model.graph.name) == (10, name)


def test_what_epsilon_rounds_off_goes_into_the_variance():
    layer = bnorm.BatchNorm1d(1, eps=1e-3).eval()
    layer.running_var = [1e-9]
    x = np.array([[1.0], [-2.0]])
    check(to_onnx(layer, "float64"), x, layer(x), 1e-14)
    (epsilon,) = (a.f for a in to_onnx(layer).graph.node[0].attribute if a.name == "epsilon")
    assert epsilon == float(np.float32(epsilon)) <= 1e-3  # floats, as a comparison with float32 would round 1e-3


def off(y, x, layer_or_transformer, dtype):
    """The error of y by the bound that the module states."""
    t = layer_or_transformer
    mean, var = (np.asarray(a, np.longdouble) for a in (t.running_mean, t.running_var))
    shape = [1, -1] + [1] * (x.ndim - 2)
    mean, std = mean.reshape(shape), np.sqrt(var + np.longdouble(t.eps)).reshape(shape)
    gamma, beta = (np.asarray(p.data, np.longdouble).reshape(shape) for p in (t.gamma, t.beta))
    z = (x - mean) / std
    bound = 2.0 ** {"float32": -19, "float64": -48}[dtype] * (np.abs(gamma) * (1 + np.abs(z)) + np.abs(beta))
    return float((np.abs(y - (gamma * z + beta)) / bound).max())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("far", [0.0, 3.9, 4.1, 100.0, 1e4, 1e6])
def test_the_bound_holds_however_far_the_mean_is(far, dtype):
    rng = np.random.default_rng(int(far))
    layer = bnorm.BatchNorm2d(16, eps=1e-5).eval()
    std = np.exp(rng.normal(size=16))
    layer.running_mean = far * std * rng.choice([-1, 1], 16)
    layer.running_var = std**2
    layer.gamma.data[...], layer.beta.data[...] = rng.normal(size=(2, 16))
    x = (layer.running_mean[:, None, None] + std[:, None, None] * rng.normal(size=(8, 16, 5, 5))).astype(dtype)
    model = to_onnx(layer, dtype)
    subtractions = 0 if far < 4 else 2 if dtype == "float32" else 1
    assert [node.op_type for node in model.graph.node] == ["Sub"] * subtractions + ["BatchNormalization"]
    for y in run(model, x):
        assert off(y, x, layer, dtype) < 1


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 1e-25), ("float32", 1e25), ("float64", 1e-170)])
def test_a_variance_beyond_the_type(dtype, unit):
    x = (np.random.default_rng(0).normal(2.0, 1.0, (50, 3)) * [1.0, unit, unit]).astype(dtype)
    for eps in (0.0, 1e-9, 0.5):
        t = bnorm.BatchNormTransformer(eps=eps).fit(x)
        t.gamma_ = [1.0, 2.0, 0.5]
        check(to_onnx(t, dtype), x, t.transform(x), 1e-5 if dtype == "float32" else 1e-13)


def test_a_channel_that_is_constant_but_for_rounding():
    x = np.where(np.arange(9)[:, None] % 2, [1e6, 1.0], [np.nextafter(1e6, 2e6), 2.0])
    t = bnorm.BatchNormTransformer().fit(x)
    assert t.scale_[0] == 1 and t.var_[0] > 0
    check(to_onnx(t, "float64"), x, t.transform(x), 1e-12)


def test_a_far_mean_with_channels_last_and_an_activation():
    layer = bnorm.BatchNorm2d(3, axis=-1, activation="relu").eval()
    layer.running_mean = [1e6, 0.0, -50.0]
    x = (np.random.default_rng(0).normal(size=(4, 5, 6, 3)) + layer.running_mean).astype(np.float32)
    check(to_onnx(layer), x, layer(x), 5e-7)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("options", [{}, {"with_std": False}])
def test_scalers_and_transformers_with_a_far_mean(options, dtype):
    """By skl2onnx, from floats and from integers."""
    skl2onnx = pytest.importorskip("skl2onnx", reason="it converts scalers")
    from bnorm.sklearn import StandardScaler

    register()
    types = skl2onnx.common.data_types
    x = (np.random.default_rng(5).normal(size=(200, 3)) + 1e6 * np.array([1, -1, 0.0])).astype(dtype)
    estimators = [StandardScaler(**options).fit(x)]
    if not options:
        estimators.append(bnorm.BatchNormTransformer(momentum=None).fit(x))
    for estimator in estimators:
        model = skl2onnx.to_onnx(estimator, x[:1], target_opset=21)
        exact = estimator.transform(x.astype(np.float64))
        for y in run(model, x):
            assert y.dtype == dtype
            np.testing.assert_allclose(y, exact, rtol=0, atol=10 * 2.0 ** {"float32": -19, "float64": -48}[dtype])
    whole = np.array([[1_000_001, -999_999, 3], [999_998, -1_000_003, 0]])
    given = [("X", types.Int64TensorType([None, 3]))]
    for estimator in estimators:
        for y in run(skl2onnx.to_onnx(estimator, initial_types=given, target_opset=21), whole):
            np.testing.assert_allclose(y, estimator.transform(whole.astype(np.float64)), rtol=0, atol=2e-5)


@pytest.mark.parametrize("kinds", ["ff", "dd", "fd", "di", "id"])
def test_columns_by_name(kinds):
    """A scaler with an input for each column. The first one's type is that of the result."""
    skl2onnx = pytest.importorskip("skl2onnx", reason="it converts scalers")
    from bnorm.sklearn import StandardScaler

    register()
    types = skl2onnx.common.data_types
    of = {"f": types.FloatTensorType, "d": types.DoubleTensorType, "i": types.Int64TensorType}
    x = np.random.default_rng(5).normal(size=(50, 2)) + 1e6
    scaler = StandardScaler().fit(x)
    given = {name: x[:, [i]].astype(kinds[i].replace("i", "i8")) for i, name in enumerate("ab")}
    initial = [(name, of[kinds[i]]([None, 1])) for i, name in enumerate("ab")]
    model = skl2onnx.to_onnx(scaler, initial_types=initial, target_opset=21)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, given)
    dtype = "float64" if kinds[0] == "d" else "float32"
    exact = scaler.transform(np.hstack([a.astype(dtype).astype("f8") for a in given.values()]))
    assert y.dtype == dtype
    np.testing.assert_allclose(y, exact, rtol=0, atol=10 * 2.0 ** {"float32": -19, "float64": -48}[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("mean", "std"), [(1.0, 1e-4), (100.0, 50.0), (1e6, 1.0)])
def test_how_far_a_mean_is_depends_on_the_scale(mean, std, dtype):
    skl2onnx = pytest.importorskip("skl2onnx", reason="it converts scalers")
    from bnorm.sklearn import StandardScaler

    register()
    x = np.random.default_rng(5).normal(mean, std, size=(50, 2)).astype(dtype)
    for options in ({}, {"with_mean": False}):  # then no mean is subtracted
        scaler = StandardScaler(**options).fit(x)
        model = skl2onnx.to_onnx(scaler, x[:1], target_opset=21)
        if dtype == "float32":  # the node of scikit-learn's converter
            assert ("Scaler" in [node.op_type for node in model.graph.node]) == (bool(options) or mean < 4 * std)
        near = 10 * 2.0 ** {"float32": -19, "float64": -48}[dtype] * (mean / std if options else 1)
        np.testing.assert_allclose(run(model, x)[0], scaler.transform(x.astype("f8")), rtol=0, atol=near)


def test_statistics_of_onnx_in_training_are_ours():
    """Momentum is the weight of the old value there, and the variance that of the population."""
    layer, rng = bnorm.BatchNorm1d(3, momentum=0.25), np.random.default_rng(2)
    model = to_onnx(layer, "float64")
    node = model.graph.node[0]
    node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
    node.output.extend(["mean", "var"])
    kind = onnx.TensorProto.DOUBLE
    model.graph.output.extend(onnx.helper.make_tensor_value_info(name, kind, [3]) for name in ("mean", "var"))
    x = rng.normal(size=(9, 3)) + 1
    y, mean, var = reference.ReferenceEvaluator(model).run(None, {"X": x})
    np.testing.assert_allclose(layer(x), y, rtol=0, atol=1e-12)
    np.testing.assert_allclose(layer.running_mean, mean, rtol=1e-14)
    np.testing.assert_allclose(layer.running_var, var, rtol=0, atol=3e-13)  # which holds what epsilon rounds off


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_pipeline_converts_as_a_whole(dtype):
    skl2onnx = pytest.importorskip("skl2onnx", reason="it converts pipelines")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    register()
    rng = np.random.default_rng(3)
    x = rng.normal(size=(100, 4)).astype(dtype) * 3
    pipeline = make_pipeline(bnorm.BatchNormTransformer(), LogisticRegression()).fit(x, x[:, 0] > x[:, 1])
    model = skl2onnx.to_onnx(pipeline, x[:1], target_opset=21, options={"zipmap": False})
    assert "BatchNormalization" in [node.op_type for node in model.graph.node]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    labels, probabilities = session.run(None, {"X": x})
    np.testing.assert_array_equal(labels, pipeline.predict(x))
    np.testing.assert_allclose(probabilities, pipeline.predict_proba(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_scaler_converts_as_scikit_learns_does(dtype):
    skl2onnx = pytest.importorskip("skl2onnx", reason="it converts scalers")
    from sklearn.preprocessing import StandardScaler

    from bnorm.sklearn import StandardScaler as Ours

    register()
    x = (np.random.default_rng(4).normal(size=(50, 4)) * 3 + 1).astype(dtype)
    models = [skl2onnx.to_onnx(kind().fit(x), x[:1], target_opset=21) for kind in (Ours, StandardScaler)]
    ours, theirs = ([node.op_type for node in model.graph.node] for model in models)
    assert ours == theirs
    for y, wanted in zip(run(models[0], x), run(models[1], x), strict=True):
        np.testing.assert_allclose(y, wanted, rtol=1e-6, atol=1e-6)


def test_integers_convert_too():
    skl2onnx = pytest.importorskip("skl2onnx", reason="it converts transformers")
    register()
    x = np.arange(24).reshape(8, 3) ** 2
    transformer = bnorm.BatchNormTransformer().fit(x)
    types = [("X", skl2onnx.common.data_types.Int64TensorType([None, 3]))]
    (y, again) = run(skl2onnx.to_onnx(transformer, initial_types=types, target_opset=21), x)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, transformer.transform(x), rtol=0, atol=1e-6)
    np.testing.assert_allclose(again, y, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.dtype("float64"), "f4", float])
def test_dtypes_of_numpy(dtype):
    layer = bnorm.BatchNorm1d(3)
    assert to_onnx(layer, dtype=dtype) == to_onnx(layer, np.dtype(dtype).name)


def test_errors():
    for dtype in ("int32", None, "nothing", "float16", np.float16):
        with pytest.raises(ValueError, match="to_onnx: dtype: expected 'float32' or 'float64', got"):
            to_onnx(bnorm.BatchNorm1d(3), dtype)
    with pytest.raises(ValueError, match="to_onnx: obj: expected running statistics"):
        to_onnx(bnorm.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(ValueError, match="to_onnx: ndim: expected one of 2, 3, got 4"):
        to_onnx(bnorm.BatchNorm1d(3), ndim=4)
    with pytest.raises(ValueError, match="to_onnx: ndim: expected one of 2, got 3"):
        to_onnx(bnorm.BatchNormTransformer().fit(np.eye(3)), ndim=3)
    with pytest.raises(TypeError, match=r"to_onnx: ndim: expected one of 2, 3, got 3\.0"):
        to_onnx(bnorm.BatchNorm1d(3), ndim=3.0)
    with pytest.raises(TypeError, match="to_onnx: obj: expected a layer or a BatchNormTransformer, got list"):
        to_onnx([])
    with pytest.raises(AttributeError, match="layer_"):
        to_onnx(bnorm.BatchNormTransformer())
