"""Comparisons whose errors print the case, bounds of the errors of results, and gradients by central differences."""

from collections.abc import Callable
from functools import partial

import numpy as np

EPS = {np.dtype(t): float(np.finfo(t).eps) for t in ("float16", "float32", "float64")}
EPS[np.dtype("float16")] = EPS[np.dtype("float32")]  # half precision is computed in float32


def assert_close(got, want, allowed, **case) -> None:
    """Assert |got - want| <= allowed, elementwise, with NaN where want is NaN and the same infinities.

    `case` is what the message prints: everything that is needed to run it again.
    """
    got, want = np.asarray(got), np.asarray(want)
    where = ", ".join(f"{key}={value}" for key, value in case.items())
    if got.shape != want.shape:
        raise AssertionError(f"{where}: got shape {got.shape}, want {want.shape}")
    if np.array_equal(got, want, equal_nan=True):
        return
    if within(got, want, allowed):
        return
    a, b = got.astype(np.longdouble), want.astype(np.longdouble)
    allowed = np.broadcast_to(np.asarray(allowed, np.longdouble), want.shape)
    with np.errstate(invalid="ignore"):
        error = np.abs(a - b)
    error = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, error)
    excess = np.where(np.isnan(error), np.inf, error - allowed)
    worst = np.unravel_index(np.argmax(excess), want.shape)
    if excess[worst] > 0:
        wrong = int((excess > 0).sum())
        raise AssertionError(
            f"{where}: {wrong} of {want.size} elements of {got.dtype} are too far off; at {tuple(map(int, worst))} "
            f"got {got[worst]!s}, want {want[worst]!s}, error {error[worst]:.3g}, allowed {allowed[worst]:.3g}"
        )


def within(got, want, allowed) -> bool:
    """Whether this is certain in float64, which is much faster than long double. Close or infinite values are not.

    The difference of two float64 has an error of half a unit in the last place; it is enlarged by more than that.
    """
    if not all(a.dtype.kind == "f" and a.dtype.itemsize <= 8 for a in (got, want)):
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(got.astype(np.float64) - want.astype(np.float64)) * (1 + 2.0**-50)
    return bool((error <= allowed).all())


def assert_same(got, want, **case) -> None:
    """Assert the same values; NaN equals NaN."""
    assert_close(got, want, 0.0, **case)


def rounding(dtype, y):
    """Half a unit in the last place of a half-precision result; for other types the bounds below include it."""
    return np.abs(y) * 2.0**-11 + 2.0**-25 if np.dtype(dtype) == np.float16 else 0.0


def normalized_error(dtype, y, mean_over_std):
    """The promised error of y = (x - mean) / std: for any mean in float32; in float64, the mean's rounding counts."""
    size = np.maximum(1, np.abs(y))
    if np.dtype(dtype) == np.float64:
        return 8 * EPS[np.dtype(dtype)] * np.maximum(1, np.abs(mean_over_std)) * size
    return 2e-6 * np.maximum(1, np.abs(y) / 8) + rounding(dtype, y)


def sum_error(dtype, terms, axis):
    """The error of a sum of computed terms: a few roundings of each, and additions in float64.

    `terms` are those of the exact sum. Larger terms, which another formula would have to cancel, are not allowed for.
    """
    return 8 * EPS[np.dtype(dtype)] * np.abs(terms).sum(axis)


def central_differences(f: Callable[[np.ndarray], float], x: np.ndarray) -> np.ndarray:
    """df/dx for a scalar f of a float64 array, by moving one element at a time. Good to about 1e-9 of the largest."""
    step = 1e-5
    gradient = np.empty_like(x)
    moved = x.copy()
    for i in np.ndindex(*x.shape):
        moved[i] = x[i] + step
        above = f(moved)
        moved[i] = x[i] - step
        gradient[i] = (above - f(moved)) / (2 * step)
        moved[i] = x[i]
    return gradient


def assert_gradient(got, f: Callable[[np.ndarray], float], x: np.ndarray, **case) -> None:
    """Assert that got is df/dx, to 1e-6 of its largest element."""
    assert_differences(got, central_differences(f, x), **case)


def assert_gradients_of(parameters, loss: Callable[[], float], **case) -> None:
    """Assert that the `grad` of each parameter is the derivative of the loss. The parameters end as they began."""

    def loss_of(p, values):
        p.data[...] = values
        return loss()

    for p in parameters:
        values = np.array(p)
        assert_gradient(p.grad, partial(loss_of, p), values, **case)
        p.data[...] = values


def assert_differences(got, want: np.ndarray, **case) -> None:
    """The same if the central differences are known already."""
    assert_close(got, want, 1e-6 * max(np.abs(want).max(initial=0.0), 1e-3), **case)
