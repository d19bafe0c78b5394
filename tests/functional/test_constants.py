"""What counts as constant without eps: a deviation of a few last places of the mean, however many values there are."""

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler as Theirs

import bnorm
from bnorm import BatchNormTransformer
from bnorm import functional as F
from bnorm.interop.sklearn import from_standard_scaler, to_standard_scaler
from bnorm.sklearn import StandardScaler
from compare import assert_close, assert_same

MODES = ({"momentum": None}, {"momentum": 0.3}, {"halflife": 7.0})
FAR = np.random.default_rng(0).normal(1e6, 1.0, (60, 3))  # a million deviations from zero
WEIGHT = np.random.default_rng(1).random(60) + 0.1
CONSTANTS = np.array([0.1, 1e6 + 0.1, 1e300, 5e-324, -1e-310, 3e-20, 0.0])


def by_function(x, weight):
    return F.batch_norm(x, eps=0, weight=weight)[0]


def by_layer(x, weight):
    return bnorm.BatchNorm1d(x.shape[1], eps=0)(x, weight=weight)


def by_running(x, weight):
    layer = bnorm.BatchNorm1d(x.shape[1], eps=0, momentum=None)
    layer(x, weight=weight)
    return layer.eval()(x)


def by_transformer(x, weight):
    return BatchNormTransformer(momentum=None).fit_transform(x, sample_weight=weight)


def by_stream(x, weight):
    t = BatchNormTransformer(halflife=20.0)
    for rows in (slice(0, 25), slice(25, None)):
        t.partial_fit(x[rows], sample_weight=weight[rows])
    return t.transform(x)


WAYS = (by_function, by_layer, by_running, by_transformer, by_stream)


@pytest.mark.parametrize("way", WAYS)
def test_the_scale_of_weights_changes_nothing(way):
    y = way(FAR, WEIGHT)
    assert 0.5 < y.std() < 2
    for power in (-300, -40, 1, 27, 60, 300):
        assert_same(way(FAR, WEIGHT * 2.0**power), y, power=power)
    for factor in (1e-30, 3.7, 1e8, 1e12, 1e100):
        assert_close(way(FAR, WEIGHT * factor), y, 1e-9, factor=factor)  # 4 x 2^-52 is 1e-9 deviations here


@pytest.mark.parametrize("way", [by_function, by_layer, by_running, by_transformer])
def test_repeated_rows_change_nothing(way):
    y = way(FAR, np.ones(60))
    for k in (2, 1000):
        assert_close(way(np.tile(FAR, (k, 1)), np.ones(60 * k))[:60], y, 1e-9, k=k)


@pytest.mark.parametrize("settings", MODES[::2], ids=str)
def test_a_stream_of_ten_billion_rows(settings):
    """Merged with itself until it is so long."""
    t = BatchNormTransformer(**settings).fit(FAR)
    y = t.transform(FAR)
    for _ in range(28):
        t.merge(t)
    assert t.n_samples_seen_ > 1e10
    assert_close(t.transform(FAR), y, 1e-9)
    assert_close(t.layer_(FAR), y, 1e-9)
    assert (t.scale_ < 2).all() and (t.scale_ != 1).all()


def table(n):
    return np.tile(CONSTANTS, (n, 1))


def assert_constant(t):
    assert_same(t.mean_, CONSTANTS)
    assert_same(t.var_, np.zeros(len(CONSTANTS)))
    assert_same(t.scale_, np.ones(len(CONSTANTS)))
    assert_same(t.transform(table(2)), np.zeros((2, len(CONSTANTS))))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("settings", MODES, ids=str)
def test_equal_values_are_constant(settings, weighted):
    rng = np.random.default_rng(2)

    def learn(method, n):
        return method(table(n), sample_weight=np.exp(5 * rng.standard_normal(n)) if weighted else None)

    for n in (1, 2, 7, 1000):
        assert_constant(learn(BatchNormTransformer(**settings).fit, n))
    stream, other = BatchNormTransformer(**settings), BatchNormTransformer(**settings)
    for n in rng.integers(2, 30, 60):
        learn(stream.partial_fit, n)
        learn(other.partial_fit, n)
    assert_constant(stream)
    if "momentum" not in settings or settings["momentum"] is None:  # an average has no merge
        assert_constant(stream.merge(other))


def test_rows_have_the_same_rule():
    eps = np.finfo(np.float64).eps
    noise, signal = (3.0 + k * eps * np.array([[0, 2, 4, 2, 0, 4]]) for k in (1, 100))
    assert np.abs(F.layer_norm(noise, normalized_shape=6, eps=0)[0]).max() < 1e-14
    assert 0.9 < F.layer_norm(signal, normalized_shape=6, eps=0)[0].std() < 1.1
    assert np.abs(F.instance_norm(noise[None], eps=0)[0]).max() < 1e-14


def test_the_rule_of_scikit_learn_is_kept_by_the_class_of_that_name():
    """It has the count in it; so an estimator that is converted keeps its scales."""
    x = 1e6 + 1e-5 * np.random.default_rng(3).standard_normal((100_000, 2))
    ours, theirs = StandardScaler().fit(x), Theirs().fit(x)
    assert_same(ours.scale_, theirs.scale_)
    assert_same(ours.scale_, np.ones(2))
    assert (BatchNormTransformer().fit(x).scale_ < 1e-4).all()
    for scaler in (ours, theirs):
        assert_same(from_standard_scaler(scaler).scale_, np.ones(2))
    assert (to_standard_scaler(BatchNormTransformer().fit(x)).scale_ < 1e-4).all()
