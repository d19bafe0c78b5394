"""A coverage-guided fuzzer of what reads files: `python tests/support/fuzzing.py states|tables FOLDER [FLAGS]`.

It needs atheris (pip install atheris). FOLDER keeps the inputs that reached new code; it begins with sound files. FLAGS
are libFuzzer's: -max_total_time=3600 ends it after an hour. It ends at the first input that fails, and leaves the input
in the current folder.

    states   bnorm.load of .npz and of .safetensors: a ValueError that names the file, or an object
    tables   the command's reader of CSV, Parquet and Arrow: a result, or one line that names the file
"""

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris

with atheris.instrument_imports(include=["bnorm"]):
    import bnorm
    import bnorm.functional
    from bnorm.app import cli, columnar, csv_source, inputs  # noqa: F401
    from bnorm.transformer import group_saving, saving  # noqa: F401

import numpy as np

SUFFIXES = {"states": [".npz", ".safetensors"], "tables": [".csv", ".parquet", ".arrow"]}


def load(path: Path) -> None:
    try:
        bnorm.load(path)
    except ValueError as error:
        assert str(path) in str(error)


def fit(path: Path) -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = cli.main(["fit", str(path), "-o", str(path.with_name("s.npz")), "--force", "--quiet"])
    assert code == 0 or said.getvalue().startswith(f"bnorm: error: {path}"), said.getvalue()


def sound(what: str, folder: Path) -> None:
    """Write files to begin with; the first byte of each tells its suffix."""
    x = np.random.default_rng(0).normal(size=(8, 2))
    if what == "states":
        made = [bnorm.BatchNorm1d(2), bnorm.BatchNormTransformer(history=2).fit(x), bnorm.RunningNorm(2)]
        made += [bnorm.BatchNormTransformer(window=3).fit(x), bnorm.GroupedTransformer(0).fit(np.round(x))]
        made += [bnorm.functional.moments(x, exact=True)]
    for i, suffix in enumerate(SUFFIXES[what]):
        if what == "tables":
            from commands import write

            (folder / f"0{suffix}").write_bytes(bytes([i]) + write(folder / f"t{suffix}", x).read_bytes())
            continue
        for j, one in enumerate(made):
            one.save(folder / f"t{suffix}")
            (folder / f"{j}{suffix}").write_bytes(bytes([i]) + (folder / f"t{suffix}").read_bytes())


def main(what: str, corpus: str, *flags: str) -> None:
    call: Callable[[Path], None] = {"states": load, "tables": fit}[what]
    folder, suffixes = Path(corpus), SUFFIXES[what]
    folder.mkdir(exist_ok=True)
    sound(what, folder)
    with TemporaryDirectory() as name:

        def once(data: bytes) -> None:
            path = Path(name) / f"x{suffixes[data[0] % len(suffixes) if data else 0]}"
            path.write_bytes(data[1:])
            call(path)

        atheris.Setup([sys.argv[0], corpus, *flags], once)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
