"""normalize with finite=True: an infinity anywhere is found, NaN is none, and the bits of y stay what they were."""

from itertools import product

import numpy as np
import pytest

from backends import ACTIVATIONS
from bnorm import get_num_threads, set_num_threads
from bnorm.kernels import cpu, reference
from bnorm.kernels.activation import RELU
from bnorm.kernels.cpu import entries
from cases import DTYPES
from drawing import every_pair
from kernel_checks import BLOCKS, every_dtype, problem, stats_of


class Found:
    """`with found:` as of pytest.raises, which takes longer than the calls here, forty thousand of them."""

    def __enter__(self):
        pass

    def __exit__(self, kind, error, where):
        assert kind is FloatingPointError, kind
        assert str(error) == "x holds an infinity"
        return True


found = Found()


def statistics(channels):
    rng = np.random.default_rng(channels)
    return stats_of(rng.standard_normal(channels), rng.uniform(0.5, 2, channels), rng.standard_normal(channels))


@every_pair(["case", "dtype"], product(BLOCKS, DTYPES), act=ACTIVATIONS)
def test_without_an_infinity_the_bits_are_the_same(case, dtype, act):
    x = problem(case, dtype).x.copy()
    x[np.random.default_rng(0).random(x.shape) < 0.1] = np.nan
    stats = statistics(case.num_channels)
    want = cpu.normalize(x, stats, act)
    assert cpu.normalize(x, stats, act, finite=True).tobytes() == want.tobytes()
    in_place = x.copy()
    assert cpu.normalize(in_place, stats, act, out=in_place, finite=True) is in_place
    assert in_place.tobytes() == want.tobytes()


@every_pair(["case", "dtype"], product(BLOCKS, DTYPES), bad=[np.inf, -np.inf])
def test_one_infinity_is_found(case, dtype, bad):
    x, stats = problem(case, dtype).x, statistics(case.num_channels)
    for i in places(x.size):
        holds = x.copy()
        holds.flat[i] = bad
        for kernels in (cpu, reference):
            with found:
                kernels.normalize(holds, stats, finite=True)
        with found:
            cpu.normalize(holds, stats, act=RELU, out=holds, finite=True)


def places(size):
    """The first, the last, around the ends of vectors, tiles and buffers, and some between."""
    edges = [edge + step for edge in (0, 16, 64, 256, 512, 2048, size) for step in (-17, -16, -15, -1, 0, 1)]
    return sorted({i for i in [*edges, size // 3, size // 2, size - 40] if 0 <= i < size})


@pytest.mark.parametrize(
    "shape",
    [(1, 1), (1, 5), (3, 7), (40, 7), (9, 64), (5, 300), (2, 3, 1), (3, 7, 49), (2, 20, 49), (2, 3, 1000), (70, 1, 31)],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_is_found_at_every_place(shape, dtype):
    x, stats = np.random.default_rng(3).standard_normal(shape).astype(dtype), statistics(shape[1])
    y = np.empty_like(x)
    for i in range(x.size):
        value, x.flat[i] = x.flat[i], np.inf
        with found:
            cpu.normalize(x, stats, out=y, finite=True)
        x.flat[i] = value
    cpu.normalize(x, stats, out=y, finite=True)


@pytest.mark.parametrize("shape", [(300_001, 7), (17_000, 64), (40, 20, 49 * 30), (3, 5, 150_001)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_task_and_every_thread_looks(shape, dtype):
    """Sizes below and above the streaming of outputs, on one thread and on three."""
    x, stats = np.random.default_rng(4).standard_normal(shape).astype(dtype), statistics(shape[1])
    y, threads = np.empty_like(x), get_num_threads()
    want = cpu.normalize(x, stats)
    try:
        for n in (1, 3):
            set_num_threads(n)
            for i in np.linspace(0, x.size - 1, 40).astype(int):
                value, x.flat[i] = x.flat[i], -np.inf
                with found:
                    cpu.normalize(x, stats, out=y, finite=True)
                x.flat[i] = value
            assert cpu.normalize(x, stats, out=y, finite=True).tobytes() == want.tobytes()
    finally:
        set_num_threads(threads)


@every_dtype
@pytest.mark.parametrize("shape", [(50, 7), (40, 300), (3, 2, 1030)], ids=str)
def test_it_is_found_before_it_is_overwritten_past_the_caches(shape, dtype):
    """ReLU turns it into 0."""
    x, stats = np.random.default_rng(5).standard_normal(shape).astype(dtype), statistics(shape[1])
    before = entries.use_sizes(stream=0, stream_one=0)
    try:
        for i in range(0, x.size, 11):
            holds = x.copy()
            holds.flat[i] = -np.inf
            with found:
                cpu.normalize(holds, stats, RELU, out=holds, finite=True)
    finally:
        entries.use_sizes(**before)


@every_dtype
def test_what_is_nearly_infinite_is_not(dtype):
    """The largest numbers, whose results overflow, and NaN of every sign and payload."""
    largest = np.finfo(dtype).max
    x = np.array([largest, -largest, np.nan, -np.nan, 0, -0.0, np.finfo(dtype).smallest_subnormal] * 9, dtype)
    bits = x.view(f"u{x.itemsize}")
    bits[-1] = np.array(np.inf, dtype).view(bits.dtype) + 1  # the smallest payload, a signalling NaN
    for shape in [(63, 1), (1, 63), (1, 1, 63), (9, 7)]:
        y = cpu.normalize(x.reshape(shape), np.full((5, shape[1]), 2.0), finite=True)
        assert np.isnan(y).sum() == np.isnan(x).sum()
