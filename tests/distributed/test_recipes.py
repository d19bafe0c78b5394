"""The scripts of docs/distributed.md, run as they stand there."""

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import child
from bnorm import BatchNormTransformer, Moments
from bnorm.functional import moments

PAGE = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text(encoding="utf-8")
TABLE = np.random.default_rng(0).normal(5, 2, (10_000, 8))


def scripts(section):
    """The Python blocks below a heading, up to the next one."""
    text = re.search(rf"^#+ {re.escape(section)}$(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_merging_by_hand(tmp_path):
    (script,) = scripts("Merging by hand")
    path = tmp_path / "script.py"
    path.write_text(script, encoding="utf-8")
    done = child.run(path)
    assert done.returncode == 0, done.stderr
    numbers = np.array(re.findall(r"\d+\.\d+", done.stdout), float)
    np.testing.assert_allclose(numbers, 2 * [*TABLE.mean(axis=0), *TABLE.std(axis=0)], rtol=1e-7)


def test_joblib():
    """The line of the page, on threads here."""
    joblib = pytest.importorskip("joblib")
    (line,) = re.findall(r"`(Moments\.merge\(Parallel.*?)`", PAGE)
    names = {"Moments": Moments, "moments": moments, "parts": np.array_split(TABLE, 4)}
    with joblib.parallel_config("threading"):
        merged = eval(line, names | {"Parallel": joblib.Parallel, "delayed": joblib.delayed})
    np.testing.assert_allclose(merged.mean, TABLE.mean(axis=0), rtol=1e-12)


def test_dask_and_ranks():
    pytest.importorskip("dask.array")
    names = {}
    for script in (*scripts("Dask"), *scripts("Statistics of all ranks")):
        exec(compile(script, "docs/distributed.md", "exec"), names)
    assert type(names["y"]).__module__.startswith("dask")
    np.testing.assert_allclose(names["everywhere"].mean_, names["t"].mean_)
    np.testing.assert_allclose(names["t"].var_, np.full(8, 4.0), rtol=0.05)


class Together:
    """Beam's CombineFn, as a runner calls it: bundles in any order, accumulators through pickles."""

    @classmethod
    def run(cls, combine, bundles):
        states = []
        for bundle in bundles:
            state = combine.create_accumulator()
            for element in bundle:
                state = combine.add_input(state, element)
            states.append(combine.compact(state))
        return combine.extract_output(combine.merge_accumulators(iter(states)))

    def compact(self, state):
        return state


def test_the_engine_of_the_documentation(monkeypatch):
    pa = pytest.importorskip("pyarrow")
    beam = ModuleType("apache_beam")
    beam.CombineFn = Together
    monkeypatch.setitem(sys.modules, "apache_beam", beam)
    names = {}
    (script,) = scripts("A new engine")
    exec(compile(script, "docs/distributed.md", "exec"), names)
    columns = {name: TABLE[:, i] for i, name in enumerate("abc")}
    bundles = [[pa.table({name: x[at] for name, x in columns.items()})] for at in (slice(9), slice(9, 4000))]
    last = pa.RecordBatch.from_pydict({name: x[4000:] for name, x in columns.items()})
    t = Together.run(names["Fit"](BatchNormTransformer(), list("abc")), [*bundles, [], [last, last.slice(0, 0)]])
    np.testing.assert_allclose(t.mean_, TABLE[:, :3].mean(axis=0))
    np.testing.assert_allclose(t.var_, TABLE[:, :3].var(axis=0))
    assert list(t.feature_names_in_) == list("abc")
