"""The benchmark suite: on tiny cases it checks, times and writes its table, and wrong results are not timed."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from benchmarks import __main__ as suite
from benchmarks import (
    adapters,
    exact,
    machine,
    plot,
    processes,
    shapes,
    store,
    table,
    targets,
    text,
    timing,
    types,
)

import bnorm
from benchmark_runs import BRIEF, copy_little, local, small_copies  # noqa: F401

pytestmark = pytest.mark.bench
TINY = [
    shapes.batch(12, 3),
    shapes.batch(4, 3, 5),
    shapes.batch(4, 3, 2, 5),
    shapes.batch(4, 3, 2, 5, channels_last=True),
    shapes.Case("layer", (12, 3)),
    shapes.Case("group", (4, 6, 2, 5), groups=2),
    shapes.Case("instance", (4, 3, 2, 5)),
    shapes.Case("scaler", (12, 3)),
]
BY_KIND = {case.kind: case for case in TINY} | {"rms": shapes.Case("rms", (12, 3))}
ALWAYS = ["bnorm", "numpy", "sklearn"]
NETS = ["batch", "layer", "group", "instance"]
KINDS = {
    "bnorm": [*NETS, "rms", "scaler"],
    "numpy": [*NETS, "scaler"],
    "torch": [*NETS, "rms"],
    "sklearn": ["scaler"],
    "intelex": ["scaler"],
    "river": ["scaler"],
    "jax": NETS,
    "torch_compiled": [],  # half a minute to compile
}


def measured(case, library, dtype="float32"):
    return timing.measure(case, dtype, 1, [library], BRIEF, exact.exact(shapes.Data(case, dtype)))


@pytest.fixture(scope="module")
def kept():
    with pytest.MonkeyPatch.context() as monkeypatch:
        copy_little(monkeypatch)
        found = suite.run(TINY, ["float32", "float64"], [1, 2], 2, ALWAYS, BRIEF, process=timing.Local)
    return json.dumps(found)


@pytest.fixture
def results(kept):
    return json.loads(kept)


def test_every_row_is_there(results):
    rows = {(row["shape"], row["operation"], row["dtype"], row["threads"]): row for row in results["rows"]}
    wanted = {
        (case.name, operation, dtype, threads)
        for case in TINY
        for operation in case.passes
        for dtype in ["float32", "float64"]
        for threads in [1, 2]
    }
    assert set(rows) == wanted
    assert len(results["rows"]) == len(wanted)
    for (_, operation, _, threads), row in rows.items():
        peer = "scikit-learn" if row["kind"] == "scaler" else "NumPy"
        assert {"bnorm", peer} - ({"NumPy"} if threads == 1 else set()) <= set(row["ms"])
        assert ("bnorm out=" in row["ms"]) == (row["kind"] != "scaler")
        assert ("NumPy" in row["ms"]) == (threads == 2 and operation != "partial_fit")
        assert {label.removesuffix(" out=") for label in row["ms"]} == set(row["error"])
        assert all(0 < low <= median <= high for low, median, high in row["ms"].values())
    assert rows["(12, 3)", "backward", "float32", 1]["bytes"] == 5 * 36 * 4
    assert rows["scaler (12, 3)", "fit", "float64", 2]["bytes"] == 36 * 8
    assert rows["layer norm (12, 3)", "backward", "float64", 2]["bytes"] == 3 * 36 * 8


def test_every_case_has_a_name_of_its_own():
    names = [case.name for case in shapes.NAMED + shapes.OTHER]
    assert len(set(names)) == len(names)
    assert {case.kind for case in shapes.NAMED if case.quick} == {"batch", "layer", "group", "scaler"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name in adapters.NAMES for kind in KINDS[name]])
def test_a_wrong_result_is_refused_before_it_is_timed(name, kind, dtype, monkeypatch):
    library = local(name)
    assert measured(BY_KIND[kind], library, dtype)
    adapter = library.library.adapters[kind]
    right = adapter.arrays

    def wrong(self, operation, result):
        *arrays, last = right(self, operation, result)
        last = last if last.ndim > 1 and last.flags.writeable else np.array(last)
        last.flat[1] += 0.01
        return *arrays, last

    def timed(*arguments):
        raise AssertionError("a wrong result was timed")

    monkeypatch.setattr(adapter, "arrays", wrong)
    monkeypatch.setattr(timing, "in_turns", timed)
    with pytest.raises(timing.WrongResult, match=f"^{library.about.name}.*: expected to be within"):
        measured(BY_KIND[kind], library, dtype)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda y, out: y[:-1], "expected shapes"),
        (lambda y, out: y.astype("float64"), "expected float32, got float64"),
        (lambda y, out: np.multiply(y, np.nan, out=y), "got nan"),
        (lambda y, out: y.copy(), "expected the result in out"),
    ],
)
def test_what_else_is_wrong_with_a_result(broken, message, monkeypatch):
    library = local("numpy")
    adapter = library.library.adapters["batch"]
    right = adapter.forward
    monkeypatch.setattr(adapter, "forward", lambda self, out=None: broken(right(self, out), out))
    with pytest.raises(timing.WrongResult, match=message):
        measured(TINY[0], library)


def test_a_library_in_a_process_of_its_own():
    with processes.Remote("numpy") as library:
        with pytest.raises(AttributeError, match="worker"):
            library.turn("forward", BRIEF, False)  # no case is open
        library.close()
        for case in TINY[:2]:  # each in a new copy of the process
            rows = measured(case, library)
            assert [row["operation"] for row in rows] == ["forward", "inference", "backward"]
            assert set(rows[0]["ms"]) == {"NumPy", "NumPy out="}
        with pytest.raises(RuntimeError, match="numpy: its process died, status"):
            library.apply(os._exit, 3)
        assert len(measured(TINY[0], library)) == 3


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Cores can be chosen on Linux only.")
def test_libraries_on_one_thread_have_the_same_core():
    every = os.sched_getaffinity(0)
    with processes.Remote("numpy") as library:
        for threads, cores in [(1, {max(every)}), (2, every)]:
            library.open(TINY[0], "float32", threads)
            assert library.apply(os.sched_getaffinity, 0) == cores
            library.close()


def test_a_library_that_is_not_there_is_named_with_the_reason(monkeypatch):
    found = suite.run(TINY[:1], ["float32"], [1], 2, ["bnorm", "nothing_of_that_name"], BRIEF)
    reason = "No module named 'benchmarks.adapters.nothing_of_that_name'"
    assert found["machine"]["missing"] == {"nothing_of_that_name": reason}
    assert set(found["machine"]["versions"]) == {"bnorm"}
    for written in (table.summary(found), table.by_shape(found, ""), table.brief(found), table.full(found)):
        assert f" nothing_of_that_name: {reason}." in " ".join(written.split())
        assert not re.search(r"\bnan\b", written)
    monkeypatch.delitem(sys.modules, "benchmarks.adapters.jax", raising=False)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(adapters.Missing, match=r"^not installed$"):
        adapters.load("jax")


def test_the_process_of_a_peer_does_not_import_bnorm():
    code = (
        "import sys, benchmarks.processes, benchmarks.growth, benchmarks.adapters.numpy; print('bnorm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=table.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n", "AMD EPYC (family 26)"),
        ("cpu family\t: 25\nmodel name\t: AMD EPYC 7763 64-Core Processor\n", "AMD EPYC 7763 64-Core Processor"),
        ("cpu family\t: 6\nmodel name\t: Intel(R) Xeon(R) Processor\n", "Intel(R) Xeon(R) Processor"),
        ("processor\t: 0\nBogoMIPS\t: 50\n", None),
    ],
)
def test_a_hidden_model_is_told_by_its_family(cpuinfo, name):
    assert machine.named_in(cpuinfo) == name


def test_the_table_is_written(results, tmp_path, monkeypatch):
    for module in (store, table):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    store.save(results, tmp_path / "results" / "here.json")
    again = store.saved()
    assert again == {"here": results}
    text = "before\n<!-- benchmark:begin -->\nwhat was there\n<!-- benchmark:end -->\nafter"
    written = table.replaced(text, again, table.by_shape)
    assert written.startswith("before\n<!-- benchmark:begin -->\n")
    assert written.endswith("\n<!-- benchmark:end -->\nafter")
    assert "what was there" not in written
    assert machine.processor() in written
    assert f"bnorm {bnorm.__version__}" in written
    assert "| `transform`, × scikit-learn |" in table.replaced(text, again, table.summary)
    for case in TINY:
        assert written.count(f"| {case.name} |") == 1
    full = table.full(results)
    for row in results["rows"]:
        assert f"{row['ms']['bnorm'][1]:.4g}" in full
    assert all(name in full for name in ["quartiles", "× NumPy", "× scikit-learn", "out=", "partial_fit"])


def test_losses_stay_in(results):
    for row in results["rows"]:
        row["ms"] = {"bnorm": [1.0, 2.0, 3.0], "PyTorch": [1.0, 1.0, 1.0], "scikit-learn": [1.0, 6.0, 6.0]}
    lost = sum(len(case.passes) for case in TINY[:-1])
    written = table.by_shape(results, "")
    assert written.count("**0.50×** |") == lost
    assert written.count("GB/s, 3.00× |") == 4
    written = table.summary(results)
    assert written.count(" **0.50**;") + written.count(" **0.50**.") == 2 * lost  # both types
    assert "| batch norm, training, × PyTorch | 0.50 (**0.50**) |" in written
    assert "| `fit`, × scikit-learn | 3.00 (3.00) |" in written
    assert "scikit-learn 3× (3.00×) in float32 on 1 thread" in written
    results["machine"]["versions"] |= {"PyTorch": "1"}
    assert "PyTorch: bnorm was faster in 0 of" in table.brief(results)


def test_quick_fits_a_terminal(results):
    widest = {group: max((c.name for c in shapes.NAMED if (c.kind == "scaler") == group), key=len) for group in (0, 1)}
    for row in results["rows"]:
        row["shape"] = widest[row["kind"] == "scaler"]
        peers = ("scikit-learn", "River") if row["kind"] == "scaler" else ("PyTorch", "JAX")
        row["ms"] |= {peer: [1.0, 1234.5 * row["ms"]["bnorm"][1], 2.0] for peer in ("NumPy", *peers)}
    results["machine"]["versions"] = dict.fromkeys(["bnorm", "NumPy", "PyTorch", "scikit-learn", "River", "JAX"], "1")
    written = table.brief(results)
    assert max(map(len, written.splitlines())) <= 100
    assert not re.search("target|met|MISSED", written)


@pytest.mark.parametrize("path", table.PAGES, ids=lambda path: path.parent.name + "/" + path.name)
def test_the_tables_are_those_of_the_saved_results(path):
    written = path.read_text(encoding="utf-8")
    assert table.replaced(written, store.saved(), table.PAGES[path]) == written, "python -m benchmarks.table"


def test_what_types_cost():
    found = types.measure((4000, 3), BRIEF)
    assert {"float64", "float16", "uint8", "float32, weights of rows"} <= set(found)
    assert all(ratio > 0 for each in found.values() for ratio in each.values())
    assert set(found["float16"]) == set(types.OPERATIONS)
    assert len({len(line) for line in types.lines(found)}) == 1


def row(shape="(9, 9)", operation="forward", kind="batch", dtype="float32", threads=2, nbytes=1e6, **ms):
    return {
        "kind": kind,
        "shape": shape,
        "operation": operation,
        "dtype": dtype,
        "threads": threads,
        "bytes": nbytes,
        "ms": {label.replace("_", " ").replace("out", "out="): [t, t, t] for label, t in ms.items()},
    }


def judged(rows, copy=100.0):
    """Each line of the table, cut at the columns."""
    rows = [each | {"copy": {"memory": copy, "cache": 2 * copy}} for each in rows]
    results = {"threads": [1, 2], "rows": rows}
    lines = targets.report(results).splitlines()[1:]
    return {target.what: line for target, line in zip(targets.TARGETS, lines, strict=True)}


@pytest.mark.parametrize(
    ("times", "verdict"), [((5.1, 5.1), "met"), ((1.4, 100.0), "MISSED"), ((1.6, 15.0), "MISSED"), ((1.6, 16.0), "met")]
)
def test_a_target_needs_its_mean_and_its_least(times, verdict):
    rows = [row(f"({i}, 1)", bnorm=1.0, PyTorch=t) for i, t in enumerate(times)]
    rows += [row("(0, 1)", threads=1, bnorm=1.0, PyTorch=0.1), row("(0, 1)", "inference", bnorm=1.0, PyTorch=0.1)]
    line = judged(rows)["forward, float32, over PyTorch"].split()
    assert line[-1] == verdict
    assert f"{text.geometric_mean(times):.2f}" in line
    assert "(0, 1) forward float32" in judged(rows)["forward, float32, over PyTorch"]
    assert judged(rows)["forward, float64, over PyTorch"].endswith("not measured")


def test_targets_against_the_copy_and_the_clock():
    lines = judged(
        [
            row("(1000000, 100)", bnorm=1.0, bnorm_out=0.011),  # 91 GB/s of 100
            row("(1000000, 100)", "inference", bnorm=1.0, bnorm_out=0.012),  # 83
            row("(1024, 256)", bnorm=1.0, bnorm_out=0.008),  # 125 of 200
            row("(32, 64)", bnorm=0.0029, bnorm_out=1.0),
            row("(32, 64)", "inference", bnorm=0.0021, bnorm_out=1.0),
        ]
    )
    for what, verdict in [
        ("forward, out=, of the roofline", "met"),
        ("inference, out=, of the roofline", "MISSED"),
        ("backward, out=, of the roofline", "not measured"),
        ("in cache, out=, of a copy in cache", "met"),
        ("forward call, µs", "met"),
        ("inference call, µs", "MISSED"),
        ("transform call, µs", "not measured"),
    ]:
        assert lines[what].endswith(verdict), lines[what]
    assert "0.91" in lines["forward, out=, of the roofline"]


def test_where_small_is_good_the_worst_is_the_largest():
    aim = targets.Target("call", targets.microseconds, ("batch",), ("forward",), ("float32",), 4, below=True)
    results = {"threads": [2], "rows": [row("(1, 1)", bnorm=0.0039), row("(2, 2)", bnorm=0.0041)]}
    line = targets.report(results, [aim]).splitlines()[1]
    assert "(2, 2)" in line
    assert line.endswith("MISSED")


def test_the_second_thread_is_asked_for_where_memory_and_size_allow_it():
    def pair(shape, one, both, size=2e6):
        times = {"bnorm": 9.0, "nbytes": size}
        return [row(shape, threads=1, bnorm_out=one, **times), row(shape, bnorm_out=both, **times)]

    what = "all threads over one"
    assert judged(pair("(1, 1)", 1.0, 0.6))[what].endswith("MISSED")
    assert judged(pair("(1, 1)", 1.0, 0.5))[what].endswith("met")
    assert judged(pair("(1, 1)", 1.0, 1.0, 1e6))[what].endswith("not measured")  # small: it stays on one thread
    assert judged(pair("(1, 1)", 1.0, 0.9), copy=3.9)[what].endswith("not measured")  # 2 GB/s alone, of 3.9


def test_the_slow_have_fewer_turns(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def turn(name, took):
        def take(effort, backwards):
            now[0] += took
            return {name: [(took, 0.0)]}

        return take

    effort = timing.Effort(processes=1, rounds=6, least=2, budget=1.0, sample=1.0)
    samples = {}
    timing.in_turns([turn("quick", 0.1), turn("slow", 0.7), turn("slower", 0.9), turn("long", 9.0)], effort, samples)
    assert {name: len(found) for name, found in samples.items()} == {"quick": 6, "slow": 2, "slower": 2, "long": 1}


def test_the_plot_is_drawn(results, tmp_path):
    pytest.importorskip("matplotlib")
    results["growth"] = {"curves": {"N": [[1, {"forward": 1.0}], [10, {"forward": 9.0}]]}}
    plot.draw_all({"here": results}, tmp_path)
    for name in ("here.png", "ratios.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_settings_are_given_back():
    before = bnorm.get_num_threads()
    for name in ALWAYS:
        library = local(name)
        library.open(BY_KIND[library.about.kinds[0]], "float32", before + 1)
        library.close()
    assert bnorm.get_num_threads() == before
