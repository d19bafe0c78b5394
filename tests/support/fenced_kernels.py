"""Every compiled entry on arrays between fences: `python fenced_kernels.py end|begin` prints the entries it has called.

Sizes are those of vectors, tiles and strips, one more and one less; types are all that the entries read. Results are
not checked here: the tests of the kernels do that, which `fences.py` runs between fences too.
"""

import json
import sys
from collections.abc import Iterator
from itertools import product

import ml_dtypes
import numpy as np

import fences
from bnorm.kernels import MEAN_SQUARE, VARIANCE
from bnorm.kernels.activation import IDENTITY, RELU, SILU, leaky
from bnorm.kernels.cpu import entries, groups, second, sparse
from bnorm.kernels.cpu.exact import entries as exact
from bnorm.kernels.cpu.extremes import entries as extreme
from bnorm.running import Statistics

WIDE = ["f8", "f4"]
FLOATS = [*WIDE, "f2", ml_dtypes.bfloat16]
SMALL = ["?", "u1", "i1", "u2", "i2"]
INTEGERS = [*SMALL, "u4", "i4", "u8", "i8"]
TABLES = [(n, c) for n, c in product((1, 2, 5, 33), (1, 2, 3, 7, 9, 15, 17, 31, 33, 65, 130))] + [(515, 3), (70, 515)]
RUNS = [(n, c, k) for (n, c), k in product([(1, 1), (2, 3), (9, 5)], (1, 3, 7, 9, 15, 17, 31, 33, 49, 65, 130, 515))]
RUNS += [(1, 2, 4099), (2, 40, 49)]
ROWS = [(3, 1, k, 1) for k in (1, 3, 7, 9, 15, 17, 31, 33, 63, 65, 129, 515, 1031)]
ROWS += [(2, 3, 2, k) for k in (1, 3, 5, 9, 17, 33, 49, 65, 130)] + [(18, 1, 5, 1), (2, 1, 1, 4099)]
EPS = 1e-5
ACTS = (IDENTITY, RELU, leaky(0.2), SILU)


def values(rng, shape, kind, offset=3.0):
    kind = np.dtype(kind)
    if kind.kind in "biu":
        return rng.integers(0, 2 if kind.kind == "b" else 100, shape).astype(kind)
    return (rng.standard_normal(shape) + offset).astype(kind)


def bent(x, act):
    """The array for the second derivative of an activation, if it has one."""
    return np.ones_like(x) if act is SILU else None


def of_channels(rng, shape, kind) -> Iterator[str]:
    x, dy, c = values(rng, shape, kind), values(rng, shape, kind, 0.0), shape[1]
    gamma, beta, mean, var = (rng.uniform(0.5, 2, c) for _ in range(4))
    weight = rng.integers(0, 3, (shape[0], int(np.prod(shape[2:])))).astype(float)
    floats = kind in FLOATS
    given = entries.known(mean, var, gamma, beta, EPS)
    with_extremes = kind in FLOATS + SMALL
    if with_extremes:
        extreme.extremes(x)
        extreme.extremes(x, weight, True)
    entries.keep_weights(weight, True)
    for dtype in ("u1", "f4"):
        entries.moments(x, *entries.keep_weights(weight.astype(dtype), True)[:1])
    columns = [values(rng, x.size, kind) for _ in range(2)]
    entries.column_moments(columns)
    entries.column_moments(columns, rng.integers(0, 3, x.size).astype(float), with_extremes)
    for w, act in [(None, IDENTITY), (weight, RELU), (None, leaky(0.2)), (weight, SILU), (None, SILU)]:
        parts = entries.moments(x, w)
        entries.moments(x, w, True)
        stats = entries.finish(parts, gamma, beta, EPS)
        y, stats, count, _ = entries.forward(x, gamma, beta, EPS, weight=w, act=act)
        entries.normalize(x, stats, act, np.empty_like(y), True)
        entries.inverse(stats, True)
        entries.forward(x, gamma, None, EPS, mean, var, act=act, out=np.empty_like(y))
        if floats:
            entries.backward(dy, x, stats, count, w, act)
            entries.backward(dy, x, given, count, None, act, True, False, np.empty_like(x))
            sums = entries.grad_moments(dy, x, stats, w, act)
            coefficients = entries.finish_gradients(sums, stats, count)
            entries.grad_input(dy, x, stats, coefficients, w, act, np.empty_like(x))
        if kind in WIDE:
            second.channels(dy.copy(), dy, x, stats, count, w, act, False, gamma, beta, bent(x, act))
    yield from (
        "keep_weights",
        "known",
        "moments",
        "column_moments",
        "finish",
        "forward",
        "normalize",
        "inverse",
        "backward",
        "grad_moments",
        "finish_gradients",
    )
    yield from ("grad_input", "extreme.extremes", "second.channels")
    flat = np.ascontiguousarray(np.moveaxis(x, 1, -1).reshape(-1, c))
    for average in ({"momentum": None}, {"momentum": 0.1}, {"momentum": None, "halflife": 3.0}):
        running = Statistics(np.zeros(c), np.ones(c), from_data=True, **average).rule
        entries.settle(running, stats, float(x.size // c), x.size)
        entries.move(running, parts, *([gamma, beta, mean] if "halflife" in average else []))
        entries.assign(running, Statistics(np.zeros(c), np.ones(c), from_data=True, **average).rule)
        if kind in WIDE:
            entries.online(flat, running, np.zeros(c, np.int64), EPS)
    entries.merge([parts.copy(), parts.copy(), parts.copy()])
    total = gamma.copy()
    entries.add(total, beta, total.copy(), beta)
    entries.in_float64((gamma.astype(np.float32), None, beta))
    entries.halved(-np.abs(gamma))
    turned = entries.contiguous(x.T)
    entries.copy_into(x.copy().T, turned)
    yield from ("settle", "move", "assign", "online", "merge", "add", "in_float64", "halved", "contiguous", "copy_into")
    if floats and np.dtype(kind).itemsize == 2:
        entries.narrowed(entries.widened(x), x)
        yield from ("widened", "narrowed")


def of_groups(rng, shape, kind) -> Iterator[str]:
    x = values(rng, shape, kind).reshape(*shape[:2], -1)
    positions = x.shape[0] * x.shape[2]
    for n, code, weight in ((5, np.int64, None), (1, np.int32, None), (97, np.int32, rng.random(positions))):
        codes = rng.integers(-1, n, positions).astype(code)
        parts = groups.moments(x, codes, n, weight)
        groups.moments(x, codes, n, weight, True)
        groups.normalize(x, codes, np.ascontiguousarray(parts[:3].swapaxes(0, 1)), None)
        groups.later(codes, n)
        groups.distinct(codes.astype(np.int64))
    yield from ("groups.moments", "groups.normalize", "groups.later", "groups.distinct")


def of_exact_sums(rng, shape, kind) -> Iterator[str]:
    x = values(rng, shape, kind).reshape(*shape[:2], -1)
    _, first, limbs, at, squares = exact.exact_sums(x)
    exact.exact_sums(x, rng.random((x.shape[0], x.shape[2])) < 0.5)
    exact.combined([(first, limbs), (first, limbs.copy())], [1, 3])
    counts = np.zeros((4, x.shape[1]), np.int64)
    counts[0] = positions = x.shape[0] * x.shape[2]
    sums = (first, limbs.copy()), (at, squares.copy())
    exact.rounded(counts, sums)
    exact.variances(counts, sums, 0.5, positions % 2 > 0)
    exact.impossible(counts, sums)
    yield from (f"exact.{name}" for name in ("exact_sums", "combined", "rounded", "variances", "impossible"))


def of_rows(rng, shape, kind) -> Iterator[str]:
    x, dy = values(rng, shape, kind), values(rng, shape, kind, 0.0)
    n, g, k, positions = shape
    gamma, beta = (rng.uniform(0.5, 2, g * k) for _ in range(2))
    weight = rng.integers(0, 3, (n, positions)).astype(float)
    for by, act, affine in product((VARIANCE, MEAN_SQUARE), ACTS, (True, False)):
        of = (gamma, beta) if affine else (None, None)
        _, mean, rstd = entries.rows_forward(x, *of, EPS, by, act)
        entries.rows_forward(x, *of, EPS, by, act, np.empty_like(x), values(rng, shape, kind))
        entries.rows_backward(dy, x, mean, rstd, *of, by, act)
        entries.rows_backward(dy, x, mean, rstd, *of, by, act, affine, np.empty_like(x), values(rng, shape, kind))
        if kind in WIDE:
            second.rows(dy.copy(), dy, x, mean, rstd, *of, by, act, *of, bent(x, act))
    narrow = gamma.astype("f4"), beta.astype("f4")
    _, mean, rstd, *copies = entries.rows_forward(x, *narrow, EPS, act=RELU, copies=True)
    for of in (narrow, copies):
        entries.rows_backward(dy, x, mean, rstd, *of, act=RELU)
    _, mean, rstd = entries.rows_forward(x, gamma, beta, EPS, weight=weight)
    entries.rows_backward(dy, x, mean, rstd, gamma, beta, weight=weight)
    if kind in WIDE:
        second.rows(dy.copy(), dy, x, mean, rstd, gamma, beta, VARIANCE, IDENTITY, gamma, beta, weight=weight)
    yield from ("rows_forward", "rows_backward", "second.rows")


def of_sparse_tables(rng, shape, kind) -> Iterator[str]:
    n, c = shape
    here = rng.random(shape) < 0.4
    for by_column, index in product((False, True), ("i4", "i8")):
        there = here.T if by_column else here
        indptr = np.r_[0, np.cumsum(there.sum(1))].astype(index)
        data, indices = values(rng, int(indptr[-1]), kind), np.nonzero(there)[1].astype(index)
        sparse.moments(data, indices, indptr, shape, by_column)
        sparse.moments(data, indices, indptr, shape, by_column, rng.random(n))
        sparse.scaled(data, indices, rng.random(n if by_column else c), np.empty_like(data))
    yield from ("sparse.moments", "sparse.scaled")


def called() -> set[str]:
    rng, names = np.random.default_rng(0), set()
    for shape, kind in product(TABLES + RUNS, FLOATS + INTEGERS):
        names |= set(of_channels(rng, shape, kind))
        names |= set(of_groups(rng, shape, kind))
        names |= set(of_exact_sums(rng, shape, kind))
    for shape, kind in product(ROWS, FLOATS):
        names |= set(of_rows(rng, shape, kind))
    for shape, kind in product(TABLES, WIDE):
        names |= set(of_sparse_tables(rng, shape, kind))
    return names


if __name__ == "__main__":
    fences.raised(sys.argv[1])
    json.dump(sorted(called()), sys.stdout)
