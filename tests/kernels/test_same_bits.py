"""No result depends, to the last bit, on the number of threads, the SIMD level, or the place of an array in memory."""

import json
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import permutations

import numpy as np
import numpy._core._multiarray_umath as umath
import pytest

import bits
import bnorm.functional as F
import cases
from bnorm.kernels import cpu
from bnorm.kernels.activation import leaky
from bnorm.kernels.cpu import entries
from bnorm.kernels.cpu.threads import openmp_version
from child import output

# What all digests of bits.py come to, on x86-64 and on aarch64. A change to the order of sums records what it makes of
# them, which the failing test prints.
RECORDED = "270e8438f930accd33d9c810ff8223713e4b69c17aceeaf1e1cbc999167a9b38"

LEVELS = cpu.simd_levels()
PLAIN = (LEVELS[0], 1)  # the baseline, where all are built
# What NumPy uses on this processor beyond its own baseline: the plain run does without.
OF_NUMPY = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]
# The default run's, beside that one and the widest level with 7 threads and then 1 in one process; the rest is slow.
FEW = [(level, 3) for level in LEVELS[1:-1]]
EVERY = [(level, threads) for level in LEVELS for threads in (1, 2, 3, 7) if (level, threads) != PLAIN]


def runs(*threads, **environment):
    return json.loads(output("bits.py", *threads, **environment))


@pytest.fixture(scope="module")
def found():
    """What processes of their own find, by SIMD level and number of threads; those of the default run, two at a time,
    as hashing takes one thread. And what one finds that changes the number of threads."""

    def start(run):
        without = {"NPY_DISABLE_CPU_FEATURES": " ".join(OF_NUMPY)} if run == PLAIN else {}
        return runs(BNORM_SIMD=run[0], OMP_NUM_THREADS=run[1], **without)

    with ThreadPoolExecutor(2) as pool:
        jobs = {run: pool.submit(start, run) for run in [PLAIN, *FEW]}
        jobs["changing"] = pool.submit(runs, 7, 1, OMP_NUM_THREADS=1)
        yield lambda run: jobs[run].result() if run in jobs else start(run)
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def plain(found):
    """By one thread that uses no instruction younger than its processor's family."""
    (run,) = found(PLAIN)
    assert (run["level"], run["threads"]) == PLAIN
    assert len(set(run["digests"].values())) > 0.9 * len(run["digests"])  # they are digests of different things
    return run["digests"]


def assert_equal(run, plain, threads, level):
    assert run["level"] == level
    assert run["threads"] == (threads if openmp_version() else 1)
    assert run["digests"].keys() == plain.keys()
    assert [name for name, digest in run["digests"].items() if digest != plain[name]] == []


@pytest.mark.parametrize(
    ("level", "threads"),
    [pytest.param(*run, marks=() if run in FEW else pytest.mark.slow) for run in EVERY],
)
def test_every_simd_level_and_number_of_threads(found, plain, level, threads):
    (run,) = found((level, threads))
    assert_equal(run, plain, threads, level)


def test_every_machine(plain):
    """Processors of another kind computed the same."""
    assert sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest() == RECORDED


def test_changing_the_number_of_threads(found, plain):
    for threads, run in zip((7, 1), found("changing"), strict=True):
        assert_equal(run, plain, threads, LEVELS[-1])


# Memory ---------------------------------------------------------------------------------------------------------------

SHAPE = (12, 6, 7, 9)
COPIES = [cases.strided, cases.columns_of_wider, cases.backwards, cases.byte_swapped, cases.unaligned, cases.read_only]


def example(dtype="f4"):
    x, dy = bits.values(SHAPE, dtype, 0) + np.asarray(3, dtype), bits.values(SHAPE, dtype, 1 << 18)
    return x, dy, np.abs(x[:, 0]).round(1)


def batch_norm(x, dy, axis, weight=None):
    """All results, arrays first."""
    gamma, beta, mean, var = bits.vectors(x.shape[axis])
    y, saved = F.batch_norm(x, gamma, beta, axis=axis, weight=weight, activation="relu")
    inference, _ = F.batch_norm(x, gamma, beta, mean=mean, var=var, axis=axis)
    dx, dgamma, dbeta = F.backward(dy, saved)
    d_dy, dx_of_dx, dgamma_of_dx = F.double_backward(x, saved, dy, gamma)
    m = F.moments(x, axis=axis, weight=weight)
    return [y, inference, dx, d_dy, dx_of_dx], [dgamma, dbeta, dgamma_of_dx, m.count, m.mean, m.m2]


def row_norm(function, x, dy, size, **options):
    gamma, beta, *_ = bits.vectors(size)
    shape = options.get("normalized_shape", size)
    y, saved = function(x, gamma=gamma.reshape(shape), beta=beta.reshape(shape), **options)
    dx, dgamma, dbeta = F.backward(dy, saved)
    return [y, dx], [dgamma, dbeta]


def assert_same_bits(got, want, order=None, **case):
    """The same bits; arrays after their axes are put in order."""
    arrays = [a if order is None else a.transpose(np.argsort(order)) for a in got[0]]
    for i, (a, b) in enumerate(zip(arrays + got[1], want[0] + want[1], strict=True)):
        assert a.tobytes() == b.tobytes(), f"result {i} of {case}"


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_columns_beside_it_change_no_bit_of_a_channel(dtype):
    """Rows that lie whole pages apart, and tables fetched ahead, are summed by fours; others by eights or sixteens."""
    wide = bits.values((8000, 1024), dtype, 0) + np.asarray(3, dtype)
    for rows in (50, 700, 8000):  # the last is fetched ahead where it is wide
        want = None
        for columns in (257, 511, 512, 1000, 1024):
            x = np.ascontiguousarray(wide[:rows, :columns])
            stats = cpu.forward(x, None, None, 1e-5)[1]
            got = [a[:, :257] for a in (cpu.moments(x), stats, cpu.grad_moments(x[::-1].copy(), x, stats))]
            want = want or got
            assert all(a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True)), (rows, columns)


ODD = [np.nan, np.inf, -np.inf, 1e30, 1e-30, 0.0]  # what is summed again, more carefully, or left out


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(300, 21), (700, 5), (40, 9, 7), (33, 8, 400), (3, 6, 3000)], ids=str)
@np.errstate(all="ignore")
def test_what_one_channel_holds_changes_no_bit_of_another(shape, dtype, weighted):
    """Some channels that are summed with others hold NaN, infinity, or what float32 cannot square."""
    x, dy = bits.values(shape, dtype, 0) + np.asarray(3, dtype), bits.values(shape, dtype, 1 << 18)
    w = (np.arange(shape[0] * int(np.prod(shape[2:]))) % 4 / 2.0).reshape(shape[0], -1) if weighted else None
    strange, strange_dy, kept = x.copy(), dy.copy(), np.arange(shape[1]) % 4 != 1
    for i, c in enumerate(np.nonzero(~kept)[0]):
        strange[-1, c] = ODD[i % len(ODD)]
        strange[:, c] *= 1.0 if i % len(ODD) else 0.0  # NaN, and a constant but for it
        strange_dy[0, c] = ODD[-i % len(ODD)]

    def results(x, dy):
        y, stats, count, _ = cpu.forward(x, None, None, bits.EPS, weight=w)
        dx, dgamma, dbeta = cpu.backward(dy, x, stats, count, w, leaky(0.1))
        found = [cpu.moments(x, w), cpu.moments(x, w, True), stats, y, dx, dgamma[None], dbeta[None]]
        return [np.ascontiguousarray(a[:, kept]) for a in found]

    for i, (got, want) in enumerate(zip(results(strange, strange_dy), results(x, dy), strict=True)):
        assert got.tobytes() == want.tobytes(), i


@pytest.mark.parametrize("axis", range(4))
def test_batch_norm_of_the_same_memory_through_any_order_of_axes(axis):
    """NCHW memory seen as NHWC, NHWC memory seen as NCHW, Fortran order and all others: one view, one result."""
    x, dy, _ = example()
    weight = np.abs(np.take(x, 0, axis)).round(1)
    want = batch_norm(x, dy, axis), batch_norm(x, dy, axis, weight)
    for order in permutations(range(4)):
        seen_x, seen_dy, place = x.transpose(order), dy.transpose(order), order.index(axis)
        seen_weight = weight.transpose([i - (i > axis) for i in order if i != axis])
        assert_same_bits(batch_norm(seen_x, seen_dy, place), want[0], order, seen=order)
        assert_same_bits(batch_norm(seen_x, seen_dy, place, seen_weight), want[1], order, seen=order, weighted=True)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_a_single_channel_wherever_its_axis_is(dtype):
    """An axis of length 1 may stand anywhere, as x and x.T of a table with one column show."""
    x, dy = bits.values(9000, dtype, 0), bits.values(9000, dtype, 1 << 18)
    weight, want = np.abs(x).round(1), {}
    for shape, axis in (((9000, 1), 1), ((1, 9000), 0), ((20, 1, 450), 1), ((3, 1, 50, 60), 1), ((90, 100, 1), 2)):
        for weighted in (False, True):
            w = weight.reshape(np.delete(shape, axis)) if weighted else None
            arrays, vectors = batch_norm(x.reshape(shape), dy.reshape(shape), axis, w)
            got = [a.reshape(-1) for a in arrays], vectors
            assert_same_bits(got, want.setdefault(weighted, got), seen=shape, weighted=weighted)


def test_rows_of_the_same_memory_through_any_order_of_axes():
    x, dy, _ = example()
    for order in permutations(range(2)):  # the normalized axes keep their order, which is that of gamma
        order = (*order, 2, 3)
        got, want = (
            row_norm(F.layer_norm, a.transpose(o), b.transpose(o), 63, normalized_shape=(7, 9))
            for a, b, o in ((x, dy, order), (x, dy, (0, 1, 2, 3)))
        )
        assert_same_bits(got, want, order, seen=order)
    for order in permutations((1, 2, 3)):  # samples first
        order = (0, *order)
        axis = order.index(1)
        seen_x, seen_dy = x.transpose(order), dy.transpose(order)
        for function, options in ((F.group_norm, {"num_groups": 2}), (F.instance_norm, {})):
            want = row_norm(function, x, dy, 6, **options)
            assert_same_bits(row_norm(function, seen_x, seen_dy, 6, axis=axis, **options), want, order, seen=order)


@pytest.mark.parametrize("memory", COPIES, ids=lambda memory: memory.__name__)
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_arrays_that_are_copied(memory, dtype):
    x, dy, weight = example(dtype)
    for axis in range(4):
        assert_same_bits(batch_norm(memory(x), memory(dy), axis), batch_norm(x, dy, axis), axis=axis)
    assert_same_bits(batch_norm(memory(x), memory(dy), 1, memory(weight)), batch_norm(x, dy, 1, weight), weighted=True)
    got, want = (row_norm(F.layer_norm, f(x), f(dy), 63, normalized_shape=(7, 9)) for f in (memory, np.asarray))
    assert_same_bits(got, want)
    got, want = (row_norm(F.group_norm, f(x), f(dy), 6, num_groups=3) for f in (memory, np.asarray))
    assert_same_bits(got, want)


@pytest.mark.parametrize("shape", [(33, 64), (45, 3), (40, 256), (4, 6, 49), (2, 3, 700)], ids=str)
def test_any_place_in_memory(shape):
    """Whole vectors begin at multiples of 64 bytes; arrays begin anywhere."""
    x, dy = bits.values(shape, "f4", 0), bits.values(shape, "f4", 1 << 18)
    room = np.empty((2, x.size + 16), "f4")
    for offset in range(16):
        placed = room[:, offset : offset + x.size].reshape(2, *shape)
        placed[0], placed[1] = x, dy
        assert_same_bits(batch_norm(*placed, 1), batch_norm(x, dy, 1), offset=offset)
        y, _ = F.batch_norm(placed[0], out=placed[0])
        assert y.tobytes() == F.batch_norm(x)[0].tobytes(), offset


@pytest.fixture(name="sizes")
def changed_sizes():
    """Which may be changed, until the test has ended."""
    before = entries.use_sizes()
    yield
    entries.use_sizes(**before)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("activation", [None, "relu", "leaky_relu", "silu"])
@pytest.mark.parametrize("size", [193, 288, 701, 1300])
def test_gradients_of_rows_at_any_place_in_memory(size, activation):
    """Long rows of float32: two at a time by whole lines of 64 bytes, or eight. Of eleven not all are in pairs."""
    x, dy = bits.values((11, size), "f4", 0), bits.values((11, size), "f4", 1 << 18)
    options = {"normalized_shape": size, "activation": activation}
    entries.use_sizes(paired=1 << 60)
    want = row_norm(F.layer_norm, x, dy, size, **options)
    room = np.empty(2 * x.size + 32, "f4")
    for offset in range(16):  # of x; that of dy is another one
        placed = [
            a.reshape(x.shape) for a in (room[offset:][: x.size], room[x.size + 5 * offset % 16 + 16 :][: x.size])
        ]
        placed[0][:], placed[1][:] = x, dy
        for least in (1, 1 << 60):
            entries.use_sizes(paired=least)
            assert_same_bits(row_norm(F.layer_norm, *placed, size, **options), want, offset=offset, least=least)
