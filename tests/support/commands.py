"""The command `bnorm`, run inside this process or in one of its own, and tables for it."""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from bnorm.app.cli import main

pyarrow = pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow reads files")
TELLS = "bnorm: .*: (learns|leaves out|normalizes|restores|keeps as they are|drops) "


class Done(NamedTuple):
    code: int
    out: str
    err: str
    told: str  # lines of standard error on which columns are used; `err` has all others

    @property
    def json(self):
        return json.loads(self.out)


class Command:
    """command("fit", path, "-o", path) returns what the command returned and printed. It must succeed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Done:
        done = self.run(*arguments)
        assert done.code == 0, done.err
        return done

    def fails(self, *arguments: object, code: int = 1) -> str:
        """Return the line with which the command fails."""
        done = self.run(*arguments)
        assert done.code == code, done
        assert done.out == ""
        assert done.err.startswith("bnorm: error: ")
        assert done.err.count("\n") == 1
        return done.err.strip()

    def run(self, *arguments: object) -> Done:
        self._capsys.readouterr()
        code = main([str(a) for a in arguments])
        out, err = self._capsys.readouterr()
        parts: dict[bool, str] = {True: "", False: ""}
        for line in err.splitlines(keepends=True):
            parts[re.match(TELLS, line) is not None] += line
        return Done(code, out, parts[False], parts[True])


def table(rows: int, columns: int = 3, seed: int = 0) -> np.ndarray:
    """Features of different scales, one of them far from zero."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)) * 10.0 ** np.arange(columns) + 1000.0 * np.arange(columns)


def table_with_gaps(rows: int = 500) -> np.ndarray:
    """The same with missing values."""
    x = table(rows)
    x[::9, 1] = np.nan
    return x


def names(x: np.ndarray) -> list[str]:
    return [f"f{i}" for i in range(x.shape[1])]


def write(path: Path, x: np.ndarray, **more: object) -> Path:
    """Write a table in the format of the suffix; `more` are columns of other types, by name."""
    import pyarrow as pa
    from pyarrow import csv, feather, ipc, parquet

    t = pa.table({**dict(zip(names(x), x.T.copy(), strict=True)), **more})
    match path.suffix:
        case ".csv":
            csv.write_csv(t, path)
        case ".parquet":
            parquet.write_table(t, path, row_group_size=max(1, len(x) // 3))
        case ".feather":
            feather.write_feather(t, path)
        case ".arrow":
            with ipc.new_stream(str(path), t.schema) as writer:
                writer.write_table(t, max_chunksize=max(1, len(x) // 3))
    return path


def read(path: Path):
    """Return a table as pyarrow reads it."""
    from pyarrow import csv, feather, parquet

    readers = {".csv": csv.read_csv, ".parquet": parquet.read_table, ".arrow": feather.read_table}
    return readers[path.suffix](path)


def run_apart(*arguments: object, **popen: object):
    """Start the command in a process of its own, which can be killed."""
    import subprocess

    return subprocess.Popen([sys.executable, "-m", "bnorm", *map(str, arguments)], **popen)
