"""The transformer on CuPy arrays: what it does on NumPy's, and no more waiting than its questions need."""

import copy
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from bnorm import BatchNormTransformer, partial_fit_pipeline
from bnorm.transformer import tables
from compare import assert_close, assert_same
from emulated import fake_cupy as stand_in
from emulated.device import needs_emulator
from emulated.fake_cupy import fake_cupy  # noqa: F401
from emulated.transformers import ARRAYS, ERROR, MODES, OTHERS, agree, made_pair, more_of_cupy, state_of, table  # noqa: F401

pytestmark = needs_emulator


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parameters", MODES + OTHERS, ids=str)
def test_as_on_the_cpu(cupy, pair, parameters, weighted):
    x, dy, rng = table(), table(seed=1, nan=False), np.random.default_rng(2)
    weight = rng.integers(1, 4, len(x)).astype(float) if weighted else None
    host, device = pair(x, parameters, weight)
    agree(device, host, ERROR["float32"])
    a = cupy.asarray(x)
    assert_close(device.inverse_transform(device.transform(a)).host, x, 1e-5)
    for t in (host, device):
        if t.affine:
            t.gamma_, t.beta_ = [1.5, -2, 0, 1], [0, 1, 2, 3]
    bound = 4e-6 * np.maximum(1, np.abs(np.nan_to_num(host.transform(x))))
    y = device.transform(a)
    assert type(y) is cupy.ndarray and y.dtype == x.dtype
    assert_close(y.host, host.transform(x), bound)
    assert_close(device.inverse_transform(y).host, host.inverse_transform(y.host), 2e-5)
    dx = device.backward(a, cupy.asarray(dy))
    assert dx.dtype == x.dtype
    want = host.backward(x, dy)
    assert_close(dx.host, want, 1e-5 * np.maximum(1, np.abs(want)))
    agree(device, host, 1e-5 * len(x))
    if host.affine:
        assert device.step(0.01) is device
        host.step(0.01)
        agree(device, host, 1e-5 * len(x))
    device.fit(a, sample_weight=None if weight is None else cupy.asarray(weight))
    agree(device, host.fit(x, sample_weight=weight), ERROR["float32"])
    assert_close(device.fit_transform(a).host, host.fit_transform(x), bound)
    assert_same(a.host, x)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floats_keep_their_type(cupy, pair, dtype):
    x = table(dtype=dtype)
    host, device = pair(x, {})
    agree(device, host, ERROR[dtype])
    y, dx = device.transform(cupy.asarray(x)), device.backward(cupy.asarray(x), cupy.asarray(x))
    assert y.dtype == dx.dtype == x.dtype
    allowed = 2.0**-9 if dtype == "float16" else 1e-12
    assert_close(y.host, host.transform(x), allowed * 4)
    assert_close(dx.host, host.backward(x, x), allowed * 8)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_what_is_no_float_becomes_float64(cupy, dtype):
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 9, (30, 4)).astype(dtype)
    host, device = BatchNormTransformer().fit(x), BatchNormTransformer().fit(cupy.asarray(x))
    agree(device, host)
    a = cupy.asarray(x)
    y = device.transform(a, copy=False)  # there is no float array to overwrite
    assert y.dtype == np.float64
    assert_close(y.host, host.transform(x), 1e-14)
    assert_same(a.host, x)
    assert_close(device.backward(a, a).host, host.backward(x, x), 1e-13)


def test_lists_go_along(cupy):
    """A fit of one is on the CPU; beside CuPy arrays they become such."""
    assert BatchNormTransformer().fit([[1.0], [3.0]]).layer_.device == "cpu"
    x = table(nan=False)
    device = BatchNormTransformer(momentum=None).fit(cupy.asarray(x), sample_weight=[2.0] * len(x))
    agree(device, BatchNormTransformer(momentum=None).fit(x, sample_weight=2.0), ERROR["float32"])
    assert_close(device.transform([[5.0] * 4]).host, device.transform(cupy.asarray([[5.0] * 4])).host, 0)
    device.partial_fit(x.tolist(), sample_weight=3)
    assert device.n_samples_seen_ == 5 * len(x)
    device.backward(cupy.asarray(x), x.tolist())


@pytest.mark.parametrize("order", ["C", "F", "strided", "reversed", "columns"])
@pytest.mark.parametrize("in_place", [False, True])
def test_any_order_of_memory_and_in_place(cupy, order, in_place):
    wide = cupy.asarray(np.repeat(np.repeat(table(), 2, axis=0), 2, axis=1))
    a = {
        "C": lambda: cupy.asarray(table()),
        "F": lambda: cupy.asarray(np.asfortranarray(table())),
        "strided": lambda: wide[::2, ::2],
        "reversed": lambda: cupy.asarray(table()[::-1, ::-1])[::-1, ::-1],
        "columns": lambda: cupy.asarray(np.repeat(table(), 2, axis=0).reshape(40, 8))[:, :4],
    }[order]()
    x = a.host.copy()
    host, device = BatchNormTransformer().fit(x), BatchNormTransformer(copy=not in_place).fit(a)
    agree(device, host, ERROR["float32"])
    y = device.transform(a)
    assert (y is a) == in_place
    assert_close(y.host, host.transform(x), 2e-5)
    back = device.inverse_transform(y)
    assert (back is a) == in_place
    assert_close(back.host, x, 1e-5)
    if not in_place:
        assert_same(a.host, x)
        assert device.transform(a, copy=False) is a
        assert_same(a.host, y.host)


def test_a_mean_far_from_zero_costs_no_digit(cupy):
    x = (1e6 + np.random.default_rng(0).normal(0, 1, (200, 4))).astype("float32")
    host, device = (BatchNormTransformer(momentum=None) for _ in range(2))
    for part in np.split(x, 5):
        host.partial_fit(part)
        device.partial_fit(cupy.asarray(part))
    agree(device, host, 1e-6)
    assert_close(device.mean_.host, x.mean(0, dtype="float64"), 1e-7)
    assert_close(device.transform(cupy.asarray(x)).host, host.transform(x), 2e-6)
    assert_close(device.inverse_transform(device.transform(cupy.asarray(x))).host, x, 0.07)


def waits_of(call):
    before = stand_in.waits
    call()
    return stand_in.waits - before


@pytest.mark.parametrize("rows", [40, 400])
@pytest.mark.parametrize("parameters", MODES, ids=str)
def test_how_often_the_host_waits(cupy, parameters, rows):
    """Not for every row, feature or piece: for what a call has to know."""
    a, w = cupy.asarray(table(rows)), cupy.asarray(np.ones(rows))
    fades = "halflife" in parameters
    t, other = (BatchNormTransformer(**parameters).fit(a) for _ in range(2))
    assert waits_of(lambda: t.fit(a)) == 1
    assert waits_of(lambda: t.fit(a, sample_weight=w)) == 3
    assert waits_of(lambda: t.partial_fit(a)) == 1 + fades * (2 + parameters.get("ddof", 0))
    assert waits_of(lambda: t.transform(a)) == waits_of(lambda: t.inverse_transform(a)) == 1
    assert waits_of(lambda: t.transform(a.copy(), copy=False)) == 1
    b = cupy.asarray(table(rows, nan=False))
    t.fit(b)
    assert waits_of(lambda: t.backward(b, b)) == 1
    assert waits_of(lambda: t.step(0.1)) == 0
    assert waits_of(lambda: [getattr(t, name) for name in ARRAYS]) == 0
    assert waits_of(lambda: t.n_samples_seen_) == 1
    if parameters:
        assert waits_of(lambda: t.merge(other)) == 0


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_table_is_one_piece_on_a_device(cupy, monkeypatch, nan, weighted):
    """Rows that fade too; with missing values these count in another way."""
    x = table(100, nan=nan)
    w = np.linspace(1, 2, 100) if weighted else None
    host = BatchNormTransformer(halflife=5.0, ddof=1).partial_fit(x, sample_weight=w)
    monkeypatch.setattr(tables, "PIECE", 64)
    device, a = BatchNormTransformer(halflife=5.0, ddof=1), cupy.asarray(x)
    weight = None if w is None else cupy.asarray(w)
    assert waits_of(lambda: device.partial_fit(a, sample_weight=weight)) == 4 + 2 * weighted
    agree(device, host, ERROR["float32"])
    assert waits_of(lambda: device.transform(a.copy(), copy=False)) == 1


@pytest.mark.parametrize("parameters", MODES + OTHERS, ids=str)
def test_a_feature_never_seen(cupy, pair, parameters):
    """It is NaN until it is repaired, and has no part in gradients."""
    x, dy = table(), table(seed=1, nan=False)
    x[:, 3] = np.nan
    host, device = pair(x, parameters)
    agree(device, host, ERROR["float32"])
    full = table(nan=False)
    a = cupy.asarray(full)
    for name in ("transform", "inverse_transform"):
        assert_close(getattr(device, name)(a).host, getattr(host, name)(full), 1e-4)
    want = host.backward(full, dy)
    assert_close(device.backward(a, cupy.asarray(dy)).host, want, 1e-5 * np.maximum(1, np.abs(np.nan_to_num(want))))
    agree(device, host, 4e-4)
    agree(device.partial_fit(a), host.partial_fit(full), 4e-4)
    assert np.isfinite(device.mean_.host).all()


@pytest.mark.parametrize("parameters", MODES[1:], ids=str)
def test_merge(cupy, parameters):
    x, y = table(), table(30, seed=5)
    x[:, 3] = np.nan
    hosts = [BatchNormTransformer(**parameters).fit(x).partial_fit(x), BatchNormTransformer(**parameters).fit(y)]
    devices = [
        BatchNormTransformer(**parameters).fit(cupy.asarray(x)).partial_fit(cupy.asarray(x)),
        BatchNormTransformer(**parameters).fit(cupy.asarray(y)),
    ]
    kept = state_of(devices[1])
    assert devices[0].merge(devices[1]) is devices[0]
    agree(devices[0], hosts[0].merge(hosts[1]), ERROR["float32"])
    assert state_of(devices[1]) == kept
    hosts[1].layer_.to("cuda")
    assert state_of(devices[0]) != state_of(devices[0].merge(hosts[1]))


def test_attributes_are_on_the_device(cupy, pair):
    _, device = pair(table(), {})
    assert device.running_mean_ is device.layer_.running_mean
    assert device.gamma_ is device.layer_.gamma.data
    for name in ("mean_", "var_", "scale_"):  # to read: copies, as nothing on a device can be protected
        kept = getattr(device, name)
        kept[...] = 7
        assert not (getattr(device, name).host == 7).any()
    device.gamma_, device.running_var_ = cupy.full(4, 2.0), [4.0, 4, 4, 4]
    device.running_mean_ = 0 * device.running_mean_
    device.beta_ -= 1
    y = device.transform(cupy.asarray(table()))
    assert_close(y.host, table() / np.sqrt(4 + 1e-5) * 2 - 1, 1e-5)
    with pytest.raises(AttributeError):
        device.mean_ = device.var_


@pytest.mark.parametrize("parameters", MODES + OTHERS, ids=str)
def test_the_layer_moves_it_all(cupy, pair, parameters):
    """There and back nothing has changed, and the stream goes on wherever it is."""
    x, y = table(), table(30, seed=3)
    host, device = pair(x, parameters)
    kept = state_of(host)
    gamma = host.layer_.gamma
    host.layer_.to("cuda")
    assert type(host.mean_) is type(host.n_samples_seen_) is cupy.ndarray
    assert host.transform(cupy.asarray(y)).dtype == y.dtype
    host.layer_.to("cpu")
    assert state_of(host) == kept
    assert host.layer_.gamma is gamma
    expected = copy.deepcopy(host).partial_fit(y)
    device.layer_.to("cpu")
    device.partial_fit(y)
    device.layer_.to("cuda")
    agree(device, expected, ERROR["float32"])
    host.layer_.to("cuda")
    agree(host.partial_fit(cupy.asarray(y)), expected, ERROR["float32"])
    assert_close(host.transform(cupy.asarray(y)).host, expected.transform(y), 1e-5)


def test_gradients_move_when_they_are_needed(cupy, pair):
    x = table()
    host, device = pair(x, {})
    device.backward(cupy.asarray(x), cupy.asarray(x))
    host.backward(x, x)
    device.layer_.to("cpu")
    device.step(0.1)
    assert_close(device.gamma_, host.step(0.1).gamma_, 1e-4)


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_layer_in_training_mode_pools(cupy, ddof):
    """Rows that came through the layer count like those of partial_fit, before and after a move."""
    x = table(90, "float64", nan=False)
    a = cupy.asarray(x)
    t = BatchNormTransformer(momentum=None, ddof=ddof).partial_fit(a[:30])
    t.layer_.train()(a[30:40])
    t.layer_.to("cpu")(x[40:60])
    t.layer_.to("cuda").eval()
    t.partial_fit(a[60:])
    assert_close(t.mean_.host, x.mean(0), 1e-13)
    assert_close(t.var_.host, x.var(0, ddof=ddof), 1e-12)
    assert t.n_batches_seen_ == 4
    assert_same(t.layer_(a).host, t.transform(a).host)


def test_batches_that_are_pooled_fade_together(cupy, pair):
    host, device = pair(table(nan=False), {"halflife": 7.0})
    x = table(20, seed=1, nan=False)
    for t, a in ((host, x), (device, cupy.asarray(x))):
        layer = t.layer_.train()
        with layer.pooled_stats():
            layer(a[:12])
            layer(a[12:])
        layer.eval()
    agree(device, host, 2e-6)


def test_a_state_of_a_layer_can_be_loaded(cupy, pair):
    host, device = pair(table(), {"momentum": None})
    t = BatchNormTransformer(momentum=None).fit(cupy.asarray(table(seed=9)))
    t.layer_.load_state_dict(host.layer_.state_dict())
    x = table(30, seed=3)
    t.partial_fit(cupy.asarray(x))
    device.partial_fit(cupy.asarray(x))
    assert_close(t.var_.host, device.var_.host, 1e-5)
    with pytest.warns(UserWarning, match="no counts of values"):
        t.layer_.load_state_dict(dict(host.layer_.state_dict()))
    t.partial_fit(cupy.asarray(x))
    assert t.n_batches_seen_ == 5


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("parameters", MODES + OTHERS[:1], ids=str)
def test_copies_share_as_the_original_does(cupy, pair, parameters, copied):
    x = cupy.asarray(table(seed=1))
    host, device = pair(table(), parameters)
    u = copied(device)
    agree(u, host, ERROR["float32"])
    kept = state_of(device)
    u.partial_fit(x)
    agree(u, host.partial_fit(table(seed=1)), ERROR["float32"])
    u.layer_.running_mean[...] = 7
    assert (u.mean_.host == 7).all()
    if u.affine:
        u.layer_.gamma.data[...] = 5
        assert (u.gamma_.host == 5).all()
    assert state_of(device) == kept


def test_clone_is_unfitted(cupy, pair):
    _, device = pair(table(), {})
    assert not hasattr(clone(device), "layer_")


def test_pipelines(cupy):
    x = table()
    models = [make_pipeline(BatchNormTransformer(), BatchNormTransformer(momentum=None)) for _ in range(2)]
    y = models[1].fit_transform(cupy.asarray(x))
    assert_close(y.host, models[0].fit_transform(x), 2e-5)
    for part in np.split(x, [20]):
        partial_fit_pipeline(models[0], part)
        partial_fit_pipeline(models[1], cupy.asarray(part))
    for host, device in zip(models[0], models[1], strict=True):
        agree(device, host, 1e-5)
    assert_close(models[1].inverse_transform(y).host, models[0].inverse_transform(y.host), 1e-4)
    assert "BatchNormTransformer" in models[1]._repr_html_()


@pytest.mark.parametrize("order", ["sorted", "permuted"])
def test_rows_fade_by_their_times_on_a_device(cupy, order):
    """Times stay on the host: what goes to the device is the weights."""
    x = table(40, "float64")
    seconds = np.cumsum(np.random.default_rng(0).exponential(5.0, 40))
    rows = np.arange(40) if order == "sorted" else np.random.default_rng(1).permutation(40)
    host, device = (BatchNormTransformer(halflife="20s", ddof=1) for _ in range(2))
    for part in np.split(rows, [10, 25]):
        host.partial_fit(x[part], times=seconds[part])
        device.partial_fit(cupy.asarray(x[part]), times=seconds[part])
    agree(device, host, ERROR["float64"])
    assert device.newest_time_ == host.newest_time_ == seconds[-1].round(9)
