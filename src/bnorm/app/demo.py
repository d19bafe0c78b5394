"""`bnorm demo`: fits and transforms a generated table that is larger than the memory in use."""

import tempfile
import time
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm import arrow
from bnorm.app.dialects import PLAIN
from bnorm.app.errors import DataError
from bnorm.app.fitting import Learner, learn
from bnorm.app.inputs import Stream, find
from bnorm.app.progress import Progress, peak_memory
from bnorm.app.showing import table
from bnorm.app.sources import pyarrow
from bnorm.app.states import Learned, Map
from bnorm.app.transforming import Wish, transform

# Sensors: name, mean, standard deviation, and the drift of the mean from first to last row, in standard deviations.
SENSORS = [
    ("temperature", 21.5, 1.8, 2.0),
    ("humidity", 48.0, 9.0, -1.0),
    ("pressure", 101_325.0, 240.0, 0.5),
    ("wind", 3.2, 1.1, 0.0),
    ("light", 12_000.0, 4_000.0, 3.0),
    ("voltage", 3.3, 0.004, -4.0),
    ("current", 0.0021, 0.0003, 1.0),
    ("altitude_mm", 1_500_000.04, 1.5, 0.0),
]
ROWS = 1 << 17  # of a block
MEGABYTE = 1 << 20


def run(folder: Path | None, megabytes: int, quiet: bool) -> None:
    """Make a table, learn its statistics as a stream, normalize it, and print the result."""
    pyarrow()  # if it is missing, no folder is left
    folder = _folder(folder)
    source, state, output = (str(folder / name) for name in ("sensors.parquet", "state.npz", "normalized.parquet"))
    truth = _write(source, max(1, megabytes * MEGABYTE // (ROWS * 4 * len(SENSORS))), quiet)
    size = Path(source).stat().st_size

    learned, seconds = _fit(source, quiet)
    learned.save(state)
    with Progress("transform", size, quiet) as transformed:
        transform(find([source]), Wish(Map(learned, inverse=False)), output, transformed)
    after, _ = _fit(output, quiet)
    peak = peak_memory()

    print(f"{transformed.rows:,} rows of {len(SENSORS)} drifting sensors, {size / 1e6:,.0f} MB of Parquet, in a stream")
    print(
        f"of batches of {ROWS // 1024} thousand rows{peak and f'; peak memory {peak / 1e6:,.0f} MB, Python and all'}\n"
    )
    units = {f"mean {when}": f"std {when}" for when in ("before", "after")}
    print(*table(_before_and_after(learned, after), units), sep="\n")
    print(f"\nfit {seconds:.2f} s, transform {transformed.seconds:.2f} s")
    print(_beside_standard_scaler(source, learned, seconds, truth))
    print(f"state   {state}    (bnorm show, bnorm transform, bnorm.load)")
    print(f"output  {output}")
    print(f"picture {_picture(folder, state)}")
    Path(source).unlink()


def _folder(given: Path | None) -> Path:
    if given is None:
        return Path(tempfile.mkdtemp(prefix="bnorm-demo-"))
    if given.exists():
        raise DataError(f"{given}: already exists; the demo makes a new folder")
    given.mkdir(parents=True)
    return given


def _write(path: str, blocks: int, quiet: bool) -> dict[str, tuple[float, float]]:
    """Write a table of float32 sensors with 1 in 1000 values missing. Returns the exact mean and standard deviation of
    each, which are summed about the intended mean in long double.
    """
    from pyarrow import parquet

    pa, rng = pyarrow(), np.random.default_rng(0)
    names, rows = [sensor[0] for sensor in SENSORS], blocks * ROWS
    schema = pa.schema([(name, pa.float32()) for name in names])
    sums = np.zeros((len(SENSORS), 3), np.longdouble)
    options = {"use_dictionary": False, "compression": "none"}
    with parquet.ParquetWriter(path, schema, **options) as writer, Progress("make", rows, quiet) as progress:
        for block in range(blocks):
            time_ = np.linspace(block / blocks, (block + 1) / blocks, ROWS, dtype=np.float32)
            columns = []
            for i, (_, mean, std, drift) in enumerate(SENSORS):
                x = rng.standard_normal(ROWS, np.float32)
                x += np.float32(drift) * time_
                x = (np.float32(std) * x + np.float32(mean)).astype(np.float32)
                x[rng.integers(0, ROWS, ROWS // 1000)] = np.nan
                columns.append(pa.array(x, from_pandas=True))
                d = x[~np.isnan(x)].astype(np.float64) - mean
                sums[i] += [d.size, d.sum(dtype=np.longdouble), (d * d).sum(dtype=np.longdouble)]
            writer.write_batch(pa.record_batch(columns, schema=schema), row_group_size=ROWS)
            progress.add(ROWS, (block + 1) * ROWS)
    n, s, q = sums.T
    means = [float(sensor[1] + m) for sensor, m in zip(SENSORS, s / n, strict=True)]
    return dict(zip(names, zip(means, np.sqrt(q / n - (s / n) ** 2).astype(float).tolist(), strict=True), strict=True))


def _fit(path: str, quiet: bool) -> tuple[Learned, float]:
    """Do the work of `bnorm fit`. Return the state, and the seconds that it took."""
    sources = find([path])
    names = list(sources[0].columns)
    learned = Learned.new(names, None, None, history=100)
    stream = Stream(sources, names)
    with Progress("fit", stream.size, quiet) as progress:
        learn(stream, Learner(learned, ROWS), progress)
    return learned, progress.seconds


def _before_and_after(before: Learned, after: Learned) -> list[dict[str, Any]]:
    rows = []
    for i, name in enumerate(before.names):
        row = {"feature": name, "missing": before.fitted.statistics.rows - int(before.fitted.statistics.seen[i])}
        for when, learned in (("before", before), ("after", after)):
            mean, std = float(learned.fitted.mean[i]), float(np.sqrt(learned.fitted.var[i]))
            row |= {f"mean {when}": mean if abs(mean) > 1e-6 else 0.0, f"std {when}": std}
        rows.append(row)
    return rows


def _batches(path: str) -> Iterator[ndarray]:
    """The batches of a file, as one would read them for scikit-learn."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(ROWS):
            yield np.column_stack([column.to_numpy(zero_copy_only=False) for column in batch.columns])


def _beside_standard_scaler(path: str, learned: Learned, seconds: float, truth: dict[str, tuple[float, float]]) -> str:
    """The lines that compare the time of a fit, and the error of the normalized values of the first batch."""
    if not util.find_spec("sklearn"):
        return "StandardScaler: scikit-learn is not installed"
    from sklearn.preprocessing import StandardScaler

    scaler, start = StandardScaler(), time.perf_counter()
    for x in _batches(path):
        scaler.partial_fit(x)
    theirs = time.perf_counter() - start
    x = next(_batches(path))
    mean, std = (np.array(column) for column in zip(*truth.values(), strict=True))
    exact = (x.astype(np.float64) - mean) / std
    own = arrow.Columns([list(x.T)]).mapped(learned.stats())
    off = [np.nanmax(np.abs(y - exact)) for y in (own, scaler.transform(x))]
    return (
        f"scikit-learn's StandardScaler on the same file: fit {theirs:.2f} s, {theirs / seconds:.1f} times as long;\n"
        f"its values are up to {off[1]:.1g} off, these {off[0]:.1g}"
    )


def _picture(folder: Path, state: str) -> str:
    """The path of the picture, or the reason why there is none."""
    if not (util.find_spec("matplotlib") and util.find_spec("bnorm.plot")):
        return "none: pip install 'bnorm[app]' for pictures"
    from bnorm.app import plotting

    path = str(folder / "drift.png")
    plotting.plot([state], path, None, PLAIN, True)
    return path
