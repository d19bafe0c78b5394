"""The functions on arrays: values against plain formulas, in every memory, type and number of values."""

import copy
import pickle
from itertools import pairwise

import numpy as np
import pytest

import bnorm.functional as F
import bnorm.moments
import cases
from cases import CASES, DTYPES
from compare import EPS, assert_close, assert_same, normalized_error, rounding
from drawing import together
from kinds import (
    BATCH,
    KINDS,
    along,
    chosen,
    every_kind,
    every_memory,
    other_axes,
    plain_batch_norm,
    some_parameters,
    subclass,
)

# Values --------------------------------------------------------------------------------------------------------------


@some_parameters(KINDS)
def test_values(kind, memory, given, activation):
    x, _, gamma, beta = kind.example()
    parameters = chosen(given, gamma, beta)
    y, _ = kind.forward(memory(x), **parameters, activation=activation)
    assert_close(y, kind.expected(x, **parameters, activation=activation), 1e-13, kind=kind, memory=memory.__name__)


@together(dtype=DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_batch_norm_over_every_case(case, dtype):
    x = case.array(dtype)
    before = x.copy()
    gamma, beta = np.linspace(0.5, 2, case.num_channels), np.linspace(-1, 1, case.num_channels)
    positions = x.size // case.num_channels if case.num_channels else 0
    if positions == 1:
        with pytest.raises(ValueError, match="more than one value per channel"):
            F.batch_norm(x, axis=case.axis)
        return
    y, saved = F.batch_norm(x, gamma, beta, axis=case.axis)
    assert y.shape == x.shape and y.dtype == np.dtype(dtype)
    assert_same(x, before)
    if x.size:
        want = plain_batch_norm(x, gamma, beta, case.axis)
        mean = np.abs(x.astype("f8")).max()
        scale = along(gamma, case.axis, x.ndim)
        assert_close(y, want, 4 * scale * normalized_error(dtype, want, mean), case=case.name, dtype=dtype)
    dx, dgamma, dbeta = F.backward(y, saved)
    assert dx.shape == x.shape and dx.dtype == y.dtype
    assert dgamma.shape == dbeta.shape == (case.num_channels,)
    if case.memory in cases.DENSE and x.size and 1 not in x.shape:
        assert y.strides == dx.strides == x.strides


@together(memory=cases.DENSE)
@every_kind
def test_results_have_the_memory_order_of_x(kind, memory):
    x, dy, _, _ = kind.example()
    x, dy = memory(x), memory(dy)
    y, saved = kind.forward(x)
    assert y.strides == x.strides
    assert F.backward(dy, saved)[0].strides == x.strides


@every_kind
@every_memory
def test_results_lie_as_a_fresh_array_like_x_would(kind, memory):
    x, dy, _, _ = kind.example()
    x = memory(x)
    y, saved = kind.forward(x)
    assert y.strides == F.backward(dy, saved)[0].strides == np.empty_like(x).strides


@every_kind
@every_memory
def test_equal_values_in_another_memory_order_give_equal_results(kind, memory):
    x, dy, _, _ = kind.example()
    y, saved = kind.forward(x)
    dx, _, _ = F.backward(dy, saved)
    z, saved = kind.forward(memory(x))
    dz, _, _ = F.backward(dy, saved)  # dy in another order than x
    assert_close(z, y, 1e-14)
    assert_close(dz, dx, 1e-14)


def test_inference():
    x, _, gamma, beta = BATCH[2].example()
    mean, var = np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.0, 4.0])
    for activation in (None, "relu"):
        y, _ = F.batch_norm(x, gamma, beta, mean=mean, var=var, eps=1e-3, activation=activation)
        want = (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-3) * gamma[:, None] + beta[:, None]
        assert_close(y, np.maximum(want, 0) if activation else want, 1e-14)
    assert_same(F.batch_norm(x, mean=mean, var=var, weight=np.zeros(4))[0], F.batch_norm(x, mean=mean, var=var)[0])
    y, _ = F.batch_norm(x[:1, :, :1], mean=mean, var=var, eps=0)  # one value per channel
    assert_close(y[0, :, 0], (x[0, :, 0] - mean) / np.sqrt(var), 1e-15)
    y, _ = F.batch_norm(x, mean=mean, var=np.array([np.nan, 1.0, np.inf]))  # they flow through
    assert np.isnan(y[:, 0]).all() and np.isfinite(y[:, 1]).all() and (y[:, 2] == 0).all()


def test_weights():
    kind = BATCH[4]
    x, _, gamma, beta = kind.example()
    weight = np.random.default_rng(3).uniform(0.5, 2, (2, 4, 2))
    y, _ = F.batch_norm(x, gamma, beta, weight=weight)
    assert_close(y, plain_batch_norm(x, gamma, beta, weight=weight[:, None]), 1e-13)
    per_sample, _ = F.batch_norm(x, weight=[3, 1])
    assert_same(per_sample, F.batch_norm(x, weight=np.broadcast_to([[[3.0]], [[1.0]]], (2, 4, 2)))[0])
    ones, _ = F.batch_norm(x, weight=np.ones((2, 4, 2), bool))
    assert_close(ones, F.batch_norm(x)[0], 1e-14)


@every_memory
def test_a_mask_is_leaving_out(memory):
    """Padded sequences are as they would be without the padding, forward and backward."""
    rng = np.random.default_rng(4)
    x, dy = rng.standard_normal((2, 5, 3, 7))
    keep = np.arange(7) < np.array([7, 2, 5, 1, 3])[:, None]
    spread = np.broadcast_to(keep[:, None], x.shape)
    x, dy = np.where(spread, x, 1e3), np.where(spread, dy, 0)
    y, saved = F.batch_norm(memory(x), [1, 2, 3], [0, 1, 2], weight=keep, activation="relu")
    dx, dgamma, dbeta = F.backward(memory(dy), saved)
    unpadded, unpadded_dy = (np.moveaxis(a, 1, 2)[keep] for a in (x, dy))  # (number of values, C)
    want, want_saved = F.batch_norm(unpadded, [1, 2, 3], [0, 1, 2], activation="relu")
    want_dx, want_dgamma, want_dbeta = F.backward(unpadded_dy, want_saved)
    assert_close(np.moveaxis(y, 1, 2)[keep], want, 1e-13)
    assert_close(np.moveaxis(dx, 1, 2)[keep], want_dx, 1e-13)
    assert_close([dgamma, dbeta], [want_dgamma, want_dbeta], 1e-13)
    holes, _ = F.batch_norm(memory(np.where(spread, x, np.nan)), [1, 2, 3], [0, 1, 2], weight=keep, activation="relu")
    assert_same(holes, np.where(spread, y, np.nan))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.axis % len(kind.shape)], ids=str)
def test_a_permuted_batch_is_permuted(kind):
    x, dy, gamma, _ = kind.example()
    order = np.random.default_rng(6).permutation(len(x))
    y, saved = kind.forward(x, gamma)
    z, saved_z = kind.forward(x[order], gamma)
    assert_close(z, y[order], 1e-14)
    dx, dgamma, _ = F.backward(dy, saved)
    dz, dgamma_z, _ = F.backward(dy[order], saved_z)
    assert_close(dz, dx[order], 1e-14)
    assert_close(dgamma_z, dgamma, 1e-13)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.has_beta], ids=str)  # those that remove the mean
def test_float32_far_from_zero(kind):
    x, _, _, _ = kind.example()
    for offset in (0, 1e2, 1e4, 1e6):
        far = (x / 2 + offset).astype("f4")
        y, _ = kind.forward(far, eps=1e-5)
        assert_close(y, kind.expected(far.astype("f8")), 2e-6, kind=kind, offset=offset)


# Types ---------------------------------------------------------------------------------------------------------------


@together(dtype=["bool", "int8", "uint16", "int64", ">i4", ">f2", ">f4", ">f8", *DTYPES])
@every_kind
def test_result_types(kind, dtype):
    x = (kind.example()[0] * 3).astype(dtype)
    before = x.copy()
    y, saved = kind.forward(x)
    result = np.dtype(dtype).newbyteorder("=") if np.dtype(dtype).kind == "f" else np.dtype("float64")
    assert y.dtype == result and y.dtype.isnative
    want = kind.expected(x.astype(result))
    assert_close(y, want, 4e-6 + rounding(result, want), kind=kind)
    assert_same(x, before)
    for dy_type in (dtype, "float64", "int32"):
        dx, _, _ = F.backward(x.astype(dy_type), saved)
        assert dx.dtype == result


@pytest.mark.parametrize("dtype", ["int32", "float16", "float32", ">f8", "longdouble"])
def test_parameters_of_other_types(dtype):
    x, dy, _, _ = BATCH[0].example()
    gamma, beta, mean, var = (np.arange(1, 7, dtype=dtype)[i : i + 3] for i in range(4))
    strided = np.arange(1, 13, dtype=dtype)[::4]
    for options in ({}, {"mean": mean, "var": var}):
        y, saved = F.batch_norm(x, gamma, beta, **options)
        doubles = {name: values.astype("f8") for name, values in options.items()}
        assert_same(y, F.batch_norm(x, gamma.astype("f8"), beta.astype("f8"), **doubles)[0])
        assert {gradient.dtype for gradient in F.backward(dy, saved)} == {np.dtype("f8")}
    assert_same(F.batch_norm(x, strided)[0], F.batch_norm(x, strided.astype("f8"))[0])


class Frame:
    """What a data frame is to NumPy."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


@every_kind
@pytest.mark.parametrize("form", [np.ndarray.tolist, Frame, subclass], ids=["list", "frame", "subclass"])
def test_what_numpy_takes_for_an_array(kind, form):
    x, dy, gamma, _ = kind.example()
    want, want_saved = kind.forward(x, gamma)
    y, saved = kind.forward(form(x), form(gamma))
    assert type(y) is np.ndarray
    assert_same(y, want)
    for got, expected in zip(F.backward(form(dy), saved)[:2], F.backward(dy, want_saved)[:2], strict=True):
        assert type(got) is np.ndarray
        assert_same(got, expected)
    assert F.moments(form(x), axis=kind.axis) == F.moments(x, axis=kind.axis)


def test_a_memory_map_is_read_and_written(tmp_path):
    x, _, _, _ = BATCH[0].example()
    mapped = np.memmap(tmp_path / "x", "f8", "w+", shape=x.shape)
    mapped[...] = x
    want, _ = F.batch_norm(x)
    assert type(F.batch_norm(mapped)[0]) is np.ndarray
    y, _ = F.batch_norm(mapped, out=mapped)
    assert y is mapped
    assert_same(np.fromfile(tmp_path / "x").reshape(x.shape), want)


@every_kind
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda saved: pickle.loads(pickle.dumps(saved))])
def test_copies_of_what_a_forward_saves(kind, again):
    """A net of one's own that keeps it until the backward can be copied and pickled meanwhile."""
    x, dy, gamma, _ = kind.example()
    _, saved = kind.forward(x, gamma, activation="gelu")
    copied = again(saved)
    for got, expected in zip(F.backward(dy, copied)[:2], F.backward(dy, saved)[:2], strict=True):
        assert_same(got, expected)


# Few values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 1), (0, 3, 5), (4, 3, 0), (2, 0, 5)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_batches(shape, dtype):
    x = np.zeros(shape, dtype)
    c = shape[1]
    calls = [
        F.batch_norm(x, np.ones(c), np.ones(c)),
        *(
            F.batch_norm(x, np.ones(c), weight=np.ones(shape[:1] + shape[2:], of))
            for of in ("float64", "uint8", "bool")
        ),
        F.batch_norm(x, np.ones(c), np.ones(c), mean=np.ones(c), var=np.ones(c)),
        F.group_norm(x, 3 if c else 2, np.ones(c), np.ones(c)),
        F.instance_norm(x, np.ones(c), np.ones(c)),
        F.layer_norm(x, np.ones(shape[1:]), np.ones(shape[1:]), normalized_shape=shape[1:]),
        F.rms_norm(x, np.ones(shape[1:]), normalized_shape=shape[1:]),
        F.batch_norm(x, np.ones(c), np.ones(c), out=np.empty_like(x)),
    ]
    for y, saved in calls:
        assert y.shape == shape and y.dtype == dtype
        dx, dgamma, dbeta = F.backward(x, saved)
        assert dx.shape == shape
        assert not dgamma.any() and (dbeta is None or not dbeta.any())
    m = F.moments(x)
    assert_same([m.count, m.m2], np.zeros((2, c)))


def test_statistics_of_nothing():
    x, dy, gamma, beta = BATCH[2].example()
    y, saved = F.batch_norm(x, gamma, beta, weight=np.zeros((4, 5)))
    assert_same(y, np.broadcast_to(beta[:, None], x.shape))
    dx, dgamma, dbeta = F.backward(dy, saved)
    assert_same(dx, np.zeros_like(x))
    assert_same(dgamma, np.zeros(3))
    assert_close(dbeta, dy.sum((0, 2)), 1e-14)


def test_nan_and_infinity_flow_through():
    x, _, _, _ = BATCH[0].example()
    for bad in (np.nan, np.inf, -np.inf):
        x[2, 1] = bad
        y, saved = F.batch_norm(x)
        assert np.isfinite(y[:, [0, 2]]).all() and np.isnan(y[2, 1])
        assert np.isfinite(F.backward(y * 0 + 1, saved)[0][:, [0, 2]]).all()


@pytest.mark.parametrize("n", [4, 70, 300, 10_000])  # rows for which the kernels have loops of their own
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_an_infinity_leaves_zeros_beside_it_in_rms_norm(dtype, n):
    x = np.linspace(-1, 1, 2 * n, dtype=dtype).reshape(2, n)
    x[0, 2] = np.inf
    y, _ = F.rms_norm(x, normalized_shape=n)
    assert_same(np.abs(y[0]), np.where(np.arange(n) == 2, np.nan, 0).astype(dtype))
    assert np.isfinite(y[1]).all()


# moments -------------------------------------------------------------------------------------------------------------


@together(dtype=DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_moments_over_every_case(case, dtype):
    x = case.array(dtype)
    m = F.moments(x, axis=case.axis)
    positions = x.size // max(case.num_channels, 1)
    assert_same(m.count, np.full(case.num_channels, float(positions)))
    if positions:
        wide, axes = x.astype(np.longdouble), other_axes(x.ndim, case.axis)
        scale = np.abs(wide).max(axes) * 4 * EPS[np.dtype(dtype)]
        assert_close(m.mean, wide.mean(axes), scale, case=case.name)
        assert_close(m.var(), wide.var(axes), 2e-6 if dtype != "float64" else 1e-12, case=case.name)


def test_moments_of_weighted_and_missing_values():
    x = np.array([[1.0, 5.0], [2.0, np.nan], [6.0, 7.0]])
    m = F.moments(x, weight=[1, 0, 3])
    assert_same([m.count, m.mean, m.m2], [[4, 4], [4.75, 6.5], [18.75, 3]])
    m = F.moments(x, skipna=True)
    assert_same([m.count, m.mean, m.m2], [[3, 2], [3, 6], [14, 2]])
    assert_same(F.moments(x).mean, [3, np.nan])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moments_of_pieces(dtype):
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((500, 4, 3)) + np.array([[0], [1e2], [1e4], [1e6]])).astype(dtype)
    whole = F.moments(x)
    for cuts in ((), (1,), (100, 101, 400), tuple(range(1, 500))):
        pieces = [F.moments(x[a:b]) for a, b in pairwise((0, *cuts, 500))]
        merged = sum(pieces)
        bound = 1e-12 if dtype == "float64" else 1e-6
        assert_same(merged.count, whole.count)
        assert_close(merged.mean, whole.mean, bound * np.maximum(np.abs(whole.mean), whole.std()))
        assert_close(merged.m2, whole.m2, bound * whole.m2)


def test_running_statistics_can_be_kept_by_hand():
    """A saved forward has the statistics of its batch."""
    x, _, _, _ = BATCH[2].example()
    _, saved = F.batch_norm(x)
    mean, var = saved.stats[:2]
    assert_close(mean, x.mean((0, 2)), 1e-14)
    assert_close(var, x.var((0, 2)), 1e-14)
    assert saved.count == 20.0 and saved.left == 0


# Documentation -------------------------------------------------------------------------------------------------------


def test_what_numpy_is_set_to_raise_is_not_raised():
    """Numbers that are too large or too small for a type are results, however NumPy is set to treat its own."""
    x, small = np.arange(6.0).reshape(3, 2).astype("f4"), np.array([[1e-60, 1e60]] * 3)
    bn = bnorm.BatchNorm1d(2)
    bn.running_mean, bn.running_var = [np.inf, 0], [0, 1]
    with np.errstate(all="raise"):
        _, saved = F.batch_norm(x, activation="gelu")
        dx, *_ = F.backward(small, saved)
        d_dy, *_ = F.double_backward(small, saved, small)
        m = F.moments(small * 1e100, minmax=True, scale=1e250)
        assert (F.moments(small * 1e-100, scale=1e-100).var() == 0).all()
        _, shift = bn.as_affine()
    assert np.isnan(dx).any() and d_dy.dtype == np.float32
    assert np.isinf(m.max[1]) and m.mean[0] > 0 and np.isinf(shift[0])


@pytest.mark.parametrize(
    ("name", "options", "norm"),
    [
        ("batch_norm", {}, "batch norm"),
        ("batch_norm", {"mean": np.zeros(4), "var": np.ones(4)}, "batch norm by known statistics"),
        ("layer_norm", {"normalized_shape": 3}, "layer norm"),
        ("layer_norm", {"normalized_shape": (4, 3)}, "layer norm"),
        ("rms_norm", {"normalized_shape": 3}, "RMS norm"),
        ("group_norm", {"num_groups": 2}, "group norm"),
        ("group_norm", {"num_groups": 1}, "group norm"),
        ("instance_norm", {}, "instance norm"),
    ],
)
def test_what_is_saved_names_itself_in_a_line(name, options, norm):
    x = np.arange(24.0, dtype="f4").reshape(2, 3, 4).swapaxes(1, 2)
    for given, dtype in ((x, "float32"), (x.astype("f8"), "float64"), (x[:1].copy(), "float32")):
        saved = getattr(F, name)(given, **options)[1]
        assert repr(saved) == f"<saved by {norm}: x of shape {given.shape}, {dtype}>"
        assert repr(pickle.loads(pickle.dumps(saved))) == repr(saved)
    _, saved = getattr(F, name)(given, **options, out=given)
    assert repr(saved) == f"<saved by {norm}: x of shape (1, 4, 3), overwritten by out=>"


def test_every_function_is_documented():
    for name in F.__all__:
        assert getattr(F, name).__doc__, name
    assert sorted(F.__all__) == F.__all__


def test_functions_of_one_family_take_the_same_options():
    options = {name: set(getattr(F, name).__kwdefaults__) for name in ("batch_norm", "group_norm", "instance_norm")}
    assert options["group_norm"] == options["instance_norm"] == options["batch_norm"] - {"mean", "var"}
    assert (
        set(F.layer_norm.__kwdefaults__)
        == set(F.rms_norm.__kwdefaults__)
        == {"eps", "activation", "negative_slope", "residual", "out"}
    )
