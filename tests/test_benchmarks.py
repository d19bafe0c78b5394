"""The benchmark suite: on one tiny shape it checks, times and writes its table, and wrong results are not timed."""

import json
import re

import numpy as np
import pytest
from benchmarks import __main__ as suite
from benchmarks import copying, machine, processes, providers, shapes, table, threshold, timing

import bnorm

BRIEF = timing.Effort(processes=2, rounds=2, least=1, budget=1.0, sample=1e-5, samples=1, pause=0.0, warm_up=0.0)
TINY = [shapes.Shape((12, 3)), shapes.Shape((4, 3, 2, 5)), shapes.Shape((4, 3, 2, 5), channels_last=True)]
INSTALLED = [provider for provider in providers.ALL if provider.version()]


@pytest.fixture(autouse=True)
def small_copies(monkeypatch):
    monkeypatch.setattr(copying.Copy.__init__, "__defaults__", (1 << 16,))


@pytest.fixture
def results():
    return suite.run(TINY, INSTALLED, bnorm.get_num_threads(), BRIEF, timing.Worker)


def test_every_row_is_there(results):
    rows = {(row["shape"], row["operation"]): row for row in results["rows"]}
    assert set(rows) == {(shape.name, operation) for shape in TINY for operation in shapes.OPERATIONS}
    for row in rows.values():
        assert (
            {"bnorm", "bnorm out=", "NumPy", "NumPy out="}
            <= set(row["ms"])
            == set(row["error"])
            == set(row["new_pages"])
        )
        assert all(0 < low <= median <= high for low, median, high in row["ms"].values())
    assert rows["(12, 3)", "backward"]["bytes"] == 5 * 36 * 4


def test_a_worker_in_a_process_of_its_own():
    rows = timing.measure(TINY[0], [providers.Bnorm, providers.NumPy], 1, BRIEF, worker=processes.Remote)
    assert {"bnorm", "NumPy out="} <= set(rows[0]["ms"]) == set(rows[0]["error"])


def test_the_table_is_written(results, tmp_path):
    table.save(results, tmp_path / "results" / "here.json")
    again = json.loads((tmp_path / "results" / "here.json").read_text(encoding="utf-8"))
    assert again == results
    text = table.replaced(f"before\n{table.BEGIN}\nwhat was there\n{table.END}\nafter", [again])
    assert text.startswith(f"before\n{table.BEGIN}\n")
    assert text.endswith(f"\n{table.END}\nafter")
    assert "what was there" not in text
    assert machine.processor() in text
    assert f"bnorm {bnorm.__version__}" in text
    for shape in TINY:
        assert text.count(f"| {shape.name} |") == 1
    assert all(name in table.full(again) for name in ["quartiles", "NumPy out=", *shapes.OPERATIONS])


def test_losses_and_missing_libraries_are_named(results):
    results["machine"]["missing"] = ["Another"]
    results["machine"]["versions"].pop(table.PEER, None)
    for row in results["rows"]:
        row["ms"].pop(table.PEER, None)
        row["ms"].pop(f"{table.PEER} out=", None)
    for text in (table.section(results), table.full(results)):
        assert "Not installed: Another" in text
        assert not re.search(r"\bnan\b", text)
    for row in results["rows"]:
        row["ms"] = {"bnorm": [1.0, 2.0, 3.0], table.PEER: [1.0, 1.0, 1.0]}
    assert "| **0.50×** |" in re.sub(r"[^|]*GB/s, ", " ", table.section(results))


def test_the_table_is_that_of_the_saved_results():
    text = (table.ROOT / "README.md").read_text(encoding="utf-8")
    assert table.replaced(text, table.saved()) == text, "python -m benchmarks.table"


@pytest.mark.parametrize("provider", INSTALLED, ids=lambda provider: provider.name)
@pytest.mark.parametrize("operation", shapes.OPERATIONS)
def test_a_wrong_result_is_refused_before_it_is_timed(provider, operation, monkeypatch):
    right = getattr(provider, operation)

    def wrong(self, out=None):
        result = right(self, out)
        self.arrays(result)[0].flat[5] += 0.01
        return result

    def timed(*arguments):
        raise AssertionError("a wrong result was timed")

    monkeypatch.setattr(provider, operation, wrong)
    monkeypatch.setattr(timing, "in_turns", timed)
    with pytest.raises(timing.WrongResult, match=f"{provider.name}: {operation} of .*expected to be within"):
        timing.measure(TINY[0], INSTALLED, bnorm.get_num_threads(), BRIEF)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda y, out: y[:-1], "expected shapes"),
        (lambda y, out: y.astype("float64"), "expected float32, got float64"),
        (lambda y, out: y * np.nan, "got nan"),
        (lambda y, out: y.copy(), "expected the result in out"),
    ],
)
def test_what_else_is_wrong_with_a_result(broken, message, monkeypatch):
    right = providers.NumPy.forward
    monkeypatch.setattr(providers.NumPy, "forward", lambda self, out=None: broken(right(self, out), out))
    with pytest.raises(timing.WrongResult, match=message):
        timing.measure(TINY[0], [providers.NumPy], 1, BRIEF)


def test_threads_are_given_back():
    before = bnorm.get_num_threads()
    for provider in INSTALLED:
        with provider.session(before + 1):
            pass
    assert bnorm.get_num_threads() == before


def test_the_threshold_finds_its_constant():
    source = (threshold.ROOT / "src/bnorm/kernels/_threads.pyx").read_text(encoding="utf-8")
    assert len(threshold.CONSTANT.findall(source)) == 1
