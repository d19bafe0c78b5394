"""Files of transformers: a stream goes on from a file as if nothing had been."""

import numpy as np
import pytest

import bnorm
from bnorm import BatchNormTransformer
from compare import assert_same

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 3)) * [1, 100, 1e-3] + [0, 1e6, 5]
X[::7, 1] = np.nan
W = rng.uniform(0, 2, 300)
KINDS = {
    "average": {"momentum": 0.3},
    "pooled": {"momentum": None},
    "fading": {"halflife": 40.0},
    "fading, unbiased": {"halflife": 40, "ddof": 1},
    "unbiased": {"momentum": None, "ddof": np.int64(1), "eps": np.float64(1e-3)},
    "with a history": {"momentum": None, "history": 2},
    "plain": {"affine": False, "copy": np.bool_(False)},
}
every_kind = pytest.mark.parametrize("parameters", KINDS.values(), ids=KINDS)
every_suffix = pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
LEARNED = ["running_mean_", "running_var_", "gamma_", "beta_", "n_samples_seen_", "n_batches_seen_", "n_features_in_"]


def check_same(a, b):
    assert a.get_params() == b.get_params()
    for name in LEARNED:
        got, want = getattr(a, name), getattr(b, name)
        assert (got is None and want is None) or np.asarray(got).tobytes() == np.asarray(want).tobytes(), name
    assert (
        a.__dict__.get("feature_names_in_", np.array([])).tolist()
        == b.__dict__.get("feature_names_in_", np.array([])).tolist()
    )


@every_suffix
@every_kind
@pytest.mark.parametrize("weight", [None, W], ids=["", "weights"])
def test_a_stream_goes_on(tmp_path, parameters, weight, suffix):
    path = tmp_path / f"t{suffix}"
    t = BatchNormTransformer(**parameters)
    for rows in (slice(0, 50), slice(50, 120)):
        t.partial_fit(X[rows], sample_weight=None if weight is None else weight[rows])
    if t.affine:
        t.backward(X[:10], np.ones_like(X[:10]))
        t.step(0.1)
    t.save(path)
    back = bnorm.load(path)
    check_same(back, t)
    again = tmp_path / f"again{suffix}"
    back.save(again)
    assert again.read_bytes() == path.read_bytes()
    for each in (t, back):
        each.partial_fit(X[120:])
    check_same(back, t)
    assert_same(back.transform(X.copy()), t.transform(X.copy()))


@every_kind
def test_after_fit(tmp_path, parameters):
    t = BatchNormTransformer(**parameters).fit(X[:100])
    t.save(tmp_path / "t.npz")
    back = bnorm.load(tmp_path / "t.npz")
    for each in (t, back):
        each.partial_fit(X[100:])
    check_same(back, t)


@pytest.mark.parametrize("parameters", [{"history": 2**40}, {"copy": np.False_}], ids=str)
def test_what_fit_takes_can_be_read(tmp_path, parameters):
    t = BatchNormTransformer(**parameters).fit(X)
    t.save(tmp_path / "t.npz")
    check_same(bnorm.load(tmp_path / "t.npz"), t)


def test_names_of_features(tmp_path):
    pd = pytest.importorskip("pandas", reason="names come with data frames")
    frame = pd.DataFrame(X, columns=["a", "ü,'\"", "c"])
    t = BatchNormTransformer().fit(frame)
    t.save(tmp_path / "t.safetensors")
    back = bnorm.load(tmp_path / "t.safetensors")
    check_same(back, t)
    assert_same(back.transform(frame), t.transform(frame))
    with pytest.raises(ValueError, match="feature names"):
        back.transform(frame[["c", "a", "ü,'\""]])


def test_a_feature_that_was_never_seen(tmp_path):
    x = X.copy()
    x[:, 1] = np.nan
    t = BatchNormTransformer(momentum=None).fit(x)
    t.save(tmp_path / "t.npz")
    back = bnorm.load(tmp_path / "t.npz")
    check_same(back, t)
    for each in (t, back):
        each.partial_fit(X)
    check_same(back, t)


def test_states_merge(tmp_path):
    whole = BatchNormTransformer(momentum=None).fit(X)
    for i, part in enumerate(np.array_split(X, 3)):
        BatchNormTransformer(momentum=None).fit(part).save(tmp_path / f"{i}.npz")
    first, *others = [bnorm.load(tmp_path / f"{i}.npz") for i in range(3)]
    for other in others:
        first.merge(other)
    assert np.abs(first.mean_ - whole.mean_).max() <= 1e-12 * 100
    assert first.n_samples_seen_.tolist() == whole.n_samples_seen_.tolist()


def test_without_scikit_learn_a_file_is_not_called_damaged(tmp_path):
    import child

    BatchNormTransformer().fit(X).save(tmp_path / "t.npz")
    done = child.run("-c", f"import sys, bnorm; sys.modules['sklearn'] = None; bnorm.load({str(tmp_path / 't.npz')!r})")
    assert "ModuleNotFoundError" in done.stderr and "damaged" not in done.stderr


def test_before_fit(tmp_path):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        BatchNormTransformer().save(tmp_path / "t.npz")
    assert not list(tmp_path.iterdir())


def test_saving_that_fails_changes_nothing(tmp_path):
    """Parameters that have been set apply from the next batch, or file, on."""
    t = BatchNormTransformer(halflife=5.0, history=8)
    for rows in np.array_split(X, 6):
        t.partial_fit(rows)
    path, kept, y = tmp_path / "t.npz", tmp_path / "kept.npz", t.transform(X.copy())
    t.save(kept)
    t.set_params(halflife=50.0, eps=3.0, history=2)
    with pytest.raises(FileNotFoundError):
        t.save(tmp_path / "nowhere" / "t.npz")
    assert_same(t.transform(X.copy()), y)
    assert t.layer_.eps == 0.0
    t.set_params(halflife=5.0, eps=0.0, history=8).save(path)
    assert path.read_bytes() == kept.read_bytes()


def _train(layer):
    layer.train()(X[:40, [0, 2]])


def _pool(layer):
    with layer.train().pooled_stats():
        layer(X[:40, [0, 2]])


@pytest.mark.parametrize("change", [_train, _pool, lambda layer: layer.reset_running_stats()])
@pytest.mark.parametrize("parameters", [{"momentum": None, "exact": True}, {"window": 7}, {"window": "9s"}])
def test_what_a_layer_has_counted_is_not_saved_beside_the_sums_of_rows(tmp_path, parameters, change):
    """The next batch would undo it."""
    x, times = X[:60, [0, 2]], np.arange(60.0)

    def learned():
        t = BatchNormTransformer(**parameters)
        return t.fit(x[:50], times=times[:50] if parameters == {"window": "9s"} else None)

    t, plain = learned(), learned()
    change(t.layer_)
    t.save(tmp_path / "t.npz")
    back = bnorm.load(tmp_path / "t.npz")
    assert_same(back.transform(x), plain.transform(x))
    for each in (t, back, plain):
        each.partial_fit(x[50:], times=times[50:] if parameters == {"window": "9s"} else None)
    assert_same(back.transform(x), plain.transform(x))
    check_same(back, t)


@pytest.mark.parametrize("way", [{"halflife": 10}, {"window": 10}])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_default_momentum_of_any_type(tmp_path, way, kind):
    BatchNormTransformer(momentum=kind(0.1), **way).fit(X).save(tmp_path / "t.npz")
    assert bnorm.load(tmp_path / "t.npz").momentum == 0.1
