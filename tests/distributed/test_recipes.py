"""The scripts of docs/distributed.md, run as they stand there."""

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import child

PAGE = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text(encoding="utf-8")
TABLE = np.random.default_rng(0).normal(5, 2, (10_000, 8))


def scripts(section):
    """The Python blocks below a heading, up to the next one."""
    text = re.search(rf"^#+ {re.escape(section)}$(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("section", "engine"),
    [
        ("joblib", "joblib"),
        ("concurrent.futures", None),
        ("multiprocessing, with transformers", None),
        ("Ray", "ray"),
    ],
)
def test_engines(section, engine, tmp_path):
    if engine and find_spec(engine) is None:
        pytest.skip(f"not installed: {engine}")
    (script,) = scripts(section)
    path = tmp_path / "script.py"
    path.write_text(script, encoding="utf-8")
    done = child.run(path)
    assert done.returncode == 0, done.stderr
    numbers = np.array(re.findall(r"\d+\.\d+", done.stdout), float)
    np.testing.assert_allclose(numbers, [*TABLE.mean(axis=0), *TABLE.std(axis=0)], rtol=1e-7)


def test_dask_and_ranks():
    pytest.importorskip("dask.array")
    names = {}
    for script in (*scripts("Dask"), *scripts("Statistics of all ranks")):
        exec(compile(script, "docs/distributed.md", "exec"), names)
    assert type(names["y"]).__module__.startswith("dask")
    np.testing.assert_allclose(names["everywhere"].mean_, names["t"].mean_)
    np.testing.assert_allclose(names["t"].var_, np.full(8, 4.0), rtol=0.05)
