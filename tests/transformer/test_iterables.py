"""Fitting by an iterable of tables: the same as one table, in one pass; after an error nothing has changed."""

import copy

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from bnorm import BatchNormTransformer

rng = np.random.default_rng(0)
ROWS = [rng.standard_normal((n, 3)) * 2 + 100 for n in (4, 1, 0, 30)]
X = np.concatenate(ROWS)


def batches(rows=ROWS):
    yield from rows


def same(t, other, exact=False):
    np.testing.assert_allclose(t.mean_, other.mean_, rtol=1e-15 if exact else 1e-14)
    np.testing.assert_allclose(t.var_, other.var_, rtol=1e-12)
    np.testing.assert_allclose(t.n_samples_seen_, other.n_samples_seen_, rtol=1e-14)


@pytest.mark.parametrize("settings", [{}, {"momentum": None}, {"halflife": 5.0}, {"momentum": None, "exact": True}])
def test_fit_is_that_of_all_rows(settings):
    t = BatchNormTransformer(**settings).fit(batches())
    whole = BatchNormTransformer(**settings).fit(X)
    same(t, whole)
    assert t.n_batches_seen_ == 1 and t.n_features_in_ == 3
    if settings.get("exact"):
        assert t.digest() == whole.digest()
    same(t.partial_fit(X[:9]), whole.partial_fit(X[:9]))


@pytest.mark.parametrize("settings", [{}, {"momentum": None}, {"halflife": 5.0}, {"momentum": None, "exact": True}])
@pytest.mark.parametrize("fitted", [False, True])
def test_partial_fit_takes_every_table_as_a_batch(settings, fitted):
    rows = [ROWS[0], ROWS[3][:10], ROWS[2], ROWS[3][10:]]
    t, loop = (BatchNormTransformer(**settings) for _ in range(2))
    if fitted:
        t.fit(X), loop.fit(X)
        layer = t.layer_
    t.partial_fit(batches(rows))
    for some in rows:
        if len(some):
            loop.partial_fit(some)
    same(t, loop, exact=True)
    assert t.n_batches_seen_ == loop.n_batches_seen_ and (not fitted or t.layer_ is layer)


def test_weights_and_missing_values():
    rows = [r.copy() for r in ROWS]
    rows[0][0, 1] = np.nan
    weight = [rng.random(len(r)) for r in rows]
    t = BatchNormTransformer().fit(zip(rows, weight, strict=True))
    same(t, BatchNormTransformer().fit(np.concatenate(rows), sample_weight=np.concatenate(weight)))
    with pytest.raises(TypeError, match="item 0: weight: expected bools or floats"):
        BatchNormTransformer().fit((r, np.arange(len(r))) for r in rows)
    with pytest.raises(ValueError, match="expected some weight above 0"):
        BatchNormTransformer().fit((r, np.zeros(len(r))) for r in rows)
    for wrong, message in ((np.nan, "NaN"), (-1.0, "Negative values")):
        with pytest.raises(ValueError, match=message):
            BatchNormTransformer().fit((r, np.append(w[1:], wrong)) for r, w in zip(rows[:2], weight, strict=False))


def test_some_tables_with_weights():
    """The counts are sums of weights then, whichever table has them."""
    w = np.linspace(0.1, 0.7, 4)
    for rows in ([(ROWS[0], w), ROWS[3]], [ROWS[3], (ROWS[0], w)]):
        t = BatchNormTransformer().fit(batches(rows))
        np.testing.assert_allclose(t.n_samples_seen_, 30 + w.sum(), rtol=1e-14)


def test_tables_without_any_value():
    t = BatchNormTransformer().fit(batches([np.full((2, 3), np.nan)] * 2))
    assert np.isnan(t.mean_).all() and t.n_samples_seen_ == 0


def test_tables_have_names():
    pa, pd, pl = (pytest.importorskip(name) for name in ("pyarrow", "pandas", "polars"))
    frames = [pd.DataFrame(rows, columns=["a", "b", "c"]) for rows in ROWS]
    arrow = [pa.table({name: frame[name].to_numpy() for name in frame}) for frame in frames]
    reader = pa.RecordBatchReader.from_batches(arrow[0].schema, [b for t in arrow for b in t.to_batches()])
    lists = [frames, tuple(arrow), [b for t in arrow for b in t.to_batches()], [pl.from_arrow(t) for t in arrow]]
    for items in (
        *lists,
        iter(frames),
        reader,
        (pl.from_arrow(t) for t in arrow),
        (b for t in arrow for b in t.to_batches()),
    ):
        t = BatchNormTransformer().fit(items)
        same(t, BatchNormTransformer().fit(X))
        assert t.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names") as caught:
        BatchNormTransformer().fit(f for f in (frames[0], frames[1][["c", "a", "b"]]))
    assert caught.value.__notes__ == ["BatchNormTransformer: this was item 1"]


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_tables_is_no_table(kind):
    """Unlike a list of rows, even if all tables have the same size."""
    parts = [X[:5], X[5:10], X[10:15]]
    for items, weight in ((parts, None), ([(part, np.linspace(0.1, 1, 5)) for part in parts], np.linspace(0.1, 1, 5))):
        t = BatchNormTransformer().fit(kind(items))
        same(t, BatchNormTransformer().fit(X[:15], sample_weight=None if weight is None else np.tile(weight, 3)))
        loop = BatchNormTransformer()
        for part in parts:
            loop.partial_fit(part, sample_weight=weight)
        same(BatchNormTransformer().partial_fit(kind(items)), loop, exact=True)
    same(BatchNormTransformer().fit(kind(X)), BatchNormTransformer().fit(X))
    same(BatchNormTransformer().fit(kind(kind(row) for row in X)), BatchNormTransformer().fit(X))
    with pytest.raises(ValueError, match="Expected 2D array"):
        BatchNormTransformer().fit(kind())


def test_a_loader_of_pytorch():
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(torch.from_numpy(X), batch_size=8)
    same(BatchNormTransformer().fit(loader), BatchNormTransformer().fit(X))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (ROWS[0][:, :2], "X has 2 features"),
        (np.full((2, 3), np.inf), "contains infinity"),
        (np.array([["a"] * 3]), "could not convert string"),
    ],
)
def test_after_an_error_nothing_has_changed(bad, message):
    for t in (BatchNormTransformer(), BatchNormTransformer().fit(X)):
        before = copy.deepcopy(t)
        for call in (t.fit, t.partial_fit):
            with pytest.raises(ValueError, match=message) as caught:
                call(batches([ROWS[0], bad]))
            assert caught.value.__notes__ == ["BatchNormTransformer: this was item 1"]
            assert sorted(t.__dict__) == sorted(before.__dict__)
            if "_state" in t.__dict__:
                same(t, before, exact=True)
                assert t.n_batches_seen_ == before.n_batches_seen_


def test_what_is_refused():
    with pytest.raises(ValueError, match="at least one with rows"):
        BatchNormTransformer().fit(batches([]))
    with pytest.raises(ValueError, match="at least one with rows"):
        BatchNormTransformer().partial_fit(batches([ROWS[2]]))
    with pytest.raises(ValueError, match="sample_weight: expected None with an iterable"):
        BatchNormTransformer().fit(batches(), sample_weight=np.ones(35))
    with pytest.raises(ValueError, match="times: expected None with an iterable"):
        BatchNormTransformer().fit(batches(), times=np.arange(35))


@pytest.mark.parametrize(
    ("settings", "methods", "message"),
    [
        ({"momentum": 5}, ["fit", "partial_fit"], "momentum"),
        ({"halflife": 3.0, "momentum": 0.5}, ["fit", "partial_fit"], "momentum: expected its default"),
        ({"halflife": "1h"}, ["fit", "partial_fit"], "expected one table, with its times, as halflife='1h'"),
        ({"window": "1h"}, ["fit", "partial_fit"], "expected one table, with its times, as window='1h'"),
        ({"window": 7}, ["fit"], "expected one table with window=7, .*: partial_fit takes it"),
    ],
    ids=str,
)
def test_no_table_is_taken_from_an_iterable_that_is_refused(settings, methods, message):
    given = batches()
    for method in methods:
        with pytest.raises((TypeError, ValueError), match=message):
            getattr(BatchNormTransformer(**settings), method)(given)
    fitted = BatchNormTransformer(momentum=None).fit(X).set_params(ddof=1)
    with pytest.raises(ValueError, match="ddof: expected 0, as this stream began"):
        fitted.partial_fit(given)
    assert len(list(given)) == len(ROWS)


@pytest.mark.parametrize(
    "given", [batches, lambda: ROWS, lambda: [X, X], lambda: zip(ROWS, map(len, ROWS), strict=True)]
)
def test_only_fitting_takes_several_tables(given):
    new, fitted = BatchNormTransformer(), BatchNormTransformer(momentum=None, exact=True).fit(X)
    before = fitted.digest()
    for method in ("fit_transform", "transform", "inverse_transform", "forget"):
        with pytest.raises(TypeError, match=f"^BatchNormTransformer: {method}: X: expected one table, got"):
            getattr(fitted, method)(given())
    with pytest.raises(TypeError, match="fit_transform: X: expected one table"):
        new.fit_transform(given())
    with pytest.raises(NotFittedError):
        new.transform(given())
    assert "_state" not in new.__dict__ and fitted.digest() == before
