"""What `save` writes `load` takes: whatever the settings, the stream and the state were."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bnorm
from bnorm import BatchNormTransformer
from bnorm.files import container
from bnorm.kernels import cpu
from commands import Command

MODES = [
    {"momentum": 0.3},
    {"momentum": 1.0},
    {"momentum": None},
    {"momentum": None, "ddof": 1},
    {"halflife": 3.0},
    {"halflife": 3.0, "ddof": 1},
    {"halflife": 1e-3, "ddof": 1},
]
VALUES = [0.0, 1.0, -2.5, 1e200, -1e200, 1.7e308, -1.7e308, 1e-300, 5e-324, np.nan]
# Three times as many as usual where all are tried: there, some of these combinations are rare.
EXAMPLES = settings.default.max_examples * (3 if settings.default.max_examples >= 100 else 1)
WEIGHTS = [0.0, 1e-3, 0.2, 1.0, 1e8, 1e200, 1.7e308]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("states") / "t.npz"


def contents(t):
    return {name: a.tobytes() for name, a in t._state.statistics.arrays().items()}


def check_goes_on(t, place):
    """Saved and loaded, it is what it was."""
    with np.errstate(all="ignore"):
        t.save(place)
        back = bnorm.load(place)
    assert contents(back) == contents(t)
    return back


def learn(t, method, x, weight):
    """An error changes nothing. Whether there was none."""
    before = copy.deepcopy(t.__dict__)
    try:
        with np.errstate(all="ignore"):
            getattr(t, method)(x, sample_weight=weight)
    except ValueError as error:
        assert str(error).split(":")[0] in {  # the data are to blame, and not the statistics
            "Input X contains infinity or a value too large for dtype('float64').",
            "BatchNormTransformer",
            "Sample weights must contain at least one non-zero number.",
        }
        assert before.keys() == t.__dict__.keys()
        assert "_state" not in before or contents(t) == {
            name: a.tobytes() for name, a in before["_state"].statistics.arrays().items()
        }
        return False
    return True


rows = st.integers(1, 5).flatmap(
    lambda n: st.tuples(
        st.lists(st.lists(st.sampled_from(VALUES), min_size=2, max_size=2), min_size=n, max_size=n),
        st.none() | st.lists(st.sampled_from(WEIGHTS), min_size=n, max_size=n),
    )
)


@settings(deadline=None, max_examples=EXAMPLES)
@given(mode=st.sampled_from(MODES), method=st.sampled_from(["fit", "partial_fit"]), batches=st.lists(rows, max_size=6))
@pytest.mark.filterwarnings("ignore:BatchNormTransformer. a batch of one row")
def test_any_stream(place, mode, method, batches):
    t, other = BatchNormTransformer(**mode), None
    for x, weight in batches:
        if learn(t, method, np.array(x), None if weight is None else np.array(weight)):
            method = "partial_fit"
        if hasattr(t, "layer_"):
            other, t = t, check_goes_on(t, place)
    if other is not None and mode.get("momentum", 0) is None:
        try:
            with np.errstate(all="ignore"):
                t.merge(other)
        except ValueError as error:
            assert "merge: expected statistics that float64 can hold" in str(error)
        check_goes_on(t, place)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64", *cpu.INTEGERS])
def test_a_window_of_rows_of_any_type(tmp_path, kind, suffix):
    x = np.random.default_rng(0).integers(0, 100, (40, 3)).astype(kind)
    t = BatchNormTransformer(window=20).partial_fit(x[:15]).partial_fit(x[15:30])
    t.save(tmp_path / f"t{suffix}")
    back = bnorm.load(tmp_path / f"t{suffix}")
    assert contents(back) == contents(t)
    kept = [rows.x.dtype for rows in t._state.window.rows()]
    assert [rows.x.dtype for rows in back._state.window.rows()] == kept
    assert contents(back.partial_fit(x[30:])) == contents(t.partial_fit(x[30:]))


@pytest.fixture(scope="module")
def states(place):
    """The configuration and the arrays of a file of every mode."""
    found = []
    for mode in MODES:
        BatchNormTransformer(**mode).partial_fit([[0.0, 1.0, np.nan], [1.0, 5.0, np.nan]]).save(place)
        config, entries = container.read("", place)
        found.append((config, {name: entry.array() for name, entry in entries.items()}))
    return found


CHANGED = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-310, 1e200, -1e200, 1.7e308, -1.7e308, np.inf, -np.inf, np.nan]


@settings(deadline=None, max_examples=EXAMPLES)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore:BatchNormTransformer. a batch of one row")
def test_a_state_with_any_numbers_in_it(place, states, data):
    """A file whose numbers were changed is refused, or the stream goes on, and its file is taken again."""
    config, arrays = copy.deepcopy(data.draw(st.sampled_from(states)))
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from([name for name in sorted(arrays) if name not in ("weight", "bias")]))
        arrays[name][data.draw(st.integers(0, 2))] = data.draw(st.sampled_from(CHANGED))
    container.write("", place, config, arrays)
    try:
        t = bnorm.load(place)
    except ValueError:
        return
    x, weight = data.draw(rows)
    t = check_goes_on(t, place)
    learn(t, "partial_fit", np.column_stack([x, np.ones(len(x))]), None if weight is None else np.array(weight))
    check_goes_on(t, place)


@pytest.mark.parametrize("shape", [(4, 1), (4, 16), (100, 3), (3000, 2), (300, 70)])
@pytest.mark.parametrize("mode", [MODES[0], *MODES[2:6]], ids=str)
def test_the_variance_of_large_values_is_infinite(place, shape, mode):
    """Never NaN: which of the two it is does not depend on the number of rows and features."""
    x = np.where(np.random.default_rng(0).random(shape) > 0.5, 1e200, -1e200)
    x[:2] = [[1e200], [-1e200]]
    with np.errstate(all="ignore"):
        t = BatchNormTransformer(**mode).fit(x)
        for _ in range(2):
            assert (t.var_ == np.inf).all()
            assert np.isfinite(t.mean_).all()
            assert (np.nan_to_num(t.transform(x)) == 0).all()
            t = check_goes_on(t, place)
            t.partial_fit(x / 1e200)
    assert np.isfinite(t.mean_).all()


@pytest.mark.parametrize("parameters", [{"history": 2}, {"history": None}, {"eps": 0.5}, {"momentum": 0.9}], ids=str)
def test_parameters_that_changed_on_the_way(place, parameters):
    t = BatchNormTransformer(history=6)
    for _ in range(5):
        t.partial_fit(np.eye(3))
    back = check_goes_on(t.set_params(**parameters), place)
    assert back.get_params() == t.get_params()
    np.testing.assert_array_equal(back.transform(np.eye(3)), t.transform(np.eye(3)))


@pytest.mark.parametrize("parameters", [{"momentum": None}, {"halflife": 3.0}, {"ddof": 1}, {"affine": False}], ids=str)
def test_parameters_of_another_stream_are_refused(tmp_path, parameters):
    t = BatchNormTransformer().partial_fit(np.eye(3)).set_params(**parameters)
    with pytest.raises(ValueError, match=r"as this stream began"):
        t.save(tmp_path / "t.npz")
    assert not list(tmp_path.iterdir())


def test_assigned_values_that_are_no_statistics_are_refused(tmp_path):
    t = BatchNormTransformer().partial_fit(np.eye(3))
    t.running_mean_ = np.array([0, np.nan, 1])
    with pytest.raises(
        ValueError, match=r"^BatchNormTransformer: save: running_mean: expected finite numbers .* got nan"
    ):
        t.save(tmp_path / "t.npz")
    assert not list(tmp_path.iterdir())


def test_weights_whose_sum_overflows(place):
    x, heavy = np.eye(2), np.full(2, 8e307)
    for mode in MODES[2:]:
        t = BatchNormTransformer(**mode)
        assert learn(t, "partial_fit", x, np.ones(2))
        assert learn(t, "partial_fit", x, heavy)
        before = contents(t)
        with pytest.raises(ValueError, match=r"sample_weight: expected weights whose sum over the stream"):
            t.partial_fit(x, sample_weight=heavy)
        assert contents(t) == before
        check_goes_on(t, place)


def test_the_command(tmp_path, capsys):
    table = tmp_path / "a.csv"
    table.write_text("x,y\n" + "1e200,1\n-1e200,2\n" * 20)
    state = tmp_path / "s.npz"
    Command(capsys)("fit", table, "-o", state)
    assert bnorm.load(state).var_[0] == np.inf
