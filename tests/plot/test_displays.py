"""Displays: what is on the picture, whatever the table looks like."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import child
from bnorm import BatchNorm1d, BatchNormTransformer, GroupedTransformer
from bnorm.plot import NormalizationDisplay, RunningStatsDisplay
from bnorm.plot.drawing import SECOND
from bnorm.transformer.durations import nanoseconds
from drawing import every_pair

pytest.importorskip("matplotlib", reason="draws")
import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure


def slow(value):
    """Of a number of features that is drawn as others of the default run are."""
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def no_window():
    with mpl.rc_context({"backend": "agg"}):
        yield
        plt.close("all")


def stream(features, n=30, rows=40):
    """Scales from 1e-3 to 1e4; feature 1 is constant, 3 has outliers, 4 comes late, 5 drifts, 6 widens."""
    rng = np.random.default_rng(0)
    scale = 10.0 ** rng.uniform(-3, 4, features)
    for k in range(n):
        x = rng.normal(size=(rows, features))
        for feature, change in (
            (1, lambda x: 3.0 + 0 * x),
            (3, lambda x, k=k: np.where((np.arange(rows) == 7) & (k % 10 == 0), 1e5, x)),
            (4, lambda x, k=k: x + (np.nan if k < n // 3 else 0)),
            (5, lambda x, k=k: x + 4 * k / n),
            (6, lambda x, k=k: x * 4 ** (k / n)),
        ):
            if feature < features:
                x[:, feature] = change(x[:, feature])
        yield x * scale


def fitted(features, **parameters):
    t = BatchNormTransformer(**({"halflife": 300.0, "history": 20} | parameters))
    for batch in stream(features):
        t.partial_fit(batch)
    return t


def orange(panel):
    return panel.lines[0].get_color() == SECOND


@pytest.mark.parametrize("features", [1, slow(5), 12, 13, slow(50)])
def test_running_stats_of_any_number_of_features(features):
    t = fitted(features)
    display = RunningStatsDisplay.from_estimator(t)
    display.figure_.canvas.draw()
    rows, mean, var = t.history_
    np.testing.assert_array_equal(display.std, np.sqrt(var))
    if features <= 12:
        assert len(display.axes_) == features
        for i, panel in enumerate(display.axes_):
            x, y = panel.lines[0].get_data()
            np.testing.assert_array_equal(x, rows)
            np.testing.assert_array_equal(y, mean[:, i])
            assert panel.texts[0].get_text() == f"x{i}"
    else:
        assert [panel.collections[0].get_array().shape for panel in display.axes_] == [(features, len(rows))] * 2
        assert [label.get_text() for label in display.axes_[0].get_yticklabels()] == [f"x{i}" for i in range(features)]
        unseen = display.axes_[0].collections[0].get_array().mask
        np.testing.assert_array_equal(unseen, np.isnan(mean.T))


def test_what_moves_is_orange():
    display = RunningStatsDisplay.from_estimator(fitted(8))
    assert [i for i, panel in enumerate(display.axes_) if orange(panel)] == [3, 5, 6]


def test_the_picture_says_what_is_orange_and_why():
    display = RunningStatsDisplay.from_estimator(fitted(8))
    head = next(ax for ax in display.figure_.axes if ax.get_legend())
    assert [text.get_text() for text in head.get_legend().get_texts()] == [
        "mean",
        "one standard deviation to either side",
        "mean at the start",
    ]
    assert head.get_legend().get_title().get_text().startswith("Orange: drifts.")
    reasons = [panel.texts[1].get_text() for panel in display.axes_]
    assert reasons[0] == ""
    assert reasons[3].startswith("deviation × 0.")
    assert reasons[5].startswith("mean moved by +")
    assert reasons[6].startswith("deviation × ")
    calm = RunningStatsDisplay([1, 2], np.zeros((2, 1)), np.ones((2, 1)), ["calm"]).plot()
    assert calm.ax_.get_legend().get_title().get_text() == ""


@pytest.mark.parametrize("features", [5, slow(10)])
def test_rows_of_panels_are_equal(features):
    display = RunningStatsDisplay.from_estimator(fitted(features))
    display.figure_.canvas.draw()
    places = [panel.get_position() for panel in display.axes_]
    heights = [place.height for place in places]
    np.testing.assert_allclose(heights, heights[0], rtol=1e-6)
    steps = -np.diff(sorted({round(place.y0, 6) for place in places}, reverse=True))
    np.testing.assert_allclose(steps, steps[0], rtol=0.02)


@pytest.mark.parametrize(("features", "named"), [(3, [1, 2]), (5, [2, 3, 4]), (7, [4, 5, 6])])
def test_the_lowest_panel_of_each_column_names_its_axis(features, named):
    display = RunningStatsDisplay.from_estimator(fitted(features))
    assert [i for i, panel in enumerate(display.axes_) if panel.get_xlabel().strip()] == named


def label_boxes(ax):
    low, high = sorted(ax.get_xlim())
    labels = [tick.label1 for tick in ax.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = [label.get_window_extent() for label in labels if label.get_visible() and label.get_text()]
    return sorted((box.x0, box.x1) for box in boxes)


@pytest.mark.parametrize(("features", "width"), [(1, 3), (5, 5), (40, 4), (40, 9)])
def test_labels_of_ticks_stay_apart(features, width):
    t, x = fitted(features), np.concatenate(list(stream(features)))
    scaler = StandardScaler().fit(x * 1e-4)
    for draw in (
        lambda ax: RunningStatsDisplay.from_estimator(t, ax=ax),
        lambda ax: RunningStatsDisplay.from_estimator(scaler, ax=ax),
        lambda ax: NormalizationDisplay.from_estimator(scaler, x * 1e-4, ax=ax),
    ):
        figure = Figure(figsize=(width, 6), layout="constrained")
        draw(figure.subplots())
        figure.draw_without_rendering()
        panels = [ax for ax in figure.axes if ax.axison and ax.xaxis.get_tick_params().get("labelbottom", True)]
        assert max(len(label_boxes(ax)) for ax in panels) > 1
        for ax in panels:
            boxes = label_boxes(ax)
            assert all(right < left for (_, right), (left, _) in pairwise(boxes))


def test_small_columns_beside_large_ones_can_be_seen():
    x = np.random.default_rng(0).normal(size=(200, 8)) * 10.0 ** np.arange(-4, 4)
    display = NormalizationDisplay(x, x, [f"f{i}" for i in range(8)]).plot()
    display.figure_.canvas.draw()
    left, right = display.axes_[0].transAxes.transform([(0, 0), (1, 0)])[:, 0]
    for column in x.T:
        ends = display.axes_[0].transData.transform([(v, 0) for v in np.quantile(column, [0.01, 0.99])])[:, 0]
        assert np.diff(ends)[0] > 0.08 * (right - left)


def test_drift_in_standard_deviations():
    rows, mean, std = [10, 20, 30], [[0.0, 5.0, np.nan], [1.0, 5.0, 1.0], [4.0, 5.0, 2.0]], [[1.0, 0.0, np.nan]] * 2
    display = RunningStatsDisplay(rows, mean, [*std, [2.0, 0.0, 0.5]], "abc")
    np.testing.assert_array_equal(display.shift(), [[0, 0, np.nan], [0.5, 0, 0], [2, 0, 2]])
    np.testing.assert_array_equal(display.widening(), [[0, np.nan, np.nan], [0, np.nan, np.nan], [1, np.nan, 0]])


@pytest.mark.parametrize("estimator", [BatchNormTransformer, StandardScaler])
def test_without_a_record_it_is_now(estimator):
    t = estimator().fit(np.concatenate(list(stream(9))))
    display = RunningStatsDisplay.from_estimator(t)
    display.figure_.canvas.draw()
    assert display.mean.shape == (1, 9)
    marks = next(line for line in display.ax_.lines if line.get_marker() == "|")
    np.testing.assert_array_equal(marks.get_xdata(), t.mean_)


@pytest.mark.parametrize("features", [1, slow(5), 6, 7, slow(50)])
def test_normalization_of_any_number_of_features(features):
    t, x = fitted(features), np.concatenate(list(stream(features)))
    display = NormalizationDisplay.from_estimator(t, x)
    display.figure_.canvas.draw()
    np.testing.assert_array_equal(display.before, x)
    np.testing.assert_array_equal(display.after, t.transform(x))
    assert [panel.get_title() for panel in display.axes_[:2]] == ["before", "after"]
    if features > 6:
        assert len(display.axes_) == 2
        for panel, values in zip(display.axes_, (x, display.after), strict=True):
            marks = next(line for line in panel.lines if line.get_marker() == "|")
            np.testing.assert_allclose(marks.get_xdata(), np.nanmedian(values, axis=0), rtol=1e-12)
        return
    assert len(display.axes_) == 2 * features
    for i, panel in enumerate(display.axes_):
        beyond = sum(
            int(text.get_text().strip("←→ more").replace(",", "")) for text in panel.texts if "more" in text.get_text()
        )
        drawn = sum(bar.get_height() for bar in panel.patches)
        assert drawn + beyond == np.isfinite(x[:, i // 2]).sum()  # no value is lost
    if features > 3:
        assert [text.get_text() for text in display.axes_[2].texts] == ["constant"]
        assert [text.get_text() for text in display.axes_[6].texts] == ["3 more →"]


def test_tables_of_every_kind():
    pd = pytest.importorskip("pandas", reason="data frames")
    pl = pytest.importorskip("polars", reason="data frames")
    names = ["one", "a name that is much too long to stand beside a picture"]
    frame = pd.DataFrame(next(stream(2)), columns=names)
    for table, output in ((frame, "pandas"), (pl.from_pandas(frame), "polars"), (frame, "default")):
        t = BatchNormTransformer().fit(table).set_output(transform=output)
        display = NormalizationDisplay.from_estimator(t, table)
        assert display.feature_names == names
        np.testing.assert_array_equal(display.before, frame.to_numpy())
        assert display.axes_[2].get_ylabel() == "a name that is …side a picture"


def test_names_that_look_the_same_when_short_have_their_place():
    names = [f"the temperature in hall {i} of the old factory" for i in range(3)]
    display = RunningStatsDisplay([1, 2], np.zeros((2, 3)), np.ones((2, 3)), names).plot()
    texts = [panel.texts[0].get_text() for panel in display.axes_]
    assert texts == [f"[{i}] the temperature…he old factory" for i in range(3)]


EXTREME = {  # columns whose bins, limits or ticks are beyond what floats can tell apart or hold
    "two neighbors": [0.3, 0.30000000000000004],
    "large neighbors": [1e16, 1e16 + 2],
    "the largest": [1.7e308, -1.7e308],
    "two of the largest": [1.7e308, 1.69e308],
    "a constant of the largest": [1.7e308, 1.7e308],
    "the smallest": [5e-324, 1e-323],
    "infinity": [np.inf, 1.0],
}


EXTREME_STATISTICS = {
    "the largest": (1.7e308, 0.0),
    "the least": (-1.7e308, 1.0),
    "both large": (1.7e308, 9e307),
    "infinity": (1e300, np.inf),
    "the smallest": (5e-324, 0),
}


@pytest.mark.parametrize("features", [1, 7])
@pytest.mark.parametrize("name", EXTREME)
def test_extreme_tables(name, features):
    x = np.random.default_rng(0).normal(size=(10, features))
    x[:, 0] = EXTREME[name] * 5
    display = NormalizationDisplay(x, np.tanh(x), [f"f{i}" for i in range(features)]).plot()
    display.figure_.canvas.draw()


@every_pair("statistics", EXTREME_STATISTICS, moments=[1, 3], features=[1, 13])
def test_extreme_statistics(statistics, moments, features):
    mean, std = EXTREME_STATISTICS[statistics]
    means = np.full((moments, features), mean)
    means[0] /= 2
    stds = np.full((moments, features), std)
    display = RunningStatsDisplay(np.arange(1, moments + 1), means, stds, [f"f{i}" for i in range(features)]).plot()
    display.figure_.canvas.draw()
    assert (display.mean == means).all()  # it is drawn at a limit, not changed


def test_choice_of_features():
    t, x = fitted(5), next(stream(5))
    display = RunningStatsDisplay.from_estimator(t, features=[4, "x1", -2])
    assert display.feature_names == ["x4", "x1", "x3"]
    np.testing.assert_array_equal(display.mean, t.history_.mean[:, [4, 1, 3]])
    np.testing.assert_array_equal(NormalizationDisplay.from_estimator(t, x, features=["x2"]).before, x[:, [2]])
    for features in (["x9"], [5], [1.5], [None], [True, False]):
        with pytest.raises(ValueError, match="RunningStatsDisplay: features: expected indices or names of 5 features"):
            RunningStatsDisplay.from_estimator(t, features=features)
    for features in ("x1", 1):
        with pytest.raises(TypeError, match=f"features: expected a sequence of indices or names, got {features!r}"):
            RunningStatsDisplay.from_estimator(t, features=features)
    for ax in (plt.subplots(1, 2)[1], 3):
        with pytest.raises(TypeError, match=r"Display: ax: expected one matplotlib Axes, got (numpy.ndarray|int)$"):
            NormalizationDisplay.from_estimator(t, x, ax=ax)
    with pytest.raises(ValueError, match="features: expected at least one"):
        RunningStatsDisplay.from_estimator(t, features=[])


@pytest.mark.parametrize("features", [1, 5, 20])
def test_in_axes_of_your_own(features):
    figure = Figure(figsize=(8, 9), layout="constrained")
    upper, lower = figure.subplots(2)
    t, x = fitted(features), next(stream(features))
    first = RunningStatsDisplay.from_estimator(t, ax=upper)
    second = NormalizationDisplay.from_estimator(t, x, ax=lower)
    figure.canvas.draw()
    assert (first.figure_, first.ax_, second.ax_) == (figure, upper, lower)
    lowest = min(panel.get_position().y0 for panel in first.axes_)
    highest = max(panel.get_position().y1 for panel in second.axes_)
    assert highest < lowest
    assert not plt.get_fignums()


def test_axes_placed_by_hand():
    ax = Figure().add_axes((0.1, 0.1, 0.5, 0.5))
    assert RunningStatsDisplay.from_estimator(fitted(1), ax=ax).ax_ is ax
    with pytest.raises(ValueError, match="ax: expected axes of a grid, as plt"):
        RunningStatsDisplay.from_estimator(fitted(2), ax=ax)


def test_large_tables_are_sampled():
    x = np.random.default_rng(0).normal(size=(250_001, 1))
    display = NormalizationDisplay.from_estimator(StandardScaler().fit(x), x)
    np.testing.assert_array_equal(display.before, x[::3])


def test_errors():
    for display, more in ((RunningStatsDisplay, ()), (NormalizationDisplay, (np.ones((3, 2)),))):
        with pytest.raises(NotFittedError):
            display.from_estimator(BatchNormTransformer(), *more)
    x = next(stream(2))
    with pytest.raises(ValueError, match="expected one with one output for each feature, got PolynomialFeatures"):
        NormalizationDisplay.from_estimator(PolynomialFeatures().fit(x), x)
    with pytest.raises(TypeError, match=r"Display: estimator: expected a transformer, got bnorm.*BatchNorm1d"):
        NormalizationDisplay.from_estimator(BatchNorm1d(2), x)
    with pytest.raises(TypeError, match="expected one with mean_ and var_, got GroupedTransformer: see GroupsDisplay"):
        RunningStatsDisplay.from_estimator(GroupedTransformer(0).fit(x.round()))


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"RunningStatsDisplay: .* pip install 'bnorm\[plot\]'"):
        RunningStatsDisplay.from_estimator(fitted(1))


def test_import_does_not_bring_matplotlib():
    code = "import sys, bnorm.plot; raise SystemExit('matplotlib' in sys.modules or 'sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=child.LIMIT).returncode == 0


@pytest.mark.parametrize("features", [1, slow(3), 14])
@pytest.mark.parametrize("stamps", [True, False])
def test_over_time(features, stamps):
    """Where rows have times, the record is drawn over them."""
    rng = np.random.default_rng(0)
    hours = np.cumsum(rng.exponential(1.0, 400)) + 1000 * (np.arange(400) > 200)  # with a long silence
    times = np.datetime64("2024-05-01", "ns") + (hours * 3.6e12).astype("m8[ns]") if stamps else hours * 3600
    t = BatchNormTransformer(window="3h", history=20)
    for part in np.split(np.arange(400), 20):
        t.partial_fit(rng.normal(size=(20, features)), times=times[part])
    display = RunningStatsDisplay.from_estimator(t)
    np.testing.assert_array_equal(display.times, t.history_.times)
    display.figure_.canvas.draw()
    panel = display.axes_[-1]
    assert panel.get_xlabel() == ("time" if stamps else "seconds")
    if features <= 12:
        line = next(line for line in panel.lines if len(line.get_xdata()) == 20)
        np.testing.assert_array_equal(line.get_xdata(), display.times)
    assert any(label.get_text() for label in panel.get_xticklabels())
    one = RunningStatsDisplay.from_estimator(
        BatchNormTransformer(halflife="1h", history=5).fit(table_of(), times=hours)
    )
    one.figure_.canvas.draw()  # a single moment


def table_of(features=2):
    return np.random.default_rng(1).normal(size=(400, features))


@pytest.mark.parametrize("features", [2, 30])
def test_names_are_no_formulas(features):
    names = ["price in $\\frac$", *(f"x{i}" for i in range(1, features))]
    pd = pytest.importorskip("pandas", reason="frames have names")
    frame = pd.DataFrame(table_of(features=features), columns=names)
    t = BatchNormTransformer().fit(frame)
    for display in (RunningStatsDisplay.from_estimator(t), NormalizationDisplay.from_estimator(t, frame)):
        display.figure_.canvas.draw()
        assert names[0] in {text.get_text() for text in display.figure_.findobj(mpl.text.Text)}


@pytest.mark.parametrize("step", ["1s", "1min", "1h", "3D", "1000D"])
@pytest.mark.parametrize("batches", [2, 3, 4, 5, 30])
def test_times_at_any_distance_have_ticks(step, batches):
    """And matplotlib has nothing to warn of."""
    t, x = BatchNormTransformer(halflife=step, history=40), table_of(features=1)
    for i in range(batches):
        now = np.datetime64("2024-01-01", "ns") + i * np.timedelta64(nanoseconds(step), "ns")
        t.partial_fit(x, times=np.full(len(x), now))
    display = RunningStatsDisplay.from_estimator(t)
    display.figure_.draw_without_rendering()
    axis = display.axes_[0].xaxis
    low, high = axis.get_view_interval()
    assert sum(low <= tick <= high for tick in axis.get_majorticklocs()) >= 2
