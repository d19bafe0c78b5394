"""Tables of every format, damaged in any way: a result or one line that names the file, soon, in little memory."""

import bz2
import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import child
from commands import table, write
from mutator import variants

pa = pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads files by pyarrow")
FORMATS = ("csv", "csv.gz", "csv.bz2", "csv.zst", "parquet", "arrow", "feather")
MEMORY = 4 << 30  # of addresses, threads included: far less than the sizes that files claim
SECONDS = 20  # for one file, on a busy machine


def whole(folder, kind):
    """A sound file: numbers with gaps, text with quotes, dates, categories."""
    x = table(60)
    x[::7, 1] = np.nan
    words = [None if i % 11 == 0 else f'a "word", {i}' for i in range(60)]
    plain = folder / f"x.{kind.split('.')[0]}"
    more = {"c": pa.array(words).dictionary_encode(), "d": pa.array(range(60), pa.date32())}
    if plain.suffix == ".csv":
        more = {}
    data = write(plain, x, t=pa.array(words), **more).read_bytes()
    match kind:
        case "csv.gz":
            return gzip.compress(data, mtime=0)
        case "csv.bz2":
            return bz2.compress(data)
        case "csv.zst":
            return pa.compress(data, codec="zstd", asbytes=True)
    return data


def fits(folder, kind, count, seed):
    """How many files were learned from, and how many were refused."""
    import contextlib
    import faulthandler
    import io

    from bnorm.app.cli import main

    path, state, done = folder / f"x.{kind}", folder / "s.npz", [0, 0]
    for i, data in enumerate(variants(whole(folder, kind), count, seed)):
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        path.write_bytes(data)
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            code = main(["fit", str(path), "-o", str(state), "--force", "--quiet"])
        said = err.getvalue()
        assert code in (0, 1), (kind, i, code, said)
        assert code == 0 or (said.count("\n") == 1 and said.startswith(f"bnorm: error: {path}")), (kind, i, said)
        done[code] += 1
    faulthandler.cancel_dump_traceback_later()
    return done


def all_fits(folder, count, seed):
    """The same for every format, with little memory."""
    import faulthandler
    import resource

    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
    return {kind: fits(Path(folder), kind, count, seed) for kind in FORMATS}


@pytest.mark.skipif(sys.platform != "linux", reason="this system does not limit memory so")
@pytest.mark.parametrize(
    ("count", "seed"),
    [(25, 0), pytest.param(200, 1, marks=pytest.mark.slow), pytest.param(3000, 2, marks=pytest.mark.slow)],
)
def test_damage_of_any_kind(tmp_path, count, seed):
    """In a process of its own, as a crash would end this one."""
    code = f"sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}; import test_hostile_tables as t"
    call = f"t.all_fits({str(tmp_path)!r}, {count}, {seed})"
    done = child.run("-c", f"import json, sys; {code}; print(json.dumps({call}))", OPENBLAS_NUM_THREADS=1)
    assert done.returncode == 0, done.stderr[-3000:]
    for kind, (_, refused) in json.loads(done.stdout).items():
        assert refused > count // 20, kind
    left = {path.name for path in tmp_path.iterdir()} - {"s.npz", "x.csv"}
    assert left <= {f"x.{kind}" for kind in FORMATS}
