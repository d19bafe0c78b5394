"""The cases that are measured: which normalization of which shape, and the data that all libraries are given."""

from dataclasses import dataclass
from math import prod

import numpy as np

EPS = 1e-5
# The least that each operation reads and writes, in times of the array, which is in no cache before or after.
CHANNEL_PASSES = {
    "forward": 3,  # x for the statistics, x again, y
    "inference": 2,  # x, y
    "backward": 5,  # x and dy for the sums, x and dy again, dx
}
ROW_PASSES = {  # a row of these norms is short, and still in a cache when it is read again
    "forward": 2,  # x, y
    "backward": 3,  # x, dy, dx
}
PASSES = {
    "batch": CHANNEL_PASSES,
    "layer": ROW_PASSES,
    "rms": ROW_PASSES,
    "group": ROW_PASSES,
    "instance": ROW_PASSES,
    "scaler": {"fit": 1, "partial_fit": 1, "transform": 2, "inverse": 2},
}
POOL = 1048583  # random values, repeated in long arrays; a prime, so that repetitions are not aligned with rows


@dataclass(frozen=True)
class Case:
    """A kind of normalization, and sizes N, C, ... of x. channels_last: channels are next to each other in memory."""

    kind: str
    sizes: tuple[int, ...]
    channels_last: bool = False
    groups: int = 1
    quick: bool = False  # --quick runs it too

    @property
    def name(self) -> str:
        words = "" if self.kind == "batch" else f"{self.kind}{'' if self.kind == 'scaler' else ' norm'} "
        groups = f" in {self.groups} groups" if self.kind == "group" else ""
        return f"{words}{self.sizes}{groups}{' channels last' if self.channels_last else ''}"

    @property
    def passes(self) -> dict[str, int]:
        return PASSES[self.kind]

    @property
    def values(self) -> int:
        return prod(self.sizes)


def batch(*sizes: int, quick: bool = False, channels_last: bool = False) -> Case:
    return Case("batch", sizes, channels_last, quick=quick)


TWO_D = [
    batch(32, 64, quick=True),
    batch(256, 128),
    batch(1024, 256, quick=True),
    batch(4096, 512),
    batch(65536, 64, quick=True),
    batch(65536, 256),
    batch(1000000, 3),
    batch(1000000, 32, quick=True),
    batch(1000000, 100),
]
FOUR_D = [
    batch(8, 16, 8, 8),
    batch(32, 64, 56, 56, quick=True),
    batch(32, 256, 14, 14),
    batch(64, 512, 7, 7),
    batch(16, 64, 112, 112),
]
ROWS = [
    Case("layer", (8192, 768), quick=True),
    Case("layer", (65536, 64)),
    Case("group", (32, 128, 56, 56), groups=32, quick=True),
    Case("instance", (32, 128, 56, 56)),
]
SCALER = [
    Case("scaler", (32, 64), quick=True),
    Case("scaler", (10000, 20)),
    Case("scaler", (1000000, 32), quick=True),
    Case("scaler", (1000000, 100)),
]
NAMED = [
    *TWO_D,
    *FOUR_D,
    *(batch(*case.sizes, quick=case.quick, channels_last=True) for case in FOUR_D),
    *ROWS,
    *SCALER,
]
# Of the same kinds, between and beyond the shapes above: they show what was tuned only for those.
OTHER = [
    batch(37, 7),
    batch(500, 33),
    batch(3000, 1000),
    batch(20000, 7),
    batch(100003, 33),
    batch(10000000, 4),
    batch(65536, 100, 1),
    batch(2000, 33, 49),
    batch(8, 16384),
    batch(127, 673, 28),
    batch(64, 1000, 7, 7),
    batch(5, 3, 224, 224),
    batch(33, 65, 17, 19),
    batch(33, 65, 17, 19, channels_last=True),
    batch(5, 3, 224, 224, channels_last=True),
    Case("layer", (10007, 33)),
    Case("layer", (512, 5000)),
    Case("layer", (1, 4096)),
    Case("layer", (1, 65536)),
    Case("layer", (4, 8192)),
    Case("rms", (1, 4096)),
    Case("group", (7, 66, 31, 29), groups=11),
    Case("group", (4, 640, 32, 32), groups=32),
    Case("instance", (7, 33, 57, 55)),
    Case("instance", (8, 512, 14, 14)),
    Case("scaler", (37, 7)),
    Case("scaler", (100003, 33)),
    Case("scaler", (10000000, 4)),
]


def named(dtype: str) -> np.dtype:
    """Return the dtype of this name. NumPy has bfloat16 once ml_dtypes is imported."""
    if dtype == "bfloat16":
        import ml_dtypes  # noqa: F401
    return np.dtype(dtype)


class Data:
    """Arrays of one case, the same for every library. Vectors are float64; libraries may round them."""

    def __init__(self, case: Case, dtype: str = "float32") -> None:
        self.case, self.sizes, self.groups = case, case.sizes, case.groups
        rng = np.random.default_rng(0)
        self.x = self._array(rng, dtype, 2, 1)
        self.dy = self._array(rng, dtype, 1, 0) if "backward" in case.passes else None
        channels = case.sizes[1]
        self.gamma = self.beta = None
        if case.kind in ("batch", "layer", "group"):
            self.gamma, self.beta = rng.uniform(0.5, 2, channels), rng.standard_normal(channels)
        elif case.kind == "rms":
            self.gamma = rng.uniform(0.5, 2, channels)
        # For inference: not those of this batch, so that using the batch's by mistake is noticed.
        self.mean, self.var = rng.uniform(0.5, 1.5, channels), rng.uniform(3, 5, channels)

    def _array(self, rng: np.random.Generator, dtype: str, scale: float, shift: float) -> np.ndarray:
        drawn = dtype if dtype in ("float32", "float64") else "float32"
        pool = rng.standard_normal(min(POOL, self.case.values), dtype=drawn) * scale + shift
        pool = pool.astype(named(dtype), copy=False)
        if not self.case.channels_last:
            return np.resize(pool, self.sizes)
        n, channels, *space = self.sizes
        return np.moveaxis(np.resize(pool, (n, *space, channels)), -1, 1)

    def channel(self, vector: np.ndarray) -> np.ndarray:
        """Return a vector of C values as an array that NumPy broadcasts against x."""
        return vector.reshape(-1, *[1] * (len(self.sizes) - 2))
