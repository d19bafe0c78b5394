"""`moments` of groups of values."""

import pickle

import numpy as np
import pytest

import bnorm
from bnorm.functional import moments


def test_every_group_is_what_moments_finds_of_it():
    rng = np.random.default_rng(1)
    x, codes = rng.normal(size=(6, 3, 4, 5)), rng.integers(-1, 3, (6, 4, 5))
    w = rng.random(codes.shape)
    for given in (x, np.asfortranarray(x), x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)):
        m = moments(given, groups=codes, n_groups=4, weight=w)
        assert m.count.shape == m.var().shape == (4, 3)
        for g in range(3):
            one = moments(given, weight=w * (codes == g))
            np.testing.assert_allclose(m.mean[g], one.mean)
            np.testing.assert_allclose(m.m2[g], one.m2)
        assert np.isnan(m.mean[3]).all()


@pytest.mark.parametrize(
    "values",
    [
        [1e153] + [1.0] * 10_000,  # squares overflow only about the first value
        [1e200, 1, 1, 2],
        [1e160, 2e160, 3e160],
        [1e308, -1e308],
        [-1e308, 1e308, 0, 0],
        [1, np.inf],
        [np.inf, 1],
        [np.nan, 1],
    ],
    ids=lambda values: str(values[:4]),
)
@pytest.mark.parametrize("between", [0, 70_000])
def test_what_overflows_is_what_moments_finds(values, between):
    """between: rows of no group after the first two values, so that the others are in another piece of the table."""
    x = np.insert(np.array(values, float), 2, np.ones(between))[:, None]
    codes = np.insert(np.zeros(len(values), int), 2, np.full(between, -1))
    m, one = moments(x, groups=codes), moments(x[codes == 0])
    for name in ("count", "mean", "m2"):
        np.testing.assert_allclose(getattr(m, name)[0], getattr(one, name), rtol=1e-12, err_msg=name)


def test_codes_of_rows_and_last_axis():
    x = np.arange(24.0).reshape(2, 3, 4)
    m = moments(x, groups=[1, 0])
    np.testing.assert_array_equal(m.mean, [x[1].mean(1), x[0].mean(1)])
    m = moments(x, groups=np.array([[0, 0, 1], [1, 0, 0]], np.uint8), axis=-1)
    np.testing.assert_array_equal(m.mean[1], (x[0, 2] + x[1, 0]) / 2)


def test_merging():
    rng = np.random.default_rng(2)
    x, codes = rng.normal(size=(100, 2)), rng.integers(-1, 5, 100)
    whole = moments(x, groups=codes, n_groups=5)
    halves = [moments(x[rows], groups=codes[rows], n_groups=5) for rows in (slice(0, 30), slice(30, 100))]
    for merged in (halves[0] + halves[1], bnorm.Moments.merge(halves), sum(halves)):
        np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-14, atol=1e-15)
        np.testing.assert_allclose(merged.var(), whole.var(), rtol=1e-13)
        assert not merged.mean.flags.writeable
    assert pickle.loads(pickle.dumps(whole)) == whole
    assert repr(whole).startswith("Moments(count=[[")
    with pytest.raises(ValueError, match=r"expected one number of channels, got \[2, \(5, 2\)\]"):
        whole + moments(x)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"groups": [0, 5, 1]}, None, ""),
        ({"groups": [0, 5, 1], "n_groups": 5}, ValueError, "expected codes from -1 to 4, .* got 0 to 5"),
        ({"groups": [0, -2, 1]}, ValueError, "expected codes from -1 to 1, .* got -2 to 1"),
        ({"groups": [0, 1]}, ValueError, r"groups: expected shape \(3,\)"),
        ({"groups": [0.0, 1.0, 2.0]}, TypeError, "groups: expected integers, got dtype float64"),
        ({"groups": [True, False, True]}, TypeError, "groups: expected integers, got dtype bool"),
        ({"groups": np.array([1, 2, 2**63], np.uint64)}, ValueError, "groups: expected codes below"),
        ({"groups": [-3, -2, -4]}, ValueError, "groups: expected codes from -1 to -1, .* got -4 to -2"),
        ({"groups": [0, 1, 2**40]}, ValueError, "n_groups: expected 0 to"),
        ({"groups": [0, 1, 2], "n_groups": -1}, ValueError, "n_groups: expected 0 to"),
        ({"groups": [0, 1, 2], "n_groups": 2.0}, TypeError, "n_groups: expected an integer"),
        ({"groups": [0, 1, 2], "exact": True}, ValueError, "expected None with exact=True"),
        ({"n_groups": 3}, ValueError, "n_groups: expected None, as groups is None"),
        ({"groups": ["a", "b", "c"]}, TypeError, "groups: expected real numbers"),
    ],
)
def test_errors(given, error, message):
    x = np.ones((3, 2))
    if error is None:
        assert moments(x, **given).count.shape == (6, 2)
        return
    with pytest.raises(error, match=f"^moments: .*{message}"):
        moments(x, **given)


def test_empty():
    assert moments(np.empty((0, 3)), groups=[]).count.shape == (0, 3)
    m = moments(np.empty((0, 3)), groups=np.empty(0, int), n_groups=2)
    assert m.count.tolist() == [[0, 0, 0]] * 2


def test_lazy_collections_are_refused():
    dask = pytest.importorskip("dask.array")
    with pytest.raises(TypeError, match="groups: expected None for a Dask collection"):
        moments(dask.ones((4, 2)), groups=[0, 0, 1, 1])
