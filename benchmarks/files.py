"""Files that are streamed: `bnorm fit` beside merely reading the file, and beside other libraries.

    python -m benchmarks.files [--megabytes 1000] [--rounds 5]

Every run is a process of its own, and the contenders take turns. Seconds do not include the start of the process. They
are also given as processor time, on which other work has less effect. Memory is the peak of the whole process.
"""

import json
import subprocess
import sys
import tempfile
from importlib import util
from pathlib import Path
from statistics import median

import numpy as np

from .options import parser
from .text import aligned

COLUMNS, BLOCK = 32, 1 << 16
START = """
import sys, time
from importlib import import_module
path, body, modules = sys.argv[1:4]
for module in modules.split():
    import_module(module)
from bnorm.app.progress import peak_memory
exec(body.partition("---")[0])
wall, cpu = time.perf_counter(), time.process_time()
exec(body.partition("---")[2])
print(time.perf_counter() - wall, time.process_time() - cpu, peak_memory())
"""
LEARN = """
from bnorm.app.fitting import Learner, learn
from bnorm.app.choosing import choose
from bnorm.app.inputs import Stream, find
from bnorm.app.progress import Progress
from bnorm.app.states import Learned
---
sources = find([path])
stream = Stream(sources, choose(sources[0], None, None))
"""
PARQUET = "---\nfrom pyarrow import parquet\nbatches = parquet.ParquetFile(path).iter_batches(65536)\n"
CSV = "---\nfrom pyarrow import csv\nbatches = csv.open_csv(path)\n"
SCALER = """
from sklearn.preprocessing import StandardScaler
scaler = StandardScaler()
for batch in batches:
    scaler.partial_fit(np.column_stack([column.to_numpy() for column in batch.columns]))
"""
IMPORTS = "numpy pyarrow.csv pyarrow.parquet"
Contender = tuple[str, str]  # what it imports before the clock starts, and what it does


def contenders(suffix: str) -> dict[str, Contender]:
    """The contenders for files of a kind, by name, if their packages are installed."""
    learn = "learn(stream, Learner(Learned.new(stream.numbers, None, None), 65536), Progress('', 1, True))"
    found = {
        "read": (IMPORTS, LEARN + "for batch in stream:\n    pass\n"),
        "bnorm fit": (IMPORTS, LEARN + learn),
        "StandardScaler, pyarrow batches": (
            f"{IMPORTS} sklearn.preprocessing",
            "import numpy as np\n" + (CSV if suffix == ".csv" else PARQUET) + SCALER,
        ),
    }
    if suffix == ".parquet":  # with bnorm's settings: the defaults take several times as long, and more memory
        alone = PARQUET.replace("(path)", "(path, pre_buffer=False, buffer_size=65536)")
        found["pyarrow, only reading"] = (IMPORTS, f"{alone}for batch in batches:\n    pass\n")
    if suffix == ".csv" and util.find_spec("pandas"):
        found["StandardScaler, pandas chunks"] = (
            "pandas sklearn.preprocessing",
            "import pandas\nfrom sklearn.preprocessing import StandardScaler\n---\nscaler = StandardScaler()\n"
            "for chunk in pandas.read_csv(path, chunksize=65536):\n    scaler.partial_fit(chunk)\n",
        )
    if util.find_spec("polars"):
        scan = "scan_csv" if suffix == ".csv" else "scan_parquet"
        body = f"import polars as pl\n---\npl.{scan}(path).select(pl.all().std()).collect()\n"
        found["polars, std of all"] = ("polars", body)
    return found


def write(path: Path, size: int) -> None:
    """Write a file of about this many bytes."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    rng = np.random.default_rng(0)
    schema = pa.schema([(f"f{i}", pa.float64()) for i in range(COLUMNS)])
    options = {"use_dictionary": False, "compression": "none"}
    columnar = path.suffix == ".parquet"
    value = 8 if columnar else 18
    with parquet.ParquetWriter(path, schema, **options) if columnar else csv.CSVWriter(path, schema) as writer:
        for _ in range(max(1, size // (COLUMNS * BLOCK * value))):
            x = rng.standard_normal((COLUMNS, BLOCK)) * 10 + 100
            writer.write_batch(pa.record_batch(list(x), schema=schema))


def run(path: Path, contender: Contender) -> list[float]:
    """Return seconds, seconds of the processor, and bytes of memory."""
    modules, body = contender
    command = [sys.executable, "-c", START, str(path), body, modules]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{path.name}: {body}: {done.stderr}")
    return [float(number) for number in done.stdout.split()]


def measure(path: Path, rounds: int) -> dict[str, list[float]]:
    """Return the medians of each contender."""
    entered = contenders(path.suffix)
    found: dict[str, list[list[float]]] = {name: [] for name in entered}
    for _ in range(rounds):
        for name, contender in entered.items():
            found[name].append(run(path, contender))
    return {name: [median(column) for column in zip(*runs, strict=True)] for name, runs in found.items()}


def report(path: Path, figures: dict[str, list[float]]) -> str:
    own = figures["bnorm fit"]
    title = f"{path.suffix[1:]}, {path.stat().st_size / 1e6:.0f} MB"
    lines = [[title, "s", "CPU s", "MB of memory", "× of fit", "× CPU"]]
    for name, (wall, cpu, peak) in figures.items():
        numbers = [f"{wall:.2f}", f"{cpu:.2f}", f"{peak / 1e6:.0f}", f"{wall / own[0]:.2f}", f"{cpu / own[1]:.2f}"]
        lines.append([name, *numbers])
    return "\n".join(aligned(lines, 1))


def main(arguments: list[str] | None = None) -> None:
    program = parser("files", __doc__)
    program.add_argument("--megabytes", type=int, default=1000)
    program.add_argument("--rounds", type=int, default=5)
    program.add_argument("--json", action="store_true")
    args = program.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".parquet", ".csv"):
            path = Path(folder) / f"table{suffix}"
            write(path, args.megabytes << 20)
            figures = measure(path, args.rounds)
            print(json.dumps({path.suffix: figures}) if args.json else report(path, figures) + "\n")


if __name__ == "__main__":
    main()
