"""The picture of groups: what is drawn is where it belongs."""

import numpy as np
import pytest

from bnorm import BatchNormTransformer, GroupedTransformer

pytest.importorskip("matplotlib", reason="it draws")
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from bnorm.plot import GroupsDisplay, NormalizationDisplay


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def fitted(groups, features=2):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20 * groups, 1 + features))
    x[:, 0] = np.arange(len(x)) % groups
    x[:, 1] += 10 * x[:, 0]
    return GroupedTransformer(0).fit(x)


def test_few_groups():
    t = fitted(4)
    display = GroupsDisplay.from_estimator(t)
    assert len(display.axes_) == 2
    panel = display.axes_[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["0", "1", "2", "3"]
    (points,) = (line for line in panel.lines if line.get_marker() == "o")
    np.testing.assert_allclose(points.get_xdata(), t.means_[:, 0])
    ends = np.array([segment[:, 0] for segment in panel.collections[0].get_segments()])
    np.testing.assert_allclose(np.diff(ends)[:, 0] / 2, np.sqrt(t.vars_[:, 0]))
    assert panel.get_xlabel() == "x1"
    assert any(np.allclose(line.get_xdata(), t.whole_.mean[0]) for line in panel.lines)
    display.figure_.canvas.draw()


def test_of_many_groups_the_extremes():
    t = fitted(500, 1)
    display = GroupsDisplay.from_estimator(t, most=6)
    (panel,) = display.axes_
    order = np.argsort(t.means_[:, 0])
    expected = [str(int(g)) for g in t.groups_[np.r_[order[:3], order[-3:]]]]
    assert [label.get_text() for label in panel.get_yticklabels()] == expected
    assert [text.get_text() for text in panel.texts] == ["494 groups between"]
    display.figure_.canvas.draw()


def test_groups_without_values_and_several_keys():
    nan = float("nan")
    t = GroupedTransformer([0, 1]).fit([[1, 1, nan, 3.0], [1, 2, 5.0, 4.0]])
    display = GroupsDisplay.from_estimator(t)
    assert [len(panel.get_yticklabels()) for panel in display.axes_] == [1, 2]
    assert display.axes_[1].get_yticklabels()[0].get_text() == "1, 1"
    display.figure_.canvas.draw()
    for rows in ([[1, nan, 2.0], [2, nan, 3.0]], [[nan, 5.0, 2.0], [nan, 6.0, 3.0]]):  # no group has a value, or a key
        display = GroupsDisplay.from_estimator(GroupedTransformer(0).fit(rows))
        assert len(display.axes_[0].get_yticklabels()) == 0
        display.figure_.canvas.draw()


def notes(display):
    return [ax.get_legend().get_title().get_text() for ax in display.figure_.axes if ax.get_legend()]


def test_values_that_are_close_are_written_out():
    """A part that all labels have in common would stand upon the name of the axis."""
    t = fitted(3, 1)
    display = GroupsDisplay(t.groups_, 1e6 + t.means_ * 1e-4, t.vars_ * 1e-4, [1e6], [1e-4], ["x"]).plot()
    display.figure_.draw_without_rendering()
    (panel,) = display.axes_
    assert panel.xaxis.get_offset_text().get_text() == ""
    assert any("1000000.00" in label.get_text() for label in panel.get_xticklabels())


def test_chosen_features_and_errors():
    display = GroupsDisplay.from_estimator(fitted(3, 9))
    assert len(display.axes_) == 6
    assert notes(display) == ["The first 6 of 9 features."]
    assert notes(GroupsDisplay.from_estimator(fitted(3, 6))) == [""]
    _, ax = plt.subplots()
    assert GroupsDisplay.from_estimator(fitted(3, 9), features=["x9", 0], ax=ax).feature_names == ["x9", "x1"]
    with pytest.raises(TypeError, match=r"GroupsDisplay: expected a GroupedTransformer, got .*BatchNormTransformer$"):
        GroupsDisplay.from_estimator(BatchNormTransformer().fit([[1.0]]))
    with pytest.raises(ValueError, match="GroupsDisplay: features: expected indices or names of 9 features, got 'y'"):
        GroupsDisplay.from_estimator(fitted(3, 9), features=["y"])
    with pytest.raises(ValueError, match="most: expected a positive integer"):
        GroupsDisplay.from_estimator(fitted(3), most=0)


def test_keys_and_names_are_no_formulas():
    t = GroupedTransformer("key").fit(
        pytest.importorskip("pandas").DataFrame({"key": ["$\\a$", "b"], "$\\c$": [1.0, 2]})
    )
    display = GroupsDisplay.from_estimator(t)
    display.figure_.canvas.draw()
    assert [label.get_text() for label in display.axes_[0].get_yticklabels()] == ["$\\a$", "b"]
    assert display.axes_[0].get_xlabel() == "$\\c$"


def test_keys_and_times_are_not_drawn_before_and_after():
    pd = pytest.importorskip("pandas", reason="columns of times")
    pa = pytest.importorskip("pyarrow", reason="columns of times")
    frame = pd.DataFrame({"ts": pd.to_datetime(range(4), unit="h"), "a": [1.0, 2, 4, 8], "key": list("xyxy")})
    by_groups = GroupedTransformer("key", halflife="1h")
    for t, columns in ((BatchNormTransformer(halflife="1h"), ["ts", "a"]), (by_groups, ["ts", "a", "key"])):
        table = frame[columns]
        t.fit(table, times="ts")
        for kind in (table, pa.Table.from_pandas(table)):
            display = NormalizationDisplay.from_estimator(t, kind)
            assert display.feature_names == ["a"]
            np.testing.assert_array_equal(display.before, frame[["a"]])
            np.testing.assert_array_equal(display.after, t.transform(table))
