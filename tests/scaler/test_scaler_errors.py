"""Errors of the StandardScaler: those of scikit-learn, in its words."""

import pickle

import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.exceptions import NotFittedError

from bnorm.sklearn import StandardScaler
from drawing import together
from scaler_tables import both, container, values

VERSION = tuple(map(int, sklearn.__version__.split(".")[:2]))


def wrong_inputs():
    inf, ragged, wide = values(), [[1.0, 2.0], [3.0]], values(columns=6)
    inf[3, 2] = np.inf
    csr = container(values(), "csr_array")
    infinite = csr.copy()
    infinite.data[4] = -np.inf
    return {
        "infinity": inf,
        "infinity at weight 0": inf,
        "one dimension": np.arange(4.0),
        "no rows": np.empty((0, 5)),
        "no columns": np.empty((5, 0)),
        "complex": values() * 1j,
        "strings": np.array([["a", "b"], ["c", "d"]]),
        "ragged": ragged,
        "too wide": wide,
        "sparse, centered": csr,
        "sparse, infinity": infinite,
        "sparse, too wide": sparse.csr_array(wide),
        "None": None,
    }


def test_a_refused_sparse_table_is_not_overwritten():
    x = container(values(), "csr_array")
    scaler = StandardScaler(with_mean=False, copy=False).fit(x)
    x.data[4] = -np.inf
    before = x.data.copy()
    for method in (scaler.transform, scaler.inverse_transform):
        with pytest.raises(ValueError, match="infinity"):
            method(x)
        np.testing.assert_array_equal(x.data, before)


@together(method=["fit", "partial_fit", "transform", "inverse_transform"])
@pytest.mark.parametrize("name", wrong_inputs())
def test_errors_are_scikit_learns(name, method):
    x = wrong_inputs()[name]
    with_mean = not (name.startswith("sparse") and "centered" not in name)
    ours, theirs = (scaler.fit(values()) for scaler in both(with_mean=with_mean))
    weight = {}
    if "weight" in name and "fit" in method:
        weight = {"sample_weight": (np.arange(60) != 3).astype(float)}
    before = pickle.dumps(ours)
    try:
        getattr(theirs, method)(x, **weight)
    except Exception as error:
        kind = ValueError if isinstance(error, AssertionError) else type(error)  # a sparse inverse that does not fit
        with pytest.raises(kind) as mine:
            getattr(ours, method)(x, **weight)
        if method != "inverse_transform":  # where ours name X, and the number of features that does not fit
            assert str(mine.value) == str(error)
        assert pickle.dumps(ours) == before
    else:
        assert (name.endswith("too wide"), method) == (True, "fit")
        assert getattr(ours, method)(x).n_features_in_ == 6


@pytest.mark.parametrize("weight", [[1.0], np.ones((60, 1)), np.zeros(60), np.full(60, np.nan), "a"], ids=str)
def test_errors_of_weights_are_scikit_learns(weight):
    ours, theirs = (scaler.fit(values()) for scaler in both())
    before = pickle.dumps(ours)
    if VERSION < (1, 9) and not np.any(np.asarray(weight) != 0):
        pytest.skip("scikit-learn refuses weights that are all zero from 1.9 on")
    with pytest.raises((ValueError, TypeError)) as expected:
        theirs.fit(values(), sample_weight=weight)
    with pytest.raises(expected.type) as mine:
        ours.fit(values(), sample_weight=weight)
    assert str(mine.value) == str(expected.value)
    assert pickle.dumps(ours) == before


def test_not_fitted():
    for method in ("transform", "inverse_transform"):
        with pytest.raises(NotFittedError):
            getattr(StandardScaler(), method)(values())


def test_wrong_parameters():
    with pytest.raises(ValueError, match="'with_mean' parameter of StandardScaler must be an instance of 'bool'"):
        StandardScaler(with_mean="yes").fit(values())
    scaler = StandardScaler(with_std=False).fit(values())
    scaler.with_std = True
    for method in (scaler.partial_fit, scaler.transform, scaler.inverse_transform):
        with pytest.raises(ValueError, match="fit begins anew"):
            method(values())
