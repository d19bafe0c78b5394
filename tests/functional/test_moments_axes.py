"""Moments of several kept axes, extremes and scaled moments: those of long double, for any memory order."""

import itertools
import pickle

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from bnorm import Moments
from bnorm.kernels import view
from cases import cast
from drawing import together

rng = np.random.default_rng(0)
CUBE = rng.standard_normal((5, 4, 3, 6)) * 2 + np.arange(6) * 100


@np.errstate(invalid="ignore")
def want(x, axes, weight=None, skipna=False):
    """Count, mean, variance, least and greatest in long double, of the kept axes in their order."""
    kept = [a % x.ndim for a in axes]
    rest = [a for a in range(x.ndim) if a not in kept]
    y = x.transpose(kept + rest).astype(np.longdouble)
    shape = y.shape[: len(kept)]
    y = y.reshape(*shape, -1)
    w = np.ones(y.shape[-1:]) if weight is None else np.broadcast_to(weight, [x.shape[a] for a in rest]).reshape(-1)
    w = np.broadcast_to(w, y.shape).astype(np.longdouble)
    w = np.where(np.isnan(y), 0, w) if skipna else w
    z = np.where(w > 0, y, 0)
    count = w.sum(axis=-1)
    mean = (w * z).sum(axis=-1) / count
    var = (w * (z - mean[..., None]) ** 2).sum(axis=-1) / count
    least, greatest = np.where(w > 0, y, np.inf).min(axis=-1), np.where(w > 0, y, -np.inf).max(axis=-1)
    return [a.astype(np.float64) for a in (count, mean, var, least, greatest)]


def check(m, wanted, case=""):
    count, mean, var, least, greatest = wanted
    std = np.sqrt(var)
    assert m.shape == m.count.shape == m.mean.shape == m.var().shape == count.shape, case
    np.testing.assert_allclose(m.count, count, rtol=1e-13, err_msg=case)
    assert (np.abs(m.mean - mean) <= 1e-12 * std + 4 * np.spacing(np.abs(mean))).all(), case
    np.testing.assert_allclose(m.var(), var, rtol=1e-11, atol=1e-28, err_msg=case)
    if m._extremes is not None:
        np.testing.assert_array_equal(m.min, least, err_msg=case)
        np.testing.assert_array_equal(m.max, greatest, err_msg=case)


LAYOUTS = {
    "C": lambda x: x,
    "Fortran": np.asfortranarray,
    "channels last": lambda x: np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1),
    "every second": lambda x: np.repeat(x, 2, axis=2)[:, :, ::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1, :, :, ::-1])[::-1, :, :, ::-1],
    "swapped bytes": lambda x: x.astype(">f8"),
    "broadcast": lambda x: np.broadcast_to(x[:, :1], x.shape),
}
EVERY = [axes for n in range(5) for some in itertools.combinations(range(4), n) for axes in (some, some[::-1])]


@pytest.fixture(params=["whole", "pieces"])
def pieces(request, monkeypatch):
    """With pieces of a few values, every way to cut is taken."""
    if request.param == "pieces":
        monkeypatch.setattr(view, "PIECE", 200)
        monkeypatch.setattr(view, "WORTHWHILE", 100)
        monkeypatch.setattr(view, "LONG", 3)
        monkeypatch.setattr(view, "FEW", 40)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_axes_of_any_memory_order(layout, pieces):
    x = LAYOUTS[layout](CUBE)
    for axes in dict.fromkeys(EVERY):
        for minmax in (False, True):
            check(F.moments(x, axis=axes, minmax=minmax), want(x, axes), f"{axes} {minmax}")
        if len(axes) == 1:  # a small array is not cut
            assert F.moments(x, axis=axes[0], minmax=True) == F.moments(x, axis=axes, minmax=True), axes


@pytest.mark.parametrize("axes", [(1, 3), (3, 1), (0, 2), (0,), (), (2, -1), (0, 1, 2, 3)])
def test_weights_missing_values_and_exact_sums(axes, pieces):
    x = CUBE.copy()
    x[rng.random(x.shape) < 0.1] = np.nan
    rest = [n for a, n in enumerate(x.shape) if a not in [b % 4 for b in axes]]
    w = rng.integers(0, 3, rest)
    w.flat[0] = 1
    wanted = want(x, axes, w, skipna=True)
    for given in (w.astype(float), w):
        for exact in (False, True):
            m = F.moments(x, axis=axes, weight=given, skipna=True, exact=exact, minmax=True)
            seen = wanted[0] > 0
            assert np.array_equal(m.count, wanted[0])
            assert np.isnan(m.min[~seen]).all() and np.isnan(m.mean[~seen]).all()
            pick = lambda a, seen=seen: np.asarray(a)[seen]  # noqa: E731
            got = Moments(pick(m.count), pick(m.mean), pick(m.m2))
            with np.errstate(invalid="ignore"):
                check(got, [pick(a) for a in wanted], f"{exact}")
            assert np.array_equal(pick(m.min), pick(wanted[3])) and np.array_equal(pick(m.max), pick(wanted[4]))
    if len(rest) > 1:  # of whole samples, and broadcast
        samples = np.arange(1.0, rest[0] + 1)
        column = samples.reshape(-1, *[1] * (len(rest) - 1))
        for some in (samples, column):
            check(F.moments(CUBE, axis=axes, weight=some, minmax=True), want(CUBE, axes, column))


@pytest.mark.parametrize("options", [{"axis": (0,)}, {"axis": (1,)}, {"axis": ()}, {"minmax": True}], ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_swapped_bytes_of_no_values(shape, options):
    swapped, native = (F.moments(np.zeros(shape, dtype), **options) for dtype in (">f4", "f4"))
    assert swapped.shape == native.shape and not swapped.count.any()


def test_exact_moments_of_axes_are_those_of_the_same_values_in_any_order():
    a = F.moments(CUBE, axis=(1, 3), exact=True)
    b = F.moments(CUBE[::-1].transpose(3, 2, 1, 0).copy(), axis=(2, 0), exact=True)
    assert a == b and a.digest() == b.digest()
    plain = F.moments(CUBE.transpose(1, 3, 0, 2).reshape(24, 15), axis=0, exact=True)
    assert a._shaped((24,)) == plain and a != plain
    assert (a + a) - a == a and (a + a).shape == (4, 6)


@together(dtype=["float64", "float32", "float16", "uint8", "int8", "uint16", "int16", "bool", "int64"])
@pytest.mark.parametrize(
    "shape", [(3000, 3), (70, 4, 300), (40, 700), (1, 1, 5000), (20, 3, 2, 2), (0, 3), (3, 5, 0), (4, 0)]
)
def test_extremes_of_every_type_and_shape(dtype, shape):
    x = cast(rng.standard_normal(shape) * 40 + 1, dtype)
    m = F.moments(x, minmax=True)
    axes = tuple(a for a in range(x.ndim) if a != 1)
    if not x.size:
        assert np.isnan(m.min).all() and np.isnan(m.max).all() and m.min.shape == (shape[1],)
        return
    assert np.array_equal(m.min, x.min(axis=axes).astype(float)), "min"
    assert np.array_equal(m.max, x.max(axis=axes).astype(float)), "max"
    plain = F.moments(x)
    assert np.array_equal(m.count, plain.count)
    np.testing.assert_allclose(m.mean, plain.mean, rtol=1e-13)
    if x.dtype.kind == "f":
        x[(-1,) * x.ndim] = np.nan
        left, kept = (F.moments(x, minmax=True, skipna=skipna) for skipna in (True, False))
        assert np.array_equal(left.max, np.nanmax(x, axis=axes).astype(float))
        assert np.isnan(kept.min[-1]) and np.isnan(kept.max[-1]) and np.isfinite(kept.min[:-1]).all()
        x[:] = -np.inf
        assert (F.moments(x, minmax=True).max == -np.inf).all()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("minmax", [False, True])
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_files(exact, minmax, suffix, tmp_path):
    for axes in ((1, 3), (2,), ()):
        m = F.moments(CUBE, axis=axes, exact=exact, minmax=minmax)
        m.save(path := tmp_path / f"m.{suffix}")
        again = bnorm.load(path)
        assert again == m and type(again) is type(m) and again + m == m + again
    from bnorm.files import container

    for arrays in ({"parts": np.ones((4, 3))}, {"parts": -np.ones((4, 1))}, {"values": np.ones(1)}):
        container.write("x", path, {"class": "Moments", "exact": exact, "shape": [1]}, arrays)
        with pytest.raises(ValueError, match="expected a Moments, got a damaged file"):
            bnorm.load(path)


def test_extremes_are_merged_saved_and_compared():
    parts = [F.moments(rows, axis=(1, 3), minmax=True) for rows in np.split(CUBE, [1, 1, 3])]
    for merged in (Moments.merge(parts), sum(parts), parts[3] + parts[0] + parts[2]):
        check(merged, want(CUBE, (1, 3)))
    assert pickle.loads(pickle.dumps(parts[0])) == parts[0]
    low, high = parts[0].min, parts[0].max
    assert parts[0] != F.moments(CUBE[:1], axis=(1, 3)) and (low <= high).all()
    with pytest.raises(ValueError, match="min and max, or none"):
        parts[0] + F.moments(CUBE, axis=(1, 3))
    with pytest.raises(AttributeError, match="minmax=True"):
        _ = F.moments(CUBE).min
    bad = F.moments([[np.nan]], minmax=True)
    assert np.isnan((bad + F.moments([[1.0]], minmax=True)).min).all()  # a NaN that was not skipped stays
    exact = F.moments(CUBE, minmax=True, exact=True)
    assert pickle.loads(pickle.dumps(exact)) == exact and np.array_equal(exact.rounded().max, exact.max)


def test_a_difference_has_no_extremes():
    """Those of the values that are left cannot be known."""
    m, part = (F.moments(x, minmax=True, exact=True) for x in (CUBE, CUBE[:2]))
    rest = F.moments(CUBE[2:], exact=True)
    assert m - part == rest and (m - part) + F.moments(CUBE[:2], exact=True) == F.moments(CUBE, exact=True)
    for call, error in ((lambda: (m - part) + part, ValueError), (lambda: (m - part).max, AttributeError)):
        with pytest.raises(error, match="minmax=True records them, and a difference of exact moments has none"):
            call()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
def test_scaled_without_a_copy(dtype):
    x = rng.integers(0, 255, (20, 3, 50)).astype(dtype)
    y = x.astype(np.longdouble) * np.float64(1 / 255)
    m = F.moments(x, scale=1 / 255, minmax=True)
    extremes = [f(axis=(0, 2)).astype(np.float64) * (1 / 255) for f in (x.min, x.max)]
    check(m, want(y, (1,))[:3] + extremes)
    exact = F.moments(x, scale=1 / 255, exact=True)
    half = F.moments(x[:7], scale=1 / 255, exact=True)
    assert half + F.moments(x[7:], scale=1 / 255, exact=True) == exact
    from fractions import Fraction

    mean = [sum(map(Fraction, c)) * Fraction(1 / 255) / len(c) for c in x.transpose(1, 0, 2).reshape(3, -1).tolist()]
    assert exact.mean.tolist() == [float(v) for v in mean]  # rounded once


@pytest.mark.parametrize("exact", [False, True])
def test_extremes_are_read_only(exact):
    m = F.moments(CUBE, axis=(1, 3), minmax=True, exact=exact)
    before = F.moments(CUBE, axis=(1, 3), minmax=True, exact=exact)
    for row in (m.min, m.max, (m + m).max, m._shaped((24,)).min, m.scaled(2.0).min, pickle.loads(pickle.dumps(m)).max):
        with pytest.raises(ValueError, match="read-only"):
            row[...] = 0
    assert m == before


@pytest.mark.parametrize("exact", [False, True])
def test_scales_that_are_none(exact):
    m = F.moments(CUBE, minmax=True, exact=exact)
    for scale in (0, -1.0, np.nan, np.inf):  # a negative one would swap min and max
        with pytest.raises(ValueError, match=r"Moments\.scaled: scale: expected a finite number above 0, got"):
            m.scaled(scale)
    assert m.scaled(np.int64(2)) == m.scaled(2.0) != m


def test_blocks_of_wide_rows_have_more_than_a_few_values_of_each_channel():
    """Otherwise merging takes most of the time: here 300,000 channels would be merged once for each row."""
    x = np.arange(8 * 300_000, dtype=np.float32).reshape(8, 300_000)
    for rows in (x, x[:, 100:], x[:, ::2], x.reshape(8, 150_000, 2)):
        blocks = [block for place in view.kept(rows, (1,), cached=True).places for block, _ in place]
        assert all(len(block) == 8 for block in blocks)
        assert sum(block.size for block in blocks) == rows.size
        assert all(block.nbytes <= view.PIECE or np.may_share_memory(block, x) for block in blocks)
        np.testing.assert_array_equal(F.moments(rows, minmax=True).max, rows.max(axis=(0, *range(2, rows.ndim))))


def test_blocks_of_cropped_images_have_many_values_of_each_channel():
    """Each pixel is a channel, and a sample is too large to be copied with others."""
    x = np.arange(32 * 16 * 90 * 90, dtype=np.float32).reshape(32, 16, 90, 90)
    for crop in (x[:, :, 5:-5], x[..., 5:-5], x[:, :, 5:-5, 5:-5], x[..., ::-1]):
        blocks = [block for place in view.kept(crop, (1, 2, 3)).places for block, _ in place]
        assert all(len(block) == 32 and block.nbytes <= view.PIECE for block in blocks)
        assert sum(block.size for block in blocks) == crop.size
        np.testing.assert_array_equal(F.moments(crop, axis=(1, 2, 3), minmax=True).max, crop.max(axis=0))


def test_no_copy_of_the_whole():
    import tracemalloc

    x = np.ones((512, 3, 8, 2, 256), np.float32)  # 25 MB; axes 1 and 3 are not adjacent
    for some in (x, np.asfortranarray(x), x[..., ::2]):
        F.moments(some, axis=(1, 3), minmax=True)
        tracemalloc.start()
        F.moments(some, axis=(1, 3), minmax=True)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < some.nbytes / 3, peak


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"axis": (1, 1)}, r"moments: axis: expected different axes"),
        ({"axis": (1, -3)}, r"moments: axis: expected different axes"),
        ({"axis": (4,)}, r"moments: axis: expected an axis of x"),
        ({"axis": (1.5,)}, r"moments: axis: expected an integer"),
        ({"axis": (1, 3), "weight": np.ones(4)}, r"moments: weight: expected shape \(5, 3\) or \(5,\)"),
        ({"axis": (1, 3), "weight": -np.ones(5)}, r"moments: weight: expected finite values >= 0"),
        ({"axis": (1, 3), "weight": np.full(5, 0.5), "exact": True}, r"moments: weight: expected a mask or integers"),
        ({"minmax": 1}, r"moments: minmax: expected True or False"),
        ({"scale": 0}, r"moments: scale: expected a finite number above 0"),
        ({"scale": "1"}, r"moments: scale: expected a real number"),
    ],
)
def test_bad_calls(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        F.moments(CUBE, **arguments)


def test_dask_keeps_several_axes():
    da = pytest.importorskip("dask.array")
    x = da.from_array(CUBE, chunks=(2, 3, 2, 4))
    for axes in ((1, 3), (3, 1), (), (2,)):
        w = rng.random([n for a, n in enumerate(CUBE.shape) if a not in axes])
        check(F.moments(x, axis=axes, minmax=True, weight=w), want(CUBE, axes, w), f"{axes}")
    assert F.moments(x, axis=(3, 1), exact=True) == F.moments(CUBE, axis=(3, 1), exact=True)
    assert bnorm.Moments is type(F.moments(x, axis=(0, 2)))


@pytest.mark.parametrize("axes", [(0, 2), (2, 0), (0,), (1, 0, 3)])
def test_dask_keeps_axes_of_unknown_length(axes):
    da = pytest.importorskip("dask.array")
    kept = np.arange(len(CUBE)) != 1
    some = da.from_array(CUBE, chunks=(2, 3, 2, 4))[da.from_array(kept, chunks=2)]
    assert F.moments(some, axis=axes, exact=True) == F.moments(CUBE[kept], axis=axes, exact=True)


@pytest.mark.parametrize("minmax", [False, True])
@pytest.mark.parametrize("exact", [False, True])
def test_moments_of_another_shape_are_not_equal(exact, minmax):
    """Though all of their numbers are."""
    x = rng.standard_normal((10, 2, 3))
    m, flat = (F.moments(a, axis=axis, exact=exact, minmax=minmax) for a, axis in ((x, (1, 2)), (x.reshape(10, 6), 1)))
    assert m != flat and m == F.moments(x, axis=(1, 2), exact=exact, minmax=minmax)
    np.testing.assert_array_equal(m.mean.reshape(-1), flat.mean)
