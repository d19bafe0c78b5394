"""Files larger than memory: what a command takes depends on the batches, not on the file."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import child

pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads and writes files by pyarrow")
if not Path("/proc/self/status").exists():
    pytest.skip("only Linux says how much memory a process took itself", allow_module_level=True)

MEGABYTE = 1 << 20
ALLOWED = 235 * MEGABYTE
COLUMNS = 32
BLOCK = 1 << 14

# Runs a command, and says how much memory that took at its peak: not what `resource` says, which begins with the memory
# of the process that this one was forked from.
SCRIPT = """
import sys
import pyarrow.parquet
from bnorm.app.cli import main
from bnorm.app.progress import peak_memory
imported = peak_memory()
code = main(sys.argv[1:])
print("peak", peak_memory() - imported)
raise SystemExit(code)
"""


def peak(*arguments):
    """Bytes of memory that a command took at most, once it has succeeded, besides what it imports: 65 to 100 MB, which
    depends on the versions."""
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=child.LIMIT)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def blocks(n):
    """The rows of a file: of one block, each time in another order."""
    x = np.round(np.random.default_rng(0).normal(size=(COLUMNS, BLOCK)) * 10 + np.arange(COLUMNS)[:, None], 3)
    for i in range(n):
        yield np.roll(x, 101 * i, axis=1)


def write(path, size, group=BLOCK):
    """A file of about so many bytes, written without ever being in memory; the exact sum of each column."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    names = [f"f{i}" for i in range(COLUMNS)]
    schema = pa.schema([(name, pa.float64()) for name in names])
    value = 8 if path.suffix == ".parquet" else 7
    sums, waiting = np.zeros(COLUMNS, np.longdouble), []
    options = {"use_dictionary": False, "compression": "none"}
    with (
        parquet.ParquetWriter(path, schema, **options) if path.suffix == ".parquet" else csv.CSVWriter(path, schema)
    ) as writer:
        for x in blocks(max(1, size // (COLUMNS * BLOCK * value))):
            sums += x.sum(1, dtype=np.longdouble)
            waiting.append(pa.record_batch(list(x), schema=schema))
            if len(waiting) * BLOCK >= group:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
    return sums


@pytest.mark.parametrize(
    ("suffix", "megabytes"),
    [
        ("csv", 24),
        ("parquet", 160),
        pytest.param("csv", 1000, marks=pytest.mark.slow),
        pytest.param("parquet", 1000, marks=pytest.mark.slow),
    ],
)
def test_peak_memory(tmp_path, suffix, megabytes):
    """Of a file that is larger than the limit, or of a smaller one less than the file would take."""
    data, state = tmp_path / f"x.{suffix}", tmp_path / "s.npz"
    sums = write(data, megabytes * MEGABYTE)
    took = {"fit": peak("fit", data, "-o", state, "--quiet")}
    took["transform"] = peak("transform", data, "--state", state, "-o", tmp_path / f"y.{suffix}", "--quiet")
    assert all(bytes_ < ALLOWED for bytes_ in took.values()), took

    import bnorm

    t = bnorm.load(state)
    rows = t.n_samples_seen_
    assert np.abs(t.mean_ - (sums / rows).astype(float)).max() < 1e-13 * 10


def test_one_row_group_for_all(tmp_path):
    """As the default of some writers is: it is read page by page."""
    data = tmp_path / "x.parquet"
    write(data, 160 * MEGABYTE, group=1 << 62)
    assert peak("fit", data, "-o", tmp_path / "s.npz", "--quiet") < ALLOWED


@pytest.mark.parametrize(
    "way",
    [
        "--halflife=1e6",
        pytest.param("--pooled", marks=pytest.mark.slow),
        pytest.param("--momentum=0.1", marks=pytest.mark.slow),
    ],
)
def test_wide_tables_and_long_batches(tmp_path, way):
    """A thousand columns, and batches of all rows: pieces of them are merged as they come."""
    import pyarrow as pa
    from pyarrow import parquet

    x = np.resize(np.random.default_rng(0).normal(size=100_003), (1000, 20_000))
    data, plain = tmp_path / "x.parquet", {"use_dictionary": False, "compression": "none"}
    parquet.write_table(pa.table({f"f{i}": column for i, column in enumerate(x)}), data, row_group_size=2000, **plain)
    assert x.nbytes > 150 * MEGABYTE
    asked = ["--batch-rows", "1000000", way, "--quiet"]
    assert peak("fit", data, "-o", tmp_path / "s.npz", *asked) < ALLOWED


def shapes(name, path):
    """Tables whose parts are larger than a batch should be: each took far more than the limit."""
    import pyarrow as pa
    from pyarrow import ipc, parquet

    rng = np.random.default_rng(0)
    words = ["word " * 2160 + str(i) for i in range(50)]
    match name:
        case "text":  # 0.4 MB, and 430 MB of text
            t = pa.table({"x": rng.normal(size=40_000), "t": pa.array(words).take(np.arange(40_000) % 50)})
            parquet.write_table(t, path)
        case "wide":
            x = rng.normal(size=2000)
            parquet.write_table(pa.table({f"f{i}": x for i in range(5000)}), path, use_dictionary=False)
        case "batch":
            x = rng.normal(size=1_000_000)
            batch = pa.record_batch({f"f{i}": x for i in range(40)})
            with ipc.new_file(path, batch.schema) as writer:
                writer.write_batch(batch)


@pytest.mark.parametrize(("name", "suffix"), [("text", "parquet"), ("wide", "parquet"), ("batch", "arrow")])
def test_large_parts(tmp_path, name, suffix):
    data = tmp_path / f"x.{suffix}"
    shapes(name, data)
    took = {"fit": peak("fit", data, "-o", tmp_path / "s.npz", "--quiet")}
    if name != "wide":
        output = tmp_path / f"y.{suffix}"
        took["transform"] = peak("transform", data, "--state", tmp_path / "s.npz", "-o", output, "--quiet")
    assert all(bytes_ < ALLOWED for bytes_ in took.values()), took
