"""The programs beside the benchmark suite: traffic, limits and bounds, how cost grows, and their pages."""

import argparse
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import (
    adapters,
    bounds,
    busy,
    copying,
    distributed,
    engines,
    exact_moments,
    groups,
    growth,
    limits,
    masks,
    nearby,
    page,
    row_lengths,
    shapes,
    streams,
    text,
    threshold,
    timing,
)

from benchmark_runs import BRIEF, local, small_copies  # noqa: F401
from bnorm.kernels.cpu import entries

pytestmark = pytest.mark.bench
ROOT = Path(__file__).parents[2]
PROGRAMS = [path.stem for path in sorted(ROOT.glob("benchmarks/*.py")) if '"__main__"' in path.read_text("utf-8")]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_says_what_it_does_and_refuses_unknown_arguments(name, capsys, monkeypatch):
    module = f"benchmarks.{name}"
    for argument, status in (("--help", 0), ("--nothing", 2)):
        monkeypatch.delitem(sys.modules, module, raising=False)  # or runpy warns
        monkeypatch.setattr(sys, "argv", [f"{name}.py", argument])
        with pytest.raises(SystemExit) as caught:
            runpy.run_module(module, run_name="__main__")
        said = capsys.readouterr()
        assert caught.value.code == status
        assert (said.out == "") == bool(status)
        assert "".join(f"{said.out}{said.err}".split()).startswith(f"usage:python-m{module}".removesuffix(".__main__"))
        if not status:
            assert len(said.out.partition("options:")[0].split("\n\n", 1)[1].strip()) > 20, "a description"


def test_how_cost_grows():
    ours = local("bnorm")
    point = growth._point(ours, 1, 20, 3)
    assert set(point) == {"forward", "inference", "backward"}
    peaks = growth.peaks("bnorm", 3, 50, 4)
    assert len(peaks) == 4
    assert peaks == sorted(peaks)
    curve = [[10**k, {"forward": 2.0 * 10**k}] for k in range(3)]
    stream = {"bnorm": [1024] * 2 + [2048] * (growth.STREAM[0] - 1)}
    written = growth.report({"curves": {"N": curve, "C": curve}, "stream": stream}).split()
    assert written.count("1.00") == 4
    assert written[-6:] == ["bnorm", "1.0", "1.0", "2.0", "2.0", "2.0"]


@pytest.mark.parametrize("kind", row_lengths.KINDS)
def test_rows_of_every_length_are_there(kind):
    for length in row_lengths.LENGTHS:
        case = row_lengths.case_of(kind, length, 1 << 16)
        groups = {"layer": 1, "rms": 1, "group": 8, "instance": case.sizes[1]}[kind]
        assert case.values == length * groups * case.sizes[0]
        assert case.values <= 1 << 16


def test_the_table_of_row_lengths(tmp_path):
    took = {"bnorm": [1, 2, 3], "bnorm out=": [1, 1, 1], "PyTorch": [2, 3, 4]}
    found = [
        (length, {"operation": operation, "threads": threads, "ms": took})
        for length in (8, 16)
        for threads in (1, 2)
        for operation in ("forward", "backward")
    ]
    lines = row_lengths.table(found)
    assert lines[0][1:4] == ["forward fresh 1", "forward out= 1", "backward fresh 1"]
    assert [line[1:3] for line in lines[1:]] == [["1.50", "3.00"]] * 3
    assert max(map(len, row_lengths.narrow(lines))) < 100
    row_lengths.save(text.markdown(lines), tmp_path / "rows.md", None)
    assert "| 16 | 1.50 |" in (tmp_path / "rows.md").read_text(encoding="utf-8")


def test_row_lengths_are_measured():
    local("torch")
    found = row_lengths.run("rms", [8], 64, [1], process=timing.Local, effort=BRIEF)
    assert len(row_lengths.table(found)) == 3


def traffic():
    try:
        return adapters.load(bounds.LEAST)
    except adapters.Missing as error:
        pytest.skip(f"traffic.c: {error}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sent", [0, 1])
@pytest.mark.parametrize("kind", ["batch", "layer"])
def test_traffic_leaves_nothing_out(kind, sent, threads, dtype):
    adapter = traffic().adapters[kind](shapes.Data(shapes.Case(kind, (3 * 2048, 2)), dtype))
    chunks = [slice(i, i + 2048) for i in range(0, 12288, 2048)]
    cuts = chunks if kind == "layer" else [slice(i, i + 12288 // threads) for i in range(0, 12288, 12288 // threads)]
    x, dy, y = adapter.x.astype(np.float64), adapter.dy.astype(np.float64), adapter.y
    for operation, number in adapter.numbers.items():
        y.fill(np.nan)
        adapter.function(number, sent, threads, *adapter.rest)
        for cut in cuts:
            if operation == "inference":
                want = x[cut] + 1
            elif operation == "forward":
                want = (x[cut] + 1) * x[cut].sum()
            else:
                want = (x[cut] + dy[cut] + 1) * (dy[cut].sum() + dy[cut] @ x[cut])
            np.testing.assert_allclose(y[cut], want, rtol=0, atol=2e-5 * np.abs(want).max())


def test_traffic_of_statistics_reads_everything():
    table = traffic().adapters["scaler"](shapes.Data(shapes.Case("scaler", (3 * 2048, 2)), "float32"))
    table.fit()
    np.testing.assert_allclose(table.y[0], table.x.sum(dtype=np.float64), rtol=0, atol=2e-5 * np.abs(table.x).sum())


def test_limits_are_those_of_the_same_run():
    row = {"kind": "batch", "shape": "(2, 3)", "operation": "forward", "dtype": "float32", "threads": 1, "bytes": 2e6}
    took = {"bnorm": [1, 2, 3], "bnorm out=": [1, 2, 3], "PyTorch": [2, 8, 9], "traffic": [1, 1, 3]}
    rows = [row | {"ms": took}, row | {"ms": took, "shape": "(1000000, 100)"}]
    rows = [each | {"copy": {"memory": 4.0}} for each in rows]
    assert [line[2:4] for line in limits.over_peers(rows)] == [["4.00", "8.00"]]
    assert [line[2:4] for line in limits.of_copy(rows)] == [["0.25", "0.50"]]


def test_limits_of_weights_are_ratios(monkeypatch):
    traffic()
    took = {"plain": 2.0, "weights": 3.0, "uint8": 4.0, "read weights": 1.0, "read uint8": 0.5}

    def in_turn(calls, length):
        for call in calls.values():
            call()
        return {name: took[name] for name in calls}

    monkeypatch.setattr(limits, "quickest", in_turn)
    assert [line[2:4] for line in limits.of_weights([(64, 3)])] == [["1.50", "1.50"], ["2.00", "1.25"]]


def test_small_calls_are_measured():
    lines = limits.of_calls(50)
    assert [line[0].split()[0] for line in lines] == ["training", "inference"]
    assert all(float(number) > 0 for line in lines for number in line[2:4])


def test_the_table_of_bounds(tmp_path):
    took = {"bnorm": [1, 2, 3], "bnorm out=": [1, 1.5, 2], "PyTorch": [2, 3, 4], "traffic": [1, 2, 3]}
    about = {"kind": "batch", "shape": "(2, 3)", "operation": "forward", "dtype": "float32", "threads": 1}
    ((title, rows),) = bounds.parts([about | {"ms": took}])
    lines = bounds.table(rows)
    assert title == "Batch norm, forward, float32, threads: 1"
    assert lines[0][1:] == ["traffic, ms", "bnorm / traffic", "bnorm out= / traffic", "PyTorch / traffic"]
    assert lines[1][1:] == ["2", "1.00", "0.75", "1.50"]
    assert lines[2][2:] == ["1.00", "0.75", "1.50"]
    bounds.save(text.markdown(lines), tmp_path / "bounds.md", None)
    assert "| geometric mean |" in (tmp_path / "bounds.md").read_text(encoding="utf-8")


def test_what_was_measured_beside_slow_copies_is_measured_again(monkeypatch):
    monkeypatch.setattr(copying, "STEADY", 0.85)
    monkeypatch.setattr(copying.time, "sleep", lambda seconds: None)
    speeds = iter([40, 41, 25, 26, 30, 24, 39, 40, 38, 37])

    class Shared(copying.Copy):
        def __init__(self):
            self.memory = []

        def sample(self):
            self.memory.append(float(next(speeds)))
            return self.memory[-1:], 1.0

    copy, works = Shared(), iter("abcd")
    assert copy.beside(lambda: next(works)) == ("a", {"memory": 40.5, "cache": 1.0})
    # 25 and 26 are slow; then 30 and 24, and with 39 the machine is what it was
    assert copy.beside(lambda: next(works)) == ("c", {"memory": 39.0, "cache": 1.0})


def test_of_slow_copies_the_quickest_count(monkeypatch):
    monkeypatch.setattr(copying, "STEADY", 0.85)
    monkeypatch.setattr(copying.time, "sleep", lambda seconds: None)
    speeds = iter([10, 10, 20, 20, 30, 28, 12, 11])
    copy = copying.Copy.__new__(copying.Copy)
    copy.memory, copy.patience = [100.0], 2
    monkeypatch.setattr(copy, "sample", lambda: ([float(next(speeds))], 1.0))
    works = iter("abcd")
    assert copy.beside(lambda: next(works)) == ("b", {"memory": 29.0, "cache": 1.0})
    assert copy.beside(lambda: next(works)) == ("c", {"memory": 11.5, "cache": 1.0})  # nothing is left to wait with


def test_bounds_are_measured():
    local("torch")
    traffic()
    found = bounds.run([shapes.batch(12, 3)], ["float32"], [1], process=timing.Local, effort=BRIEF)
    assert [row["operation"] for row in found] == ["forward", "inference", "backward"]
    assert len(bounds.table(found)) == 5


def test_the_threshold_finds_its_constant():
    source = (threshold.ROOT / "src/bnorm/kernels/cpu/threads.pyx").read_text(encoding="utf-8")
    assert len(threshold.CONSTANT.findall(source)) == 1


def test_a_busy_machine_is_measured():
    with busy.neighbors(1):
        found = busy.compare(busy.cases()["transform (10000, 20)"], 2, duration=0.01, blocks=2)
    assert all(0 < median <= late and mean > 0 for median, late, mean in found)


def test_a_caller_that_reads_its_results_is_measured():
    seen = []
    for call in busy.cases_that_are_read().values():
        found = busy.compare(call, 2, seen.append, duration=0.005, blocks=1)
        assert all(0 < median <= late and mean > 0 for median, late, mean in found)
    assert {y.shape for y in seen if y is not None} == {(2048, 64)}
    busy.read(seen[-1])


def test_a_net_in_numpy_is_measured():
    for step in busy.cases_in_a_net().values():
        found = busy.compare(step, 2, duration=0.005, blocks=1)
        assert all(0 < median <= late and mean > 0 for median, late, mean in found)


def test_calls_that_look_are_measured():
    habit = entries.use_habit()
    found = list(nearby.lines([1], 1e-4, 1))
    assert len(found) == 8 and all(float(number) > 0 for line in found for number in line[2:])
    assert entries.use_habit()["most"] == habit["most"]


def test_other_sizes_are_measured(monkeypatch, capsys):
    """--instead: the built-in sizes are in use again in the end."""
    monkeypatch.setattr(nearby, "LEARNING", 1)
    monkeypatch.setattr(sys, "argv", "nearby --sizes 1 --seconds 1e-4 --threads 1 --instead far=1 stream=2".split())
    before = entries.use_sizes()
    nearby.main()
    assert len(capsys.readouterr().out.splitlines()) == 10 and entries.use_sizes() == before
    with pytest.raises(argparse.ArgumentTypeError, match="expected NAME=BYTES with one of stream"):
        nearby.size_in("streams=1")


def test_times_and_windows_are_measured(capsys):
    streams.main(["--quick"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(streams.KINDS) + 2
    assert all(any(name in line for line in lines) for name in streams.KINDS)


def test_costs_of_masks():
    table, images = (next(masks.lines("", 1e-4, [shape], ["float32"])) for shape in [(40, 3), (4, 3, 2, 2)])
    assert table[0].startswith("float32 (40, 3), 1 thread") and all(table[2:])
    assert images[2] and not images[-1]  # rows alone fade


def test_costs_of_exact_moments(monkeypatch, capsys):
    monkeypatch.setattr(exact_moments, "SHAPES", [(40, 3), (4, 3)])
    monkeypatch.setattr(exact_moments, "SECONDS", 1e-4)
    costs = list(exact_moments.measured(""))
    assert {cost.dtype for cost in costs} == set(exact_moments.GOALS) and all(cost.exact > 0 for cost in costs)
    slower = [cost._replace(level="baseline", exact=3 * cost.plain) for cost in costs]
    lines = exact_moments.tables([*costs, *slower], 0.0)
    assert [line.split(" | ")[0] for line in lines[4:6]] == ["| (40, 3)", "| (4, 3)"] and "µs" in lines[5]
    assert lines[-1] == "| neither | 3.00 to 3.00 | 3.00 to 3.00 | 3.00 to 3.00 | 3.00 to 3.00 |"
    text = "above\n<!-- costs:begin -->\nold\n<!-- costs:end -->\nbelow"
    new = exact_moments.replaced(text, lines)
    assert new.startswith("above\n") and new.endswith("below") and "old" not in new and lines[5] in new
    with pytest.raises(ValueError, match="once each"):
        exact_moments.replaced("nothing", lines)
    exact_moments.measure("float32 (40")
    assert capsys.readouterr().out.count("float32 (40, 3)") == len({cost.threads for cost in costs})


def test_the_page_has_a_place_for_the_costs():
    text = exact_moments.PAGE.read_text(encoding="utf-8")
    assert exact_moments.replaced(text, ["x"]).count("x") > 0


def test_groups_and_their_table(monkeypatch, tmp_path):
    pytest.importorskip("pandas", reason="bnorm's own time is that with its table")
    line = groups.measured(3000, 4, "sorted", 1, ["pandas"])
    assert line[:2] == ["4", "sorted"] and len(line) == len(groups.HEADS)
    assert line[3] == line[5] == "" and line[4].endswith("×")
    monkeypatch.setattr(page, "DOCS", tmp_path)
    path = tmp_path / "groups.md"
    path.write_text((ROOT / "docs" / "groups.md").read_text(encoding="utf-8"), encoding="utf-8")
    page.save("groups.md", "groups", [groups.HEADS, line], "3,000 rows", 0.05)
    found = path.read_text(encoding="utf-8").partition("<!-- groups:begin -->")[2].partition("<!-- groups:end -->")[0]
    assert "| 4 | sorted |" in found and "3,000 rows, on " in found and "Other programs" not in found
    assert found.count("| sorted |") == 1


@pytest.mark.parametrize("name", ["distributed", "datasets"])
def test_pages_have_the_places_of_their_tables(name):
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for place in distributed.MEASUREMENTS if name == "distributed" else ["datasets"]:
        assert "| a |\n| --- |\n" in page.saved(text, place, [["a"]], "rows", None)


def test_calls_of_engines_are_repeated_in_a_row(monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(engines, "ROUNDS", 2)
    turns = []
    groups = [
        {name: lambda name=name: turns.append(name) for name in names} for names in [("fit", "their fit"), ("map",)]
    ]
    lines = engines.best(*groups)
    assert turns == ["fit", "fit", "their fit", "their fit", "map", "map"]
    assert [line[0] for line in lines[1:]] == ["fit", "their fit", "map"]
    assert [bool(line[2]) for line in lines[1:]] == [False, True, False]
    tables = list(engines.tables(600_000))
    assert [t.num_rows for t in tables] == [500_000, 100_000] and tables[0].column_names == engines.COLUMNS
