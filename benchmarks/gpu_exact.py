"""What results on a GPU are compared with: normalizations in float64, and how far from them a sound result may be.

`Exact` takes CuPy or NumPy arrays. Its bounds say for every element what rounding can do to it: they follow from the
sizes of the terms of each sum, from how many additions follow each other in a library, and from the types to which it
rounds. A result outside its bounds is wrong, whatever the size of the array; one inside is as good as the library gets.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple

EPS = 1e-5
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # of rounding to a type
SMALLEST = {"float64": 0.0, "float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}  # smaller: few digits
FEW = 16  # operations in a row besides those of a sum
Array = Any


class Rounding(NamedTuple):
    """How a library rounds. The numbers are relative errors, except `depth` and `smallest`."""

    unit: float  # of one operation
    depth: Callable[[float], float]  # how many additions follow each other in a sum of n terms
    result: float  # of results in the type of x
    smallest: float  # the absolute error of results near 0
    statistics: float = 0.0  # of mean and 1/std, if they are kept in a small type
    parameters: float = 0.0  # of gradients of parameters


def ours(dtype: str) -> Rounding:
    """How bnorm rounds. A thread adds at most 64 numbers in a row in float32, and then continues in float64."""
    unit = UNIT["float64" if dtype == "float64" else "float32"]
    return Rounding(unit, sqrt if dtype == "float64" else lambda n: min(n, 64.0), UNIT[dtype], SMALLEST[dtype])


def theirs(dtype: str, parameters: str) -> Rounding:
    """How PyTorch rounds. In a sum that is cut into pieces, whose sums are added, as many rounding errors follow each
    other as the square root of the number of terms; in any other order, errors grow like that too. Norms of rows keep
    statistics in the type of x."""
    unit = UNIT["float64" if dtype == "float64" else "float32"]
    own = UNIT[dtype] if parameters == dtype else 0.0
    return Rounding(unit, sqrt, UNIT[dtype], SMALLEST[dtype], own, UNIT[parameters])


def wide(xp: Any, a: Array) -> Array:
    """Return a as float64; bfloat16 by way of float32, to which CuPy can convert it."""
    return a.astype(xp.float32).astype(xp.float64) if a.dtype.name == "bfloat16" else a.astype(xp.float64)


class Exact:
    """A normalization over some axes, its backward and the gradients of gamma and beta over others.

    gamma and beta have as many axes as x. weight: of each value, or 1. known: a mean and a variance for inference.
    """

    def __init__(
        self,
        xp: Any,
        arrays: tuple[Array, Array, Array, Array],  # x, dy, gamma, beta
        over: tuple[int, ...],
        sums_over: tuple[int, ...],
        rms: bool = False,
        weight: Array | float = 1.0,
        known: tuple[Array, Array] | None = None,
    ) -> None:
        x, dy, gamma, beta = arrays
        self.xp, self.over, self.sums_over, self.rms, self.known = xp, over, sums_over, rms, known
        self.x, self.dy, self.gamma, self.beta = wide(xp, x), wide(xp, dy), gamma, beta
        self.weight = xp.ones((1,) * x.ndim) * weight
        self.count = (self.weight + xp.zeros([x.shape[i] if i in over else 1 for i in range(x.ndim)])).sum(
            over, keepdims=True
        )
        self.terms = float(x.size // x.shape[0] if 0 not in over else x.size // x.shape[1])
        self.summed = float(x.size // gamma.size)
        self.mean = self.average(self.x) * (0 if rms else 1)
        if not rms:  # the second time adds the rounding error of the first
            self.mean += self.average(self.x - self.mean)
        away = self.x - self.mean
        self.rstd = 1 / xp.sqrt(self.average(away * away) + EPS)
        self.xhat = away * self.rstd

    def average(self, a: Array) -> Array:
        return (self.weight * a).sum(self.over, keepdims=True) / self.count

    def total(self, a: Array) -> Array:
        """The same without weights, for gradients."""
        return a.sum(self.over, keepdims=True) / self.count

    def results(self) -> dict[str, list[Array]]:
        dy, g = self.dy, self.dy * self.gamma
        dx = self.rstd * (g - self.weight * (self._mean_gradient(g) + self.xhat * self.total(g * self.xhat)))
        found = {
            "forward": [self.xhat * self.gamma + self.beta],
            "backward": [dx, (dy * self.xhat).sum(self.sums_over).ravel(), dy.sum(self.sums_over).ravel()],
        }
        if self.known:
            mean, var = self.known
            found["inference"] = [(self.x - mean) / self.xp.sqrt(var + EPS) * self.gamma + self.beta]
        return found

    def _mean_gradient(self, g: Array) -> Array:
        return self.total(g) * (0 if self.rms else 1)

    def bounds(self, of: Rounding, results: dict[str, list[Array]]) -> dict[str, list[Array]]:
        """Return for every element of the results how far from it a library's may be."""
        xp, unit, few, x = self.xp, of.unit, FEW * of.unit, abs(self.x)
        # relative errors of sums, against the sum of the sizes of their terms
        sums, long_sums = ((of.depth(n) + FEW) * unit for n in (self.terms, self.summed))
        of_mean = (sums * self.average(x) + of.statistics * abs(self.mean)) * (0 if self.rms else 1)
        of_rstd = sums * self.average(x * x) * self.rstd**2 + few + of.statistics
        apart = x + abs(self.mean)  # the sizes of what x - mean is a difference of
        of_xhat = abs(self.xhat) * of_rstd + self.rstd * (of_mean + unit * apart)
        y, (dx, dgamma, dbeta) = results["forward"][0], results["backward"]
        size, dy, signed = abs(self.xhat), abs(self.dy), self.dy * self.gamma
        g, mean_g, mean_dot = abs(signed), abs(self._mean_gradient(signed)), abs(self.total(signed * self.xhat))
        of_mean_g = sums * self.total(g)
        of_mean_dot = sums * self.rstd * self.total(g * apart) + self.total(g * of_xhat)
        # the factor of x may contain 1/std to the power of three
        of_mean_parts = few * mean_g + (few + 3 * of_rstd) * size * mean_dot
        of_dx = few * g + self.weight * (of_mean_parts + of_mean_g + size * of_mean_dot + of_xhat * mean_dot)
        of_dgamma = (long_sums * (dy * self.rstd * apart) + dy * of_xhat).sum(self.sums_over).ravel()
        of_dbeta = (long_sums * dy).sum(self.sums_over).ravel()
        found = {
            "forward": [self._of_y(of, of_xhat, size, y)],
            "backward": [
                of_rstd * abs(dx) + self.rstd * of_dx + of.result * abs(dx) + of.smallest,
                of_dgamma + of.parameters * abs(dgamma),
                of_dbeta + of.parameters * abs(dbeta),
            ],
        }
        if self.known:
            mean, var = self.known
            rstd = 1 / xp.sqrt(var + EPS)
            xhat = abs(self.x - mean) * rstd
            of_known = few * (xhat + rstd * (x + abs(mean)))
            found["inference"] = [self._of_y(of, of_known, xhat, results["inference"][0])]
        return found

    def _of_y(self, of: Rounding, of_xhat: Array, xhat: Array, y: Array) -> Array:
        of_map = FEW * of.unit * (abs(self.gamma) * xhat + abs(self.beta))
        return abs(self.gamma) * of_xhat + of_map + of.result * abs(y) + of.smallest


def exact_batch(xp: Any, x: Array, dy: Array, *vectors: Array, weight: Array | float = 1.0) -> Exact:
    """x: (outer, C) or (outer, C, inner). vectors: gamma and beta, mean and var of inference, of (C,) each."""
    over = tuple(i for i in range(x.ndim) if i != 1)
    gamma, beta, *known = (v.reshape(1, -1, *(1 for _ in over[1:])) for v in vectors)
    return Exact(xp, (x, dy, gamma, beta), over, over, weight=weight, known=tuple(known) or None)


def exact_rows(xp: Any, x: Array, dy: Array, *vectors: Array, rms: bool = False, weight: Array | float = 1.0) -> Exact:
    """x: (N, G, K, L). vectors: gamma and beta, of (G * K,)."""
    gamma, beta = (v.reshape(1, *x.shape[1:3], 1) for v in vectors)
    return Exact(xp, (x, dy, gamma, beta), (2, 3), (0, 3), rms, weight)


def compare(xp: Any, what: str, got: list[Array], want: list[Array], bounds: list[Array]) -> tuple[float, float]:
    """Return the largest error, relative to the largest value of a result (or to 1), and as a fraction of its bound.

    ArithmeticError if this fraction is more than 1, or not a number.
    """
    worst, share = 0.0, 0.0
    for one, exact, bound in zip(got, want, bounds, strict=False):
        error = abs(wide(xp, one).reshape(exact.shape) - exact)
        parts = float((error / bound).max())
        relative = float(error.max()) / max(1.0, float(abs(exact).max()))
        if not parts <= 1:
            raise ArithmeticError(f"{what}: off by {relative:.3g} of the largest, {parts:.3g} times what rounding does")
        worst, share = max(worst, relative), max(share, parts)
    return worst, share
