"""Weights of float32, bools or bytes: read as they lie, and to the last bit what the same numbers are as float64."""

import tracemalloc

import numpy as np
import pytest

import bnorm
from bnorm import functional as F
from compare import assert_close, assert_same
from drawing import together

SHAPES = {
    (3001, 40): "rows with one weight each",
    (3001, 3): "few channels",
    (523, 12): "few channels in narrower rows",
    (37, 7): "few rows",
    (4001, 1): "one channel",
    (150, 3, 5): "runs that are spread",
    (130, 40, 49): "runs whose end fills no vector",
    (40, 3, 20): "runs that are widened",
    (3001, 20): "rows that are widened to eight positions",
    (2003, 36): "the same, for float32 only",
    (4, 3, 41, 73): "long runs",
    (1, 2, 9001): "long runs in segments",
}
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_kind = pytest.mark.parametrize("kind", ["bool", "uint8", "float32"])


def example(shape, kind, dtype="f4", axis=1):
    rng = np.random.default_rng(sum(shape))
    x = (rng.standard_normal(shape) + 3).astype(dtype)
    mask = rng.integers(0, 2 if kind == "bool" else 5, np.delete(shape, axis)).astype(kind)
    if kind == "float32":
        mask /= 3
    np.moveaxis(x, axis, -1)[..., -1][mask == 0] = np.nan
    return x, mask


def oracle(x, mask, axis=1):
    """Count, mean and m2, in long double."""
    x = np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]).astype(np.longdouble)
    w = mask.reshape(-1, 1).astype(np.longdouble)
    x = np.where(w == 0, 0, x)
    mean = (w * x).sum(0) / w.sum()
    return np.full(x.shape[1], w.sum()), mean, (w * (x - mean) ** 2).sum(0)


@together(dtype=["f4", "f8", "f2", "u1"])
@every_shape
@every_kind
def test_moments_are_those_of_the_same_numbers(shape, kind, dtype):
    x, mask = example(shape, kind, "f4" if dtype == "u1" else dtype)
    x = np.nan_to_num(x).astype(dtype) if dtype == "u1" else x
    found = F.moments(x, weight=mask)
    assert_same(found._parts, F.moments(x, weight=mask.astype(np.float64))._parts, shape=shape)
    count, mean, m2 = oracle(x, mask)
    if kind == "float32":
        assert_close(found.count, count, 1e-14 * count, shape=shape)
    else:
        assert_same(found.count, count, shape=shape)
    assert_close(found.mean, mean, 1e-14 * np.abs(mean), shape=shape)
    assert_close(found.m2, m2, 1e-12 * (m2 + 1), shape=shape)
    skipped = F.moments(x, weight=mask, skipna=True), F.moments(x, weight=mask.astype(np.float64), skipna=True)
    assert_same(skipped[0]._parts, skipped[1]._parts, shape=shape)


@every_shape
@every_kind
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_batch_norm_and_its_gradient_are_those_of_the_same_numbers(shape, kind, dtype):
    x, mask = example(shape, kind, dtype)
    dy = np.random.default_rng(5).standard_normal(shape).astype(dtype)
    found = []
    for weight in (mask, mask.astype(np.float64)):
        y, saved = F.batch_norm(x, weight=weight, activation="relu")
        found.append([y, *F.backward(dy, saved)[:1]])
    for got, want in zip(*found, strict=True):
        assert_same(got, want, shape=shape)


@every_kind
@pytest.mark.parametrize("shape", [(5, 6, 7), (3, 4, 40, 31)])
@pytest.mark.parametrize(
    "norm", [F.instance_norm, lambda x, **more: F.group_norm(x, 2, **more)], ids=["instance", "group"]
)
def test_norms_of_samples_are_those_of_the_same_numbers(norm, shape, kind):
    x, mask = example(shape, kind)
    dy = np.random.default_rng(5).standard_normal(shape).astype("f4")
    found = []
    for weight in (mask, mask.astype(np.float64)):
        y, saved = norm(x, weight=weight)
        found.append([y, F.backward(dy, saved)[0], F.double_backward(dy, saved, dy)[1]])
    for got, want in zip(*found, strict=True):
        assert_same(got, want, shape=shape)


@every_kind
def test_second_derivatives_are_those_of_the_same_numbers(kind):
    x, mask = example((20, 3, 4), kind)
    dy, ddx = np.random.default_rng(5).standard_normal((2, 20, 3, 4)).astype("f4")
    found = [F.double_backward(ddx, F.batch_norm(x, weight=w)[1], dy)[:2] for w in (mask, mask.astype(np.float64))]
    assert_same(found[0][0], found[1][0])
    assert_same(found[0][1], found[1][1])


@every_kind
def test_layers_and_several_kept_axes(kind):
    x, mask = example((20, 3, 4), kind, "f8")
    numbers = mask.astype(np.float64)
    one, other = bnorm.BatchNorm1d(3), bnorm.BatchNorm1d(3)
    assert_same(one(x, mask), other(x, numbers))
    assert_same(one.running_var, other.running_var)
    own, others = (F.moments(x, axis=(0, 1), weight=np.ones(4, k), minmax=True) for k in (kind, float))
    assert own == others


@every_kind
@pytest.mark.parametrize("axis", [1, -1])
def test_weights_that_lie_in_another_order(axis, kind):
    x, mask = example((12, 9, 8), kind, axis=axis)
    want = F.moments(x, axis=axis, weight=mask.astype(np.float64))
    other = np.asfortranarray(mask), np.repeat(mask, 2, 0)[::2], mask[:, ::-1].copy()[:, ::-1]
    for some in other:
        assert F.moments(x, axis=axis, weight=some) == want
    x = np.asfortranarray(x)
    assert F.moments(x, axis=axis, weight=mask) == F.moments(x, axis=axis, weight=mask.astype(np.float64))
    samples = np.arange(12) % 3 > 0
    assert F.moments(x, axis=axis, weight=samples) == F.moments(x, axis=axis, weight=samples.astype(np.float64))


def test_every_byte_but_zero_is_true():
    x, mask = example((301, 3), "uint8")
    assert F.moments(x, weight=mask.view(bool)) == F.moments(x, weight=mask > 0)
    assert_same(F.batch_norm(x, weight=mask.view(bool))[0], F.batch_norm(x, weight=mask > 0)[0])


@every_kind
@pytest.mark.parametrize("shape", [(200_000, 2), (2, 2, 300, 300)])
def test_no_copy(shape, kind):
    x, mask = np.ones(shape, np.float32), np.ones((shape[0], *shape[2:]), kind)
    F.moments(x, weight=mask)
    tracemalloc.start()
    try:
        F.moments(x, weight=mask)
        assert tracemalloc.get_traced_memory()[1] < mask.nbytes / 4
    finally:
        tracemalloc.stop()


BAD = {"negative": -1.0, "NaN": np.nan, "infinite": np.inf}


@pytest.mark.parametrize("shape", [(3001, 3), (700, 40), (4, 3, 14001), (0, 3), (5, 0)], ids=str)
@pytest.mark.parametrize("bad", BAD)
def test_wrong_weights_are_refused(shape, bad):
    """The kernel finds them while it reads x: wherever they are."""
    x, weight = np.ones(shape, np.float32), np.ones((shape[0], *shape[2:]))
    for place in (0, weight.size // 2, -1) if weight.size else ():
        wrong = weight.copy()
        wrong.reshape(-1)[place] = BAD[bad]
        for skipna in (False, True):
            with pytest.raises(ValueError, match="weight: expected finite values >= 0"):
                F.moments(x, weight=wrong, skipna=skipna)
    assert F.moments(x, weight=weight).count.tolist() == [weight.size] * shape[1]


def test_weights_whose_sum_cannot_be_divided_by_are_refused():
    x = np.ones((4, 2))
    for weight in (1e308, 1e-300):
        with pytest.raises(ValueError, match="expected a sum that float64 can divide by"):
            F.moments(x, weight=np.full(4, weight))
    with pytest.raises(ValueError, match="weight: expected a sum that float64 can divide by, or 0, got inf"):
        F.moments(np.ones((4, 2, 9)), axis=(1,), weight=np.full((4, 1), 1e307))  # each counts nine times
    assert_same(F.moments(x, weight=np.zeros(4)).count, [0.0, 0.0])
    x[:, 0] = np.nan
    assert_same(F.moments(x, weight=np.ones(4), skipna=True).count, [0.0, 4.0])
