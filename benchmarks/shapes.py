"""The shapes that are measured, the data they are filled with, and what float64 says the results are."""

from dataclasses import dataclass
from math import prod

import numpy as np

EPS = 1e-5
# Times the array: the least that each operation reads and writes, the whole array being in no cache before or after.
LEAST_PASSES = {
    "forward": 3,  # x for the statistics, x again, y
    "inference": 2,  # x, y
    "backward": 5,  # x and dy for the sums, x and dy again, dx
}
OPERATIONS = tuple(LEAST_PASSES)


@dataclass(frozen=True)
class Shape:
    """N, C and what follows. channels_last: the same order of axes, but channels next to each other in memory."""

    sizes: tuple[int, ...]
    channels_last: bool = False
    quick: bool = False  # --quick runs it too

    @property
    def name(self) -> str:
        return f"{self.sizes}{' channels last' if self.channels_last else ''}"


TWO_D = [
    Shape((32, 64), quick=True),
    Shape((256, 128)),
    Shape((1024, 256), quick=True),
    Shape((4096, 512)),
    Shape((65536, 64), quick=True),
    Shape((65536, 256)),
    Shape((1000000, 3)),
    Shape((1000000, 32), quick=True),
    Shape((1000000, 100)),
]
FOUR_D = [
    Shape((8, 16, 8, 8)),
    Shape((32, 64, 56, 56), quick=True),
    Shape((32, 256, 14, 14)),
    Shape((64, 512, 7, 7)),
    Shape((16, 64, 112, 112)),
]
CHANNELS_LAST = [Shape(shape.sizes, True, shape.quick) for shape in FOUR_D]
ALL = [*TWO_D, *FOUR_D, *CHANNELS_LAST]


class Data:
    """Arrays of one shape, the same for every library. Vectors are float64, and rounded by who wants them rounded."""

    def __init__(self, shape: Shape, dtype: str = "float32") -> None:
        self.shape = shape
        rng = np.random.default_rng(0)
        self.x = self._array(rng, dtype)
        self.x *= 2
        self.x += 1
        self.dy = self._array(rng, dtype)
        channels = shape.sizes[1]
        self.gamma, self.beta = rng.uniform(0.5, 2, channels), rng.standard_normal(channels)
        # For inference: not those of this batch, so that who uses the batch's by mistake is found out.
        self.mean, self.var = rng.uniform(0.5, 1.5, channels), rng.uniform(3, 5, channels)
        self.axes = tuple(axis for axis in range(len(shape.sizes)) if axis != 1)
        self.count = prod(shape.sizes) // channels

    def _array(self, rng: np.random.Generator, dtype: str) -> np.ndarray:
        if not self.shape.channels_last:
            return rng.standard_normal(self.shape.sizes, dtype=dtype)
        n, channels, *space = self.shape.sizes
        return np.moveaxis(rng.standard_normal((n, *space, channels), dtype=dtype), -1, 1)

    def channel(self, vector: np.ndarray) -> np.ndarray:
        """A vector of C values as an array that NumPy broadcasts against x."""
        return vector.reshape(-1, *[1] * (len(self.shape.sizes) - 2))

    def exact(self, operation: str) -> tuple[np.ndarray, ...]:
        """The results in float64, by the formulas and nothing else."""
        x, gamma, beta = self.x.astype("float64"), self.channel(self.gamma), self.channel(self.beta)
        if operation == "inference":
            return ((x - self.channel(self.mean)) / np.sqrt(self.channel(self.var) + EPS) * gamma + beta,)
        x -= x.mean(axis=self.axes, keepdims=True)
        std = np.sqrt((x**2).mean(axis=self.axes, keepdims=True) + EPS)
        xhat = np.divide(x, std, out=x)
        if operation == "forward":
            return (xhat * gamma + beta,)
        dy = self.dy.astype("float64")
        dgamma, dbeta = (dy * xhat).sum(axis=self.axes), dy.sum(axis=self.axes)
        xhat *= self.channel(dgamma) / self.count
        dy -= xhat
        dy -= self.channel(dbeta) / self.count
        return np.multiply(dy, gamma / std, out=dy), dgamma, dbeta
