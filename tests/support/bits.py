"""The SHA-256 of every result of every kernel, on shapes that take every path through them.

    python bits.py          as this process is set up (OMP_NUM_THREADS, BNORM_SIMD)
    python bits.py 1 2 3    after set_num_threads(1), (2) and (3)

prints, as JSON, a list with one entry per number of threads: SIMD level, number of threads, and digests by name.
"""

import json
import sys
from hashlib import sha256

import ml_dtypes  # noqa: F401  (NumPy knows bfloat16 by its name then)
import numpy as np

import bnorm
from bnorm.kernels import MEAN_SQUARE, VARIANCE, cpu
from bnorm.kernels.activation import GELU, IDENTITY, RELU, SILU, leaky
from rules import forward, rule

# Shapes for every branch from a shape to tasks, and from a task to loops. All but the last have so many values that
# threads share them.
CHANNELS = {
    (45001, 3): "few channels: rows are widened, several pieces, columns left over",
    (9001, 20): "few channels, whose weights are spread over rows of eight positions",
    (2100, 70): "several pieces, 64 columns and 6",
    (260, 601): "few rows: each thread has columns of its own, and maps whole rows",
    (40, 4096): "wide: one piece, groups that go through both passes at once",
    (4, 3, 14001): "runs longer than a block, several pieces",
    (2, 40, 2001): "runs longer than a tile, many channels: both passes at once",
    (1, 5, 30011): "one long run per channel",
    (1200, 3, 40): "short runs, mapped with the channel in registers",
    (3000, 3, 17): "short runs, widened",
    (40, 75, 49): "7x7 images of many channels: both passes at once",
    (600, 6, 49): "7x7 images of few channels: several pieces",
    (37, 11): "small",
}
ROWS = {  # (N, G, K, L)
    (2000, 1, 70, 1): "layer norm, several pieces",
    (31, 1, 5003, 1): "layer norm of rows longer than the buffer",
    (24, 8, 16, 49): "group norm of 7x7 images",
    (2, 32, 4, 601): "group norm of few samples: groups are cut, not samples",
    (16, 10, 1, 1025): "instance norm of long runs",
    (600, 6, 5, 9): "group norm of short runs",
}
# Results of 8 MiB and more, which are stored past the cache.
STREAMED = [(16501, 64), (2, 25, 21001), (335, 64, 49)]
STREAMED_ROWS = [(1050, 1, 1024, 1), (9, 4, 8, 3999), (39001, 1, 33, 1), (300, 80, 1, 49)]
WITH_NAN = [(2100, 70), (40, 11), (45001, 3), (4, 3, 14001), (40, 75, 49), (6, 5, 9), (300, 1025)]
EPS = 1e-5
POOL = np.random.default_rng(0).standard_normal(1 << 21)


def values(shape, dtype, start):
    n = int(np.prod(shape))
    some = POOL[start : start + n].reshape(shape) if start + n <= POOL.size else np.resize(POOL[start:], shape)
    return some.astype(dtype)


def example(shape, dtype):
    """x and dy."""
    return values(shape, dtype, 7) + np.asarray(3, dtype), values(shape, dtype, 1 << 19)


def weights(shape):
    return np.abs(values((shape[0], int(np.prod(shape[2:]))), "f8", 11)).round(1)


def vectors(n):
    """gamma, beta, mean and var."""
    gamma, beta, mean, spread = POOL[: 4 * n].reshape(4, n)
    return gamma, beta, mean + 3, spread**2 + 0.5


def basics(shape, dtype):
    """Forward and backward of batch norm, by name."""
    x, dy = example(shape, dtype)
    gamma, beta, mean, var = vectors(shape[1])
    running = mean.copy(), var.copy()
    moving = rule(*running, 0.1, np.full(shape[1], 5.0), 1)
    _, stats, count, _ = training = forward(cpu, x, gamma, beta, EPS, act=RELU, running=moving)
    yield "training", training
    yield "running", running
    yield "inference", cpu.forward(x, gamma, beta, EPS, mean, var)
    yield "backward", cpu.backward(dy, x, stats, count)


def the_rest(shape, dtype):
    """Weights, NaN, ReLU, leaky ReLU, and the single steps of a forward and a backward."""
    x, dy = example(shape, dtype)
    gamma, beta, mean, var = vectors(shape[1])
    holes = np.where(dy > 1, np.nan, x).astype(dtype)
    w = weights(shape)
    stats = np.stack([mean, var, var, gamma, beta])
    _, found, count, _ = weighted = cpu.forward(x, gamma, beta, EPS, weight=w)
    yield "weighted", weighted
    yield "backward, weighted, relu", cpu.backward(dy, x, found, count, w, RELU)
    yield "backward, frozen, relu", cpu.backward(dy, x, found, count, act=RELU, frozen=True)
    yield "backward, weighted, leaky", cpu.backward(dy, x, found, count, w, leaky(0.2))
    yield "moments", (cpu.moments(x),)
    yield "moments, weighted, skipna", (cpu.moments(holes, w, True),)
    for kind in ("f4", "?", "u1"):
        yield f"moments, weighted, {kind}", (cpu.moments(x, w.astype(kind)),)
    yield "moments, skipna", (cpu.moments(holes, skipna=True),)
    yield "silu", cpu.forward(x, gamma, beta, EPS, act=SILU)
    yield "backward, weighted, silu", cpu.backward(dy, x, found, count, w, SILU)
    yield "backward, gelu", cpu.backward(dy, x, found, count, act=GELU)
    yield "normalize", (cpu.normalize(x, stats, RELU),)
    yield "normalize, leaky", (cpu.normalize(x, stats, leaky(0.2)),)
    yield "grad_moments", (cpu.grad_moments(dy, x, stats),)
    yield "grad_moments, relu", (cpu.grad_moments(dy, x, stats, act=RELU),)
    yield "grad_input", (cpu.grad_input(dy, x, stats, np.stack([gamma, beta, var]), w, RELU),)


def not_a_number(shape, dtype):
    """NaN of every sign and payload in x and dy, in some channels and rows: which of their bits come out?"""
    x, dy = (a.copy() for a in example(shape, dtype))
    unsigned = f"u{x.itemsize}"
    quiet, some = np.array(np.nan, dtype).view(unsigned), np.random.default_rng(len(shape))
    for a in (x, dy):
        bits = a.view(unsigned)
        for channel in range(0, shape[1], 3):
            at = tuple(some.integers(0, n, 5) if i != 1 else channel for i, n in enumerate(shape))
            sign = some.integers(0, 2, 5).astype(unsigned) << np.array(8 * x.itemsize - 1, unsigned)
            bits[at] = quiet | some.integers(0, 1 << 20, 5).astype(unsigned) | sign
    gamma, beta, mean, var = vectors(shape[1])
    for act in (IDENTITY, RELU, leaky(0.2), SILU):
        _, stats, count, _ = training = cpu.forward(x, gamma, beta, EPS, act=act)
        yield f"NaN, training, {act}", training
        yield f"NaN, inference, {act}", cpu.forward(x, gamma, beta, EPS, mean, var, act=act)
        yield f"NaN, backward, {act}", cpu.backward(dy, x, stats, count, act=act)
        clean = cpu.forward(np.nan_to_num(x), gamma, beta, EPS)[1]
        yield f"NaN, backward of dy, {act}", cpu.backward(dy, x, clean, count, act=act)
        block = x.reshape(shape[0], 1, -1, 1) if len(shape) == 2 else x.reshape(shape[0], 1, *shape[1:])
        gamma_, beta_, *_ = vectors(block.shape[1] * block.shape[2])
        _, mean_, rstd = forward = cpu.rows_forward(block, gamma_, beta_, EPS, act=act)
        yield f"NaN, rows, {act}", forward
        yield (
            f"NaN, rows, backward, {act}",
            cpu.rows_backward(dy.reshape(block.shape), block, mean_, rstd, gamma_, beta_, act=act),
        )
    w = weights(shape)
    _, stats, count, _ = weighted = cpu.forward(x, gamma, beta, EPS, weight=w)
    yield "NaN, weighted", weighted
    yield "NaN, weighted, backward", cpu.backward(dy, x, stats, count, w)
    yield "NaN, moments", (cpu.moments(x), cpu.moments(x, w), cpu.moments(x, skipna=True))


def rows(shape, dtype):
    """Layer, group, instance and RMS norm."""
    x, dy = example(shape, dtype)
    gamma, beta, *_ = vectors(shape[1] * shape[2])
    for by, name in ((VARIANCE, "rows"), (MEAN_SQUARE, "rms")):
        act = RELU if by == MEAN_SQUARE else IDENTITY
        y, mean, rstd = cpu.rows_forward(x, gamma, beta, EPS, by, act)
        yield name, (y, mean, rstd)
        yield f"{name}, backward", cpu.rows_backward(dy, x, mean, rstd, gamma, beta, by, act)
    yield "rows, silu", cpu.rows_forward(x, gamma, beta, EPS, act=SILU)
    yield "rows, gelu, backward", cpu.rows_backward(dy, x, mean, rstd, gamma, beta, act=GELU)
    yield "rows, leaky", cpu.rows_forward(x, gamma, beta, EPS, act=leaky(0.2))
    yield "rows, leaky, backward", cpu.rows_backward(dy, x, mean, rstd, gamma, beta, act=leaky(0.2))
    _, mean, rstd = plain = cpu.rows_forward(x, None, None, EPS)
    yield "rows, plain", plain
    yield "rows, plain, backward", cpu.rows_backward(dy, x, mean, rstd, None, None, params=False)


def integers(shape, dtype):
    """Batch norm and moments of integers from the full range of the type."""
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = np.random.default_rng(0).integers(low, high, shape, dtype=dtype, endpoint=True)
    gamma, beta, mean, var = vectors(shape[1])
    w = weights(shape)
    yield "moments", (cpu.moments(x), cpu.moments(x, w))
    yield "training", cpu.forward(x, gamma, beta, EPS)
    yield "inference", cpu.forward(x, gamma, beta, EPS, mean, var, act=RELU)


def conversions(shape, dtype):
    """To float32 and back, for every number and NaN of the type."""
    x = np.arange(1 << 16).astype("u2").view(dtype)
    some = np.random.default_rng(0).integers(0, 1 << 32, shape, dtype="u4").view("f4")
    yield "conversions", (cpu.widened(x), cpu.narrowed(cpu.widened(x), x), cpu.narrowed(some, x))


def streams(shape, dtype):
    """Values that fade, in tables, groups and loops. NumPy and C libraries have powers of two of their own."""
    x = values(shape, dtype, 7) + np.asarray(3, dtype)
    times, w = np.cumsum(values(shape[:1], "f8", 11) ** 2), np.abs(values(shape[:1], "f8", 1 << 19)).round(1)
    half, keyed = shape[0] // 2, np.column_stack([np.arange(len(x)) % 5, x.astype("f8")])
    for halflife, by in ((7.3, None), ("9s", times)):
        for weight in (None, w):
            t = bnorm.BatchNormTransformer(halflife=halflife)
            for rows in (slice(half), slice(half, None)):
                of = {name: a[rows] for name, a in (("times", by), ("sample_weight", weight)) if a is not None}
                t.partial_fit(x[rows], **of)
            yield f"stream, {halflife}, {weight is None}", (t.mean_, t.var_)
        grouped = bnorm.GroupedTransformer(0, halflife=halflife)
        grouped.partial_fit(keyed[:half], times=by if by is None else by[:half])
        grouped.partial_fit(keyed[half:], times=by if by is None else by[half:])
        yield f"groups, {halflife}", (grouped.means_, grouped.vars_)
    for settings in ({"halflife": 7.3}, {"momentum": 0.03}, {"momentum": 1e-9}):
        loop = bnorm.RunningNorm(shape[1], **settings)
        for some in np.array_split(x, 9):
            loop(some)
        yield f"loop, {settings}", (loop.mean, loop.var)
    layer = bnorm.BatchNormTransformer(halflife=40.0).fit(x).layer_.train()
    yield "layer of a stream", (layer(x), layer.running_mean, layer.running_var)


def digest(arrays):
    sha = sha256()
    for a in arrays:
        if isinstance(a, np.ndarray):
            sha.update(a.reshape(-1).view("u1"))
    return sha.hexdigest()


def digests():
    cases = [(f, shape, dtype) for f in (basics, the_rest) for shape in CHANNELS for dtype in ("f4", "f8")]
    cases += [(f, shape, "f2") for f in (basics, the_rest) for shape in CHANNELS]
    cases += [(basics, shape, "bfloat16") for shape in CHANNELS]
    cases += [(integers, shape, dtype) for shape in CHANNELS for dtype in ("u1", "i2", "u2")]
    cases += [(integers, shape, dtype) for shape in WITH_NAN for dtype in ("bool", "i1", "i4", "u4", "i8", "u8")]
    cases += [(conversions, (1 << 20,), dtype) for dtype in ("f2", "bfloat16")]
    cases += [(not_a_number, shape, dtype) for shape in WITH_NAN for dtype in ("f4", "f8")]
    cases += [(rows, shape, dtype) for shape in ROWS for dtype in ("f2", "f4", "f8")]
    cases += [(basics, shape, "f8") for shape in STREAMED] + [(rows, shape, "f8") for shape in STREAMED_ROWS]
    cases += [(streams, (600, 7), dtype) for dtype in ("f4", "f8")]
    cases += [(basics, (66004, 64), "f2"), (basics, (1340, 64, 49), "bfloat16"), (rows, (4200, 1, 1024, 1), "f2")]
    return {f"{name} {dtype} {shape}": digest(arrays) for f, shape, dtype in cases for name, arrays in f(shape, dtype)}


def main():
    found = []
    for threads in map(int, sys.argv[1:] or [0]):
        if threads:
            bnorm.set_num_threads(threads)
        found.append({"level": cpu.simd_level(), "threads": bnorm.get_num_threads(), "digests": digests()})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
