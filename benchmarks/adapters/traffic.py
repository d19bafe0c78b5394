"""traffic.c: the least that any library has to do. Its results are none, so nothing of it is checked."""

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..shapes import Data
from ..timing import best
from .base import About, Adapter, Library

SOURCE = Path(__file__).parents[1] / "traffic.c"
FLAGS = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
LINE = 64  # bytes


def compiled() -> ctypes.CDLL:
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        raise ImportError("no C compiler")
    with tempfile.TemporaryDirectory() as place:
        library = Path(place) / "traffic.so"
        made = subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(library)], capture_output=True, text=True)
        if made.returncode:
            raise ImportError(f"{compiler}: {made.stderr.strip()}")
        return ctypes.CDLL(str(library))


TRAFFIC = compiled()
threads_now = 1  # ctypes knows nothing of a session


class Flat(Adapter):
    """All values in a row, through the caches or past them, whichever is faster here."""

    numbers: Mapping[str, int] = {"forward": 0, "inference": 1, "backward": 2}

    def __init__(self, data: Data) -> None:
        self.x, self.dy = (np.ravel(a, order="K") for a in (data.x, data.dy))
        memory = np.zeros(self.x.nbytes + LINE, np.uint8)
        start = -memory.ctypes.data % LINE
        self.y = memory[start : start + self.x.nbytes].view(self.x.dtype)
        self.function = TRAFFIC.traffic_float if self.x.dtype == np.float32 else TRAFFIC.traffic_double
        addresses = [ctypes.c_void_p(a.ctypes.data) for a in (self.x, self.dy, self.y)]
        self.rest = *addresses, ctypes.c_ssize_t(self.x.size)
        for name, number in self.numbers.items():
            setattr(self, name, self._faster(number))

    def _faster(self, number: int):
        calls = [self._call(number, sent) for sent in (0, 1)]
        took = [best(call, 5) for call in calls]
        return calls[took.index(min(took))]

    def _call(self, number: int, sent: int):
        threads = threads_now

        def call() -> None:
            self.function(number, sent, threads, *self.rest)

        return call


def reading(a: np.ndarray):
    """A pass that only reads an array, on one thread."""
    sums, n = np.zeros(1, np.float32), ctypes.c_ssize_t(a.nbytes // 4)
    here = ctypes.c_void_p(a.ctypes.data)

    def call() -> None:
        TRAFFIC.traffic_float(5, 0, 1, here, here, ctypes.c_void_p(sums.ctypes.data), n)

    return call


class Rows(Flat):
    """A few of them at a time, so that what is read again is in the first-level cache."""

    numbers = {"forward": 3, "backward": 4}  # noqa: RUF012


class Table(Flat):
    """Statistics are read, and nothing is written."""

    numbers = {"fit": 5, "partial_fit": 5, "transform": 1, "inverse": 1}  # noqa: RUF012


class Session:
    def __init__(self, threads: int, dtype: str) -> None:
        self.threads = threads

    def __enter__(self) -> None:
        global threads_now
        threads_now = self.threads

    def __exit__(self, *error: object) -> None:
        pass


class Traffic(Library):
    @property
    def about(self) -> About:
        return About(self.name, "", tuple(self.adapters), self.target)


LIBRARY = Traffic(
    "traffic",
    "",
    {"batch": Flat, "layer": Rows, "group": Rows, "instance": Rows, "scaler": Table},
    Session,
    target=True,
)
