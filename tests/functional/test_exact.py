"""Exact moments against fractions: rounded once, the same however the values were cut, and subtracted to the bit."""

import copy
import pickle
from fractions import Fraction
from math import inf, isqrt

import ml_dtypes
import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from bnorm import Moments
from bnorm.exact import ExactMoments
from compare import assert_same

RNG = np.random.default_rng(33)


def exact(x, **options):
    return F.moments(x, exact=True, **options)


def rounded(value):
    try:
        return value.numerator / value.denominator  # Python rounds the quotient of integers correctly
    except OverflowError:
        return inf


def columns(x, axis=1, weight=None):
    """The values of each channel as fractions, as often as their weights say."""
    a = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    w = np.ones(a.shape[1], int) if weight is None else np.asarray(weight).astype(int).reshape(-1)
    for row in a:
        values = row.tolist() if row.dtype.kind in "bui" else row.astype(np.float64).tolist()
        yield [Fraction(v) for v, n in zip(values, w, strict=True) for _ in range(n)]


def check(m, x, **options):
    for c, values in enumerate(columns(x, **options)):
        n = len(values)
        assert m.count[c] == n
        if n == 0:
            assert np.isnan(m.mean[c]) and m.m2[c] == 0 and np.isnan(m.var()[c])
            continue
        mean = sum(values) / n
        m2 = sum(v * v for v in values) - n * mean * mean
        assert m.mean[c] == rounded(mean), c
        assert m.m2[c] == rounded(m2)
        for ddof in (0, 1, 0.5):
            if n > ddof:
                var = m2 / (n - Fraction(ddof))
                assert m.var(ddof)[c] == (rounded(var) if m.exact else m.m2[c] / (n - ddof))
                assert abs(Fraction(m.std(ddof)[c]) - root(var)) <= Fraction(np.spacing(m.std(ddof)[c]))
            else:
                assert np.isnan(m.var(ddof)[c]) and np.isnan(m.std(ddof)[c])


def root(value):
    """The root of a fraction, to 200 digits of its own."""
    scale = 400 + max(0, value.denominator.bit_length() - value.numerator.bit_length())
    return Fraction(isqrt((value.numerator << 2 * scale) // value.denominator), 1 << scale)


TYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]


@pytest.mark.parametrize("dtype", [*TYPES, ml_dtypes.bfloat16, ">f8", ">i4"], ids=str)
def test_rounded_once(dtype):
    kind = np.dtype(dtype)
    if kind.kind in "bui":
        x = RNG.integers(0, 256, (50, 3, kind.itemsize), np.uint8).view(kind.newbyteorder("="))[..., 0].astype(kind)
        if kind.kind == "b":
            x = RNG.random((50, 3)) < 0.3
    else:
        x = (RNG.standard_normal((50, 3)) * [1, 1e-3, 100] + [0, 3, -1]).astype(kind)
    check(exact(x), x)


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [1e308, 1e308, -1e308, 1.7e308],  # m2 is above the largest number, its root is not
        [5e-324, 1e-323, -5e-324],
        [5e-324, 1e308, 5e-324],
        [1.0, 2.0**-53, 2.0**-1074],  # just above a tie of the mean
        [2.0, 2.0 + 2.0**-51],  # the mean is representable
        [1.0, 1.0 + 2.0**-52],  # a tie: to even
        [1.0 + 2.0**-52, 1.0 + 2.0**-51],  # a tie, upwards
        [-0.0, -0.0],
        [0.0, 5e-324],  # a tie at the smallest number
        [0.1] * 7,
        [2.0**27 - 1, 1 - 2.0**27],  # m2 and var are ties: the square has 54 digits; down
        [2.0**26 + 1, -(2.0**26) - 1] * 3,  # the same in m2 alone, upwards: three squares
        [2.0**k * (-1) ** k for k in range(-1074, 1024, 31)],
    ],
    ids=str,
)
def test_awkward_values(values):
    x = np.array(values)[:, None]
    check(exact(x), x)
    half = x.clip(-6e4, 6e4).astype(np.float16)
    check(exact(half), half)


def test_axes_and_memory_orders():
    x = RNG.standard_normal((6, 5, 7)).astype(np.float32)
    for axis in (0, 1, 2, -1):
        want = exact(np.ascontiguousarray(x), axis=axis)
        check(want, x, axis=axis % 3)
        for a in (np.asfortranarray(x), x[:, ::-1][:, ::-1], x.transpose(2, 0, 1).copy().transpose(1, 2, 0)):
            assert exact(a, axis=axis) == want
    assert exact(x[::-1, :, ::2]) == exact(np.ascontiguousarray(x[::-1, :, ::2]))


def test_weights():
    x = RNG.standard_normal((20, 3, 2))
    for w in (RNG.random((20, 2)) < 0.5, RNG.integers(0, 300, (20, 2)), np.full((20, 2), 2.0), np.zeros((20, 2), int)):
        check(exact(x, weight=w), x, weight=w)
    w = RNG.integers(0, 3, 20)
    assert exact(x, weight=w.astype("float16")) == exact(x, weight=w)
    assert exact(x, weight=w) == exact(x, weight=np.repeat(w[:, None], 2, 1))
    x[3] = np.nan
    w[3] = 0
    assert np.isfinite(exact(x, weight=w).mean).all()


@pytest.mark.parametrize("weight", [[0.5, 1], [-1, 1], [np.nan, 1], [2.0**31, 1], [inf, 1]], ids=str)
def test_weights_that_are_none(weight):
    with pytest.raises(ValueError, match=r"^moments: weight: expected a mask or integers from 0 to 2\^31 - 1, as a"):
        exact(np.ones((2, 3)), weight=weight)


def test_weights_of_another_shape():
    with pytest.raises(ValueError, match=r"^moments: weight: expected shape \(2,\) for x of shape \(2, 3\)"):
        exact(np.ones((2, 3)), weight=[1, 1, 1])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("skipna", [False, True])
def test_what_is_not_finite_is_that_of_plain_moments(dtype, skipna):
    x = RNG.standard_normal((40, 6)).astype(dtype)
    x[3, 0] = x[0, 5] = np.nan
    x[[0, 9], [1, 2]] = inf, -inf
    x[[4, 5], 3] = inf, -inf
    x[:, 5] = np.nan
    m, plain = exact(x, skipna=skipna), F.moments(x, skipna=skipna)
    assert_same(m.count, plain.count)
    np.testing.assert_array_equal(np.isnan(m._parts), np.isnan(plain._parts))
    keep = ~np.isnan(x).all(0) & ~np.isinf(x).any(0)
    for c in np.flatnonzero(keep):
        values = x[:, c : c + 1]
        if skipna:
            check(exact(values, skipna=True), values[~np.isnan(values)][:, None])
    rest = exact(x[:10], skipna=skipna)
    assert m - rest == exact(x[10:], skipna=skipna)


def test_any_order_and_any_cut():
    x = np.concatenate([RNG.standard_normal((400, 5)), 1e12 * RNG.standard_normal((200, 5)), np.full((3, 5), 1e-300)])
    want = exact(x)
    for _ in range(5):
        order = RNG.permutation(len(x))
        cuts = np.sort(RNG.integers(0, len(x) + 1, 6))
        parts = [exact(part) for part in np.split(x[order], cuts)]
        RNG.shuffle(parts)
        got = Moments.merge(parts)
        assert got == want and got.digest() == want.digest()
        assert sum(parts) == want
        assert_same(got._parts, want._parts)
        RNG.shuffle(parts)
        for part in parts[:-1]:
            got -= part
        assert got == parts[-1]


def test_one_digest_for_all_types_of_the_same_values():
    x = RNG.integers(0, 100, (60, 4))
    digests = {exact(x.astype(kind)).digest() for kind in (*TYPES[1:], ml_dtypes.bfloat16)}
    assert digests == {exact(np.asfortranarray(x)).digest()}
    assert digests == {exact(x[::-1]).digest()}


def test_digests_tell_apart():
    x = RNG.standard_normal((10, 4))
    y = x.copy()
    y[0, 0] = np.nextafter(y[0, 0], 9)
    ms = [exact(x), exact(y), exact(x[:9]), exact(x[:, :3]), exact(x[:, ::-1]), exact(-x), exact(x[:0]), exact(x * 2)]
    assert len({m.digest() for m in ms}) == len(ms)
    assert all(len(m.digest()) == 32 for m in ms)
    assert exact(np.zeros((3, 2))).digest() == exact(np.full((3, 2), -0.0)).digest()


def test_the_digest_of_today():
    """State files and papers may quote it: it never changes."""
    x = np.arange(-6, 6).reshape(4, 3) / 4
    assert exact(x).digest() == "f4bbf9b0e98e63cdaaf492e7c17649ea"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([[1.0], [2.0]], [[1.0], [2.0], [3.0]]),  # more values
        ([[1.0], [2.0]], [[5.0]]),  # a square that is not there
        ([[1.0], [2.0]], [[1.0], [1.0]]),  # none left, but a sum
        ([[2.0], [2.0]], [[1.0]]),  # what is left has a sum above what its squares allow
        ([[1.0], [2.0]], [[np.nan]]),
    ],
)
def test_what_is_no_part_cannot_be_subtracted(a, b):
    with pytest.raises(ValueError, match=r"^Moments: expected the moments of a part of these values to subtract"):
        exact(a) - exact(b)


def test_more_values_than_can_be_counted_are_refused():
    m = exact(np.array([[1.0], [2.0]]))
    for _ in range(61):
        m += m
    assert m.count == 2.0**62 and m.mean == 1.5
    with pytest.raises(ValueError, match=r"expected fewer than 2\^63 values, or weights in sum, got 922337203"):
        m + m
    assert (m - m).count == 0


def test_what_does_not_mix():
    x = RNG.standard_normal((5, 3))
    e, plain = exact(x), F.moments(x)
    for add in (lambda: e + plain, lambda: plain + e, lambda: Moments.merge([e, plain])):
        with pytest.raises(TypeError, match=r"expected all of them exact, or none, got some of each; m\.rounded\(\)"):
            add()
    with pytest.raises(TypeError, match=r"expected exact moments to subtract from, got plain ones.*exact=True"):
        plain - plain
    with pytest.raises(TypeError, match="expected exact moments to subtract, got plain ones"):
        e - plain
    with pytest.raises(ValueError, match="expected 3 channels to subtract, got 2"):
        e - exact(x[:, :2])
    assert e != plain and plain != e
    with pytest.raises(TypeError, match="unsupported operand"):
        e - 1
    with pytest.raises(TypeError, match="exact: expected True or False"):
        F.moments(x, exact=1)
    with pytest.raises(ValueError, match=r"^Moments: device: expected 'cpu' for exact moments, got 'cuda'"):
        e.to("cuda")
    assert e.to("cpu") is e


def test_merging_does_not_round():
    """Rounding takes a hundred times as long as adding: only what is read of the result is rounded."""
    items = [exact(RNG.standard_normal((5, 3))) for _ in range(3)]
    merged = Moments.merge([*items, items[0] + items[1]])
    assert all(m._rounded is None for m in (*items, merged))


def test_rounded_ones_are_plain():
    x = RNG.standard_normal((50, 3)) + 1e3
    plain = exact(x).rounded()
    assert type(plain) is Moments and not plain.exact
    check(plain, x)
    assert plain + F.moments(x) == F.moments(x) + plain
    low = exact(x)._parts[3]
    for c, values in enumerate(columns(x)):
        mean = sum(values) / len(values)
        assert low[c] == rounded(mean - Fraction(plain.mean[c]))


def test_what_carries_them():
    x = np.where(
        RNG.random((9, 100)) < 0.1, np.nan, RNG.standard_normal((9, 100)) * 10.0 ** RNG.integers(-300, 300, 100)
    )
    m = exact(x)
    restored = ExactMoments._from_stored(m._stored())
    for other in (pickle.loads(pickle.dumps(m)), copy.copy(m), copy.deepcopy(m), restored):
        assert other == m and other.digest() == m.digest()
        assert_same(other._parts, m._parts)
    assert "exact=True" in repr(m) and repr(m).startswith("Moments(count=")
    widest = exact(np.array([[5e-324] * 100, [1.7e308] * 100]))
    assert sum(a.nbytes for a in widest._stored().values()) < 90_000
    assert len(pickle.dumps(widest)) < 100_000
    assert pickle.loads(pickle.dumps(exact(x[:0]))) == exact(x[:0])
    with pytest.raises(ValueError, match="read-only"):
        m.mean[0] = 1


def test_scaled_beyond_the_largest_float():
    m = exact(np.array([[1e300, 1e300, -1e300], [3e300, 1e300, -1e300]]), minmax=True).scaled(1e300)
    assert m.mean.tolist() == m.max.tolist() == [np.inf, np.inf, -np.inf]
    assert m.m2.tolist() == [np.inf, 0, 0]
    np.testing.assert_allclose(m.scaled(1e-300).std(), [1e300, 0, 0], rtol=1e-15)


@pytest.mark.parametrize("scale", [5e-324, 1e-300])
def test_scaled_below_the_least_float(tmp_path, scale):
    m = exact(np.array([[1.0, -1.0, 1.0], [2.0, -2.0, -1.0]]))
    for _ in range(5):
        m = m.scaled(scale)
    m.save(tmp_path / "a.npz")
    for one in (m, bnorm.load(tmp_path / "a.npz")):
        assert one.mean.tolist() == one.m2.tolist() == one.std().tolist() == [0, 0, 0]
        assert np.signbit(one.mean).tolist() == [False, True, False]


def test_scaled_until_no_file_holds_them(tmp_path):
    m = exact(np.array([[1e300], [1e-300]]))
    for _ in range(80):
        m = m.scaled(1.1)
    assert pickle.loads(pickle.dumps(m)) == m
    m.save(tmp_path / "a.npz")
    assert bnorm.load(tmp_path / "a.npz") == m
    for _ in range(70):
        m = m.scaled(float.fromhex("0x1.fffffffffffffp-1022"))
    with pytest.raises(ValueError, match="expected integers of fewer than 131072 bits to store, got some that"):
        m.save(tmp_path / "b.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_stored_ones_that_are_not_sound():
    good = exact(RNG.standard_normal((9, 2)))._stored()
    for key, bad in (
        ("counts", good["counts"] * 0),
        ("first", good["first"] + 10_000),
        ("first", np.full(2, -(2**63))),  # its absolute value is negative
        ("values", good["values"][:, :1]),
        ("squares", -good["squares"]),
    ):
        with pytest.raises(ValueError, match="expected exact moments, got"):
            ExactMoments._from_stored(good | {key: bad})


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "bool"])
@pytest.mark.parametrize("shape", [(50_000, 17), (7000, 2, 11), (3, 2, 70_000), (0, 2), (1, 3)], ids=str)
def test_plain_means_of_small_integers_are_rounded_once(dtype, shape, set_threads):
    """They are exact sums, of several pieces of rows."""
    x = RNG.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8).view(np.dtype(dtype).str.replace("b1", "u1"))
    x = x[..., 0] > 77 if dtype == "bool" else x[..., 0]
    want = exact(x)
    for threads in (1, 3):
        set_threads(threads)
        m = F.moments(x)
        assert_same(m.count, want.count)
        assert_same(m.mean, want.mean)
        np.testing.assert_allclose(m.m2, want.m2, rtol=1e-15)
