"""RunningNorm against statistics of all values at once, and what must not harm it."""

from itertools import product

import numpy as np
import pytest

from bnorm import NonFiniteError, RunningNorm


def batches(rng, shape, sizes=(3, 1, 8, 2), dtype="float64"):
    return [rng.normal(5.0, 2.0, size=(n, *shape)).astype(dtype) for n in sizes]


def state(rn):
    return {name: a.tobytes() for name, a in rn.state_dict().items()} | {"training": rn.training}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(), (3,), (4, 5, 2)])
def test_all_values_count_alike(rng, shape, dtype):
    rn, seen = RunningNorm(shape), []
    for x in batches(rng, shape, dtype=dtype):
        z = rn(x if len(x) > 1 else x[0])
        seen.append(x)
        whole = np.concatenate(seen).astype("f8")
        wanted = (x - whole.mean(0)) / np.sqrt(whole.var(0) + 1e-8)
        assert z.dtype == x.dtype
        assert z.shape == (x if len(x) > 1 else x[0]).shape
        np.testing.assert_allclose(z, wanted if len(x) > 1 else wanted[0], atol=2e-6 if dtype == "float32" else 1e-13)
    np.testing.assert_allclose(rn.mean, whole.mean(0), rtol=1e-14)
    np.testing.assert_allclose(rn.var, whole.var(0), rtol=1e-13)
    np.testing.assert_array_equal(rn.count, np.full(shape, 14.0))


def test_cut_and_leading_axes_do_not_matter(rng):
    x = rng.normal(size=(4, 6, 3))
    whole, cut = RunningNorm(3), RunningNorm(3)
    whole.update(x)
    for row in x.reshape(-1, 3):
        cut.update(row)
    np.testing.assert_allclose(cut.mean, whole.mean, atol=1e-15)
    np.testing.assert_allclose(cut.var, whole.var, rtol=1e-14)


def test_first_batch_gives_its_own_statistics():
    rn = RunningNorm(2)
    np.testing.assert_array_equal(rn.normalize(np.array([3.0, -1.0])), [3.0, -1.0])  # nothing is known
    rn(np.array([[1000.0, 1.0], [1002.0, 3.0]]))
    np.testing.assert_array_equal(rn.mean, [1001, 2])
    np.testing.assert_array_equal(rn.var, [1, 1])


def test_no_spread_is_only_centered(rng):
    rn = RunningNorm(2)
    assert rn(np.array([7.0, 1e6])).tolist() == [0, 0]
    assert rn.normalize(np.array([9.5, 1e6 + 1])).tolist() == [2.5, 1]
    rn = RunningNorm(2)
    for n in (1, 3, 100):
        rn(np.stack([np.full(n, 0.1), rng.normal(size=n)], 1))
    assert rn.var[0] == 0
    assert rn.std[0] == 1
    np.testing.assert_array_equal(rn.normalize(np.array([[1.1, 0.0]]))[0, 0], 1.0)


def test_what_is_not_finite_is_left_out_and_counted(rng):
    x = rng.normal(size=(50, 4))
    x[3, 0], x[7, 0], x[9, 2] = np.nan, np.inf, -np.inf
    x[:, 3] = np.nan
    rn = RunningNorm(4, clip=5)
    z = rn(x[:20])
    rn(x[20])
    rn(x[21:])
    kept = [column[np.isfinite(column)] for column in x.T]
    for c in range(3):
        np.testing.assert_allclose(rn.mean[c], kept[c].mean(), atol=1e-15)
        np.testing.assert_allclose(rn.var[c], kept[c].var(), rtol=1e-13)
    assert rn.count.tolist() == [48, 50, 49, 0]
    assert rn.skipped.tolist() == [2, 0, 1, 50]
    assert np.isnan(z[3, 0])
    assert z[7, 0] == 5
    assert z[9, 2] == -5
    assert np.isfinite(z[:, 1]).all()


def test_numbers_too_large_for_their_variance_are_left_out():
    rn = RunningNorm(2)
    rn(np.array([[1e200, 1.0], [-1e200, 3.0]]))
    assert rn.count.tolist() == [0, 2]
    assert rn.skipped.tolist() == [2, 0]
    rn(np.array([[1.0, 1.0], [3.0, 3.0]]))
    assert rn.mean.tolist() == [2, 2]


def test_raise_changes_nothing(rng):
    rn = RunningNorm(3, nonfinite="raise")
    rn(rng.normal(size=(4, 3)))
    before = state(rn)
    for bad, got in (
        ([np.nan, 1, 2], "others in 1 of 3"),
        ([[1, 2, np.inf]], "others in 1"),
        ([1e200, 1, 1], "too large"),
    ):
        with pytest.raises(NonFiniteError, match=rf"RunningNorm\(3\): obs: expected finite values .*{got}"):
            rn(np.array(bad))
        assert state(rn) == before


def test_halves_that_are_too_small_for_their_type():
    """They are rounded, whatever NumPy shall raise: the statistics have moved on."""
    rn = RunningNorm((), nonfinite="raise")
    rn(np.array([-1.0, 1.0]))
    with np.errstate(all="raise"):
        z = rn(np.array([-1e-6, 1e-6], np.float16))
    np.testing.assert_allclose(z, [-(2**0.5) * 1e-6, 2**0.5 * 1e-6], rtol=0.03)


def test_statistics_that_are_too_large_or_small_for_their_type():
    """They are shown and denormalize, whatever NumPy shall raise."""
    rn = RunningNorm(2, dtype="float32", eps=0.0)
    rn(np.array([[-1e60, -1e-60], [1e60, 1e-60]]))
    with np.errstate(all="raise"):
        assert (np.isinf(rn.std) == [True, False]).all() and rn.std[1] == 0
        assert rn.denormalize(np.array([1e300, 1e-300])).tolist() == [np.inf, 0]


@pytest.mark.parametrize("clip", [None, 6])
def test_far_from_zero(rng, clip):
    x = rng.normal(1e6, 1, size=(1000, 3)).astype("f4")
    rn = RunningNorm(3, clip=clip)
    for part in np.split(x, 10):
        rn.update(part)
    wide = x.astype("f8")
    np.testing.assert_allclose(rn.var, wide.var(0), rtol=1e-9)
    wanted = (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 1e-8)
    np.testing.assert_allclose(rn.normalize(x), wanted, atol=2e-6)
    np.testing.assert_array_equal(rn.denormalize(rn.normalize(x)), x)


@pytest.mark.parametrize("limit", [0.25, 1.5])
def test_clip(rng, limit):
    x = rng.normal(size=(3000, 30)).astype("f4")  # more than one thread
    rn, free = RunningNorm(30, clip=limit), RunningNorm(30)
    np.testing.assert_array_equal(rn(x), np.clip(free(x), -limit, limit))
    assert np.isnan(rn(np.full(30, np.nan))).all()
    rn.clip = None
    np.testing.assert_array_equal(rn.normalize(x), free.normalize(x))


def test_halflife_does_not_depend_on_the_cut(rng):
    x, h = rng.normal(size=(40, 2)).cumsum(0), 7.0
    weights = 0.5 ** (np.arange(40)[::-1, None] / h)
    mean = (weights * x).sum(0) / weights.sum(0)
    var = (weights * (x - mean) ** 2).sum(0) / weights.sum(0)
    cuts = ([40], [1] * 40, [2] * 20, [3, 20, 17], [1, 17, 1, 21])
    for cut, given in product(cuts, (np.asarray, np.asfortranarray, np.ndarray.tolist)):
        rn = RunningNorm(2, halflife=h)
        for part in np.split(x, np.cumsum(cut)[:-1]):
            rn(given(part))
        np.testing.assert_allclose(rn.mean, mean, rtol=1e-13)
        np.testing.assert_allclose(rn.var, var, rtol=1e-12)
        assert rn.count.tolist() == [40, 40]


@pytest.mark.parametrize("momentum", [0.1, 1.0])
def test_momentum_weighs_batches_and_counts_the_spread_between_them(rng, momentum):
    parts = batches(rng, (2,), (1, 5, 1, 1, 3))
    rn = RunningNorm(2, momentum=momentum)
    for part in parts:
        rn(part)
    weights = (1 - momentum) ** np.arange(len(parts))[::-1]
    weights = np.concatenate([np.full(len(part), w / len(part)) for part, w in zip(parts, weights, strict=True)])[
        :, None
    ]
    x = np.concatenate(parts)
    mean = (weights * x).sum(0) / weights.sum()
    np.testing.assert_allclose(rn.mean, mean, rtol=1e-13)
    np.testing.assert_allclose(rn.var, (weights * (x - mean) ** 2).sum(0) / weights.sum(), rtol=1e-12)


def test_one_observation_at_a_time_has_a_spread_with_momentum(rng):
    rn = RunningNorm((), momentum=0.01)
    for x in rng.normal(3, 2, size=2000):
        rn(x)
    assert 1.5 < rn.std < 2.5


@pytest.mark.parametrize("given", ["f2", "f4", "f8", ">f4", ">f2", ">i2", "u1", "u2", "i8", "bool"])
def test_types(rng, given):
    x = rng.integers(0, 2, size=(6, 3)).astype(given)
    z = RunningNorm(3)(x)
    assert z.dtype == (np.dtype(given).newbyteorder("=") if np.dtype(given).kind == "f" else "float64")
    np.testing.assert_allclose(z, RunningNorm(3)(x.astype("f8")), atol=1e-3)


def test_bfloat16_stays(rng):
    x = rng.normal(3, 2, size=(6, 3)).astype(pytest.importorskip("ml_dtypes", reason="bfloat16 is its type").bfloat16)
    rn = RunningNorm(3)
    z = rn(x)
    back = rn.denormalize(z)
    assert z.dtype == back.dtype == x.dtype
    np.testing.assert_allclose(back.astype("f4"), x.astype("f4"), atol=0.1)


def test_numbers_lists_and_memory_orders(rng):
    rn = RunningNorm(())
    assert type(rn(1.5)) is np.float64
    assert type(rn(np.float32(2.5))) is np.float32
    for of in ("f8", "f2", "i4"):
        assert isinstance(rn(np.array(2, of)), np.ndarray)
    assert isinstance(rn.denormalize(np.array(2.5)), np.ndarray)
    assert rn([1.0, 2.0]).shape == (2,)
    x = rng.normal(size=(3, 8))
    np.testing.assert_array_equal(RunningNorm(3)(x.T), RunningNorm(3)(x.T.copy()))
    np.testing.assert_array_equal(RunningNorm(3)(x.T.tolist()), RunningNorm(3)(x.T.copy()))
    x.flags.writeable = False
    RunningNorm(8)(x)
    with pytest.raises(TypeError, match="real numbers"):
        RunningNorm(())("a")


def test_batch_without_rows_changes_nothing(rng):
    rn = RunningNorm(3)
    rn(rng.normal(size=(5, 3)))
    before = state(rn)
    assert rn(np.zeros((0, 3), "f4")).shape == (0, 3)
    rn.update(np.zeros((2, 0, 3)))
    assert state(rn) == before


def test_modes(rng):
    rn = RunningNorm(3)
    x = rng.normal(size=(5, 3))
    z = rn(x)
    before = rn.eval().state_dict()["mean"]
    np.testing.assert_array_equal(rn(x), z)
    rn(x + 1)
    np.testing.assert_array_equal(rn.mean, before)
    rn.update(x + 1)
    assert (rn.mean != before).all()
    assert rn.train().training
    rn.training = False
    assert repr(rn) == "RunningNorm(3, training=False)"
    assert repr(RunningNorm((), clip=5, dtype="float32")) == "RunningNorm((), clip=5.0, dtype='float32')"


def test_float32_statistics_are_shown_not_kept(rng):
    rn, wide = RunningNorm(3, dtype="float32"), RunningNorm(3)
    x = rng.normal(1e5, 1, size=(20, 3))
    np.testing.assert_array_equal(rn(x), wide(x))
    assert rn.mean.dtype == rn.var.dtype == rn.std.dtype == "float32"


BAD = [
    (lambda rn: rn(np.zeros(4)), ValueError, r"RunningNorm\(3\): obs: expected shape \(3,\), or \(N, 3\), got \(4,\)"),
    (lambda rn: rn(np.zeros((3, 2))), ValueError, "obs: expected shape"),
    (lambda rn: rn(1.0), ValueError, "obs: expected shape"),
    (lambda rn: rn(np.zeros(3, complex)), TypeError, "obs: expected real numbers"),
    (lambda rn: rn([1, 2, "x"]), TypeError, "obs: expected"),
    (lambda rn: rn.denormalize(np.zeros(2)), ValueError, "z: expected shape"),
    (lambda rn: rn + RunningNorm(4), ValueError, r"\+: expected shape \(3,\) on both sides, got \(4,\)"),
    (lambda rn: rn + RunningNorm(3, momentum=0.1), ValueError, "expected momentum None on both sides, got 0.1"),
    (lambda rn: rn + 1, TypeError, "unsupported operand"),
    (lambda rn: RunningNorm(3) - rn, ValueError, "-: expected an earlier state"),
    (lambda rn: rn - RunningNorm(4), ValueError, r"-: expected shape \(3,\) on both sides, got \(4,\)"),
    (lambda rn: rn - RunningNorm(3, momentum=0.1), ValueError, "-: expected momentum None on both sides, got 0.1"),
    (lambda rn: rn.train(1), TypeError, "mode"),
    (lambda rn: setattr(rn, "clip", 0), ValueError, "clip: expected a number above 0, or None, got 0"),
    (lambda rn: setattr(rn, "eps", -1), ValueError, "eps"),
    (lambda rn: setattr(rn, "mean", 1), AttributeError, "mean|setter"),
    (lambda rn: rn.load_state_dict({"mean": np.zeros(3)}), ValueError, "missing: var"),
    (lambda rn: rn.load_state_dict(rn.state_dict() | {"var": np.full(3, -1.0)}), ValueError, "var: expected finite"),
    (lambda rn: rn.load_state_dict(rn.state_dict() | {"count": np.full(3, np.nan)}), ValueError, "count: expected"),
    (lambda rn: rn.save("x.pkl"), ValueError, "expected a name that ends in"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_errors_change_nothing(rng, call, error, message):
    rn = RunningNorm(3)
    rn(rng.normal(size=(5, 3)))
    before = state(rn)
    with pytest.raises(error, match=message):
        call(rn)
    assert state(rn) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": 0}, "shape: expected a positive integer"),
        ({"shape": "x"}, "shape: expected an integer"),
        ({"momentum": 0}, "momentum: expected a number above 0"),
        ({"momentum": 1.5}, "momentum"),
        ({"momentum": 0.1, "halflife": 5}, "halflife: expected None with momentum=0.1, got 5"),
        ({"halflife": 0}, "halflife: expected a finite number above 0"),
        *(({"halflife": np.timedelta64(5, unit)}, "halflife: expected a real number") for unit in ("ns", "s")),
        ({"halflife": np.inf}, "halflife: expected a finite number above 0"),
        ({"nonfinite": "propagate"}, "nonfinite: expected one of 'skip', 'raise'"),
        ({"dtype": "float16"}, "dtype"),
        ({"clip": -1}, "clip"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        RunningNorm(**({"shape": 3} | arguments))
