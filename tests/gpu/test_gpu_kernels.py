"""The CUDA kernels of batch norm, run on the CPU from their launch plans, against the reference."""

import inspect
import zlib

import numpy as np
import pytest

from bnorm.kernels import gpu, reference
from bnorm.kernels.gpu import jobs, plans
from cases import CASES, Case, c_order
from compare import EPS, assert_close, assert_same, sum_error
from gpu_device import SMALL, emulated_device, needs_emulator  # noqa: F401
from kernel_checks import (
    as_block,
    assert_backward,
    assert_forward,
    assert_moments,
    away_from_zero,
    channel,
    exact,
    map_error,
    problem,
    stats_of,
)

pytestmark = needs_emulator

MORE = [  # beside the cases that every backend runs over
    Case((70, 3, 49), 1, c_order, "rows of channels, an inner of 49, and a rest: widened columns"),
    Case((3, 200, 49), 1, c_order, "many channels of a few images of 7x7: one launch"),
    Case((600, 130), 1, c_order, "several tiles, chunks and blocks that are not full"),
    Case((9, 2, 1100), 1, c_order, "long runs, several chunks"),
    Case((7, 3, 333), 1, c_order, "long runs that no vector divides"),
    Case((5, 2, 2052), 1, c_order, "long runs of whole vectors but for float16"),
]
EVERY = [case for case in CASES if case.memory in (c_order,)] + MORE
# Every case in float32; the other types share the code, and run over those that reach all of their instances.
RUNS = [(case, "float32") for case in EVERY]
RUNS += [(case, dtype) for case in EVERY[::3] + MORE for dtype in ("float16", "float64")]
every_run = pytest.mark.parametrize(("case", "dtype"), RUNS, ids=[f"{case.name}-{dtype}" for case, dtype in RUNS])


def switch(case, dtype, number):
    """A switch that is on for about half of the runs, but for the same ones every time."""
    return bool(zlib.crc32(f"{case.name} {dtype}".encode()) >> number & 1)


def slope_of(case, dtype, number):
    return 0.0 if switch(case, dtype, number) else 1.0


def both(name, *args, **options):
    """What the kernel and the reference return; the kernel leaves its arguments as they were."""
    arrays = [a for a in (*args, *options.values()) if isinstance(a, np.ndarray)]
    before = [a.tobytes() for a in arrays]
    got = getattr(gpu, name)(*args, **options)
    assert [a.tobytes() for a in arrays] == before, f"{name} wrote to its arguments"
    return got, getattr(reference, name)(*map(exact, args), **{key: exact(a) for key, a in options.items()})


NAMES = [name for name, f in inspect.getmembers(reference, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("name", NAMES)
def test_signatures_are_those_of_the_reference(name):
    def shape(function):
        return [(p.name, p.default, p.kind) for p in inspect.signature(function).parameters.values()]

    assert shape(getattr(gpu, name)) == shape(getattr(reference, name))


# The four pieces ----------------------------------------------------------------------------------------------------


@every_run
def test_moments(device, case, dtype):
    p = problem(case, dtype)
    weighted, skipna = switch(case, dtype, 0), switch(case, dtype, 1)
    for weight, skip in ((None, False), (p.weight if weighted else None, skipna)):
        x = p.x.copy()
        if skip:
            x[np.random.default_rng(0).random(x.shape) < 0.2] = np.nan
        got, want = both("moments", x, weight, skip)
        assert_moments(got, want, dtype, weight is not None, case=case.name, skipna=skip)


@every_run
def test_maps(device, case, dtype):
    p = problem(case, dtype)
    rng = np.random.default_rng(9)
    mean = reference.moments(p.x)[1] + rng.standard_normal(case.num_channels) * 0.1
    scale, shift, slope, weighted = p.gamma * 1.5, p.beta, slope_of(case, dtype, 2), switch(case, dtype, 3)
    stats = stats_of(mean, scale, shift)
    got, want = both("normalize", p.x, stats, slope)
    terms = (as_block(p.x) - channel(mean)) * channel(scale), channel(shift)
    allowed = map_error(dtype, as_block(want), *terms).reshape(p.x.shape)
    assert got.dtype == p.x.dtype
    assert_close(got, want, allowed, case=case.name, dtype=dtype, slope=slope)

    dy, weight = away_from_zero(p.dy, p.x, dtype, stats), p.weight if weighted else None
    got, want = both("grad_moments", dy, p.x, stats, weight, slope)
    wide_dy, t = as_block(dy), as_block(p.x) - channel(mean)
    for g, w, terms in zip(got, want, (wide_dy, wide_dy * t), strict=True):
        assert_close(g, w, sum_error(dtype, terms, (0, 2)), case=case.name, dtype=dtype, slope=slope)

    coefficients = np.random.default_rng(4).standard_normal((3, case.num_channels))
    a, b, c = coefficients
    got, want = both("grad_input", dy, p.x, stats, coefficients, weight, slope)
    w = p.weight[:, None] if weighted else 1.0
    terms = as_block(dy), w * channel(b) * t, w * channel(c)
    allowed = map_error(dtype, as_block(want), *(channel(a) * term for term in terms)).reshape(p.x.shape)
    assert_close(got, want, allowed, case=case.name, dtype=dtype, slope=slope, weighted=weighted)


# Batch norm ---------------------------------------------------------------------------------------------------------


@every_run
def test_forward_and_backward(device, case, dtype):
    p = problem(case, dtype)
    for number, weight in enumerate((None, p.weight)):
        if weight is not None and not switch(case, dtype, 4):
            continue
        slope, frozen = slope_of(case, dtype, 5 + number), switch(case, dtype, 7 + number)
        options = {} if weight is None else {"weight": weight}
        device.kernels()
        got, want = both("forward", p.x, p.gamma, p.beta, 1e-5, slope=slope, **options)
        assert len(device.kernels()) <= 2
        assert_forward(
            (*got[:2], float(got[2]), got[3]), want, p, dtype, weight is not None, case=case.name, slope=slope
        )
        _, stats, count, _ = want
        dy = away_from_zero(p.dy, p.x, dtype, stats)
        on_device = count if weight is None else np.float64(count).reshape(())
        device.kernels()
        got = gpu.backward(dy, p.x, stats, on_device if weight is None else np.array(count), weight, slope, frozen)
        assert len(device.kernels()) <= 2
        want = reference.backward(exact(dy), exact(p.x), stats, count, weight, slope, frozen)
        assert_backward(got, want, dy, p.x, stats, count, weight, frozen, dtype, case=case.name, slope=slope)


@every_run
def test_inference(device, case, dtype):
    p = problem(case, dtype)
    slope = slope_of(case, dtype, 9)
    mean, var = reference.moments(p.x)[1] + 0.5, np.linspace(0.5, 2.0, case.num_channels)
    device.kernels()
    got, want = both("forward", p.x, p.gamma, p.beta, 1e-5, mean, var, slope=slope, weight=p.weight)
    assert len(device.kernels()) == (case.num_channels > 0)
    assert_forward(got, want, p, dtype, False, case=case.name, slope=slope)
    _, dgamma, dbeta = gpu.backward(p.dy, p.x, want[1], want[2], slope=slope, frozen=True, params=False)
    assert dgamma is None and dbeta is None
    assert len(device.kernels()) == (case.num_channels > 0)


@every_run
def test_pieces_are_the_whole(device, case, dtype):
    """With nothing between them the pieces give the bits of `forward` and `backward`, but for more exact moments."""
    p = problem(case, dtype)
    slope, weight = slope_of(case, dtype, 10), p.weight if switch(case, dtype, 11) else None
    y, stats, count, _ = gpu.forward(p.x, p.gamma, p.beta, 1e-5, weight=weight, slope=slope)
    found = gpu.finish(gpu.moments(p.x, weight), p.gamma, p.beta, 1e-5)
    if dtype == "float64":
        assert_same(found, stats, case=case.name)
    else:
        assert_close(found, stats, 32 * EPS[np.dtype("float32")] * np.abs(stats) + 1e-6, case=case.name)
        found = stats
    assert_same(gpu.normalize(p.x, found, slope), y, case=case.name)
    dx, dgamma, dbeta = gpu.backward(p.dy, p.x, stats, count, weight, slope)
    sums = gpu.grad_moments(p.dy, p.x, found, weight, slope)
    assert_same(sums[0], dbeta, case=case.name)
    assert_same(stats[2] * sums[1], dgamma, case=case.name)
    coefficients = gpu.finish_gradients(sums, found, count)
    assert_same(gpu.grad_input(p.dy, p.x, found, coefficients, weight, slope), dx, case=case.name)


def test_counts_of_the_device_or_of_each_channel(device):
    rng = np.random.default_rng(0)
    sums, stats = rng.standard_normal((2, 3)), rng.uniform(0.5, 2, (5, 3))
    for count in (7.0, 7, np.array(7.0), np.array([7.0, 2.5, 0.0])):
        got, want = gpu.finish_gradients(sums, stats, count), reference.finish_gradients(sums, stats, count)
        assert_close(got, want, 8 * EPS[np.dtype("float64")] * np.abs(want), count=count)


ORDERED = [case for case in EVERY if 1000 < np.prod(case.shape) < 20000]


@pytest.mark.parametrize("case", ORDERED, ids=lambda case: case.name)
def test_every_schedule_gives_the_same_bits(device, case):
    """Blocks forwards, backwards and shuffled, and a second time: only integers may be added by whoever comes first."""
    p = problem(case, "float32")
    _, stats, count, _ = reference.forward(p.x, p.gamma, p.beta, 1e-5)
    first = None
    for order in (0, 1, 2, 3, 0):
        device.order = order
        try:
            y, found, *_ = gpu.forward(p.x, p.gamma, p.beta, 1e-5, slope=0.0)
            weighted = gpu.moments(p.x, p.weight)
            results = [y, found, *weighted, *gpu.backward(p.dy, p.x, stats, count, slope=0.0)]
        finally:
            device.order = 0
        bits = [a.tobytes() for a in results]
        first = first or bits
        assert bits == first, f"order {order}"


@pytest.mark.parametrize("case", EVERY[::4] + MORE, ids=lambda case: case.name)
def test_in_place(device, case):
    """out may be x, or dy, and is what is returned; the numbers are those without it."""
    p = problem(case, "float32")
    _, stats, count, _ = gpu.forward(p.x, p.gamma, p.beta, 1e-5)
    calls = [
        (0, lambda x, dy, out: gpu.normalize(x, stats, out=out)),
        (0, lambda x, dy, out: gpu.forward(x, p.gamma, p.beta, 1e-5, out=out)[0]),
        (0, lambda x, dy, out: gpu.backward(dy, x, stats, count, slope=0.0, out=out)[0]),
        (1, lambda x, dy, out: gpu.backward(dy, x, stats, count, slope=0.0, out=out)[0]),
        (1, lambda x, dy, out: gpu.grad_input(dy, x, stats, stats[2:], p.weight, 0.0, out)),
    ]
    for i, (which, call) in enumerate(calls):
        want = call(p.x, p.dy, None)
        arrays = p.x.copy(), p.dy.copy()
        assert call(*arrays, arrays[which]) is arrays[which]
        assert_same(arrays[which], want, call=i, case=case.name)


LEAKY = [Case((70, 6), 1, c_order, "one launch"), Case((600, 130), 1, c_order, "several"), MORE[3]]


@pytest.mark.parametrize("case", LEAKY, ids=lambda case: case.name)
def test_leaky(device, case):
    """Also where dy and x are infinite: the slope is a factor, and only a slope of 0 selects."""
    p = problem(case, "float32")
    got, want = both("forward", p.x, p.gamma, p.beta, 1e-5, slope=0.25)
    assert_forward(got, want, p, "float32", False, case=case.name, slope=0.25)
    _, stats, count, _ = want
    dy = away_from_zero(p.dy, p.x, "float32", stats)
    got = gpu.backward(dy, p.x, stats, count, slope=0.25)
    want = reference.backward(exact(dy), exact(p.x), stats, count, None, 0.25)
    assert_backward(got, want, dy, p.x, stats, count, None, False, "float32", case=case.name, slope=0.25)
    x = p.x.copy()
    x.flat[0], dy.flat[1] = -np.inf, np.inf
    for slope in (0.0, 0.25):
        got, want = (kernels.normalize(x, stats, slope) for kernels in (gpu, reference))
        assert_same(np.isfinite(got), np.isfinite(want), case=case.name, slope=slope)
        got, want = (kernels.backward(dy, x, stats, count, None, slope, True)[0] for kernels in (gpu, reference))
        assert_same(np.isfinite(got), np.isfinite(want), case=case.name, slope=slope)


def test_unaligned(device):
    """Arrays that start anywhere: no vector is loaded."""
    case = Case((40, 6, 64), 1, c_order, "")
    p = problem(case, "float32")
    memory = np.zeros(p.x.size + 1, np.float32)
    x = memory[1:].reshape(p.x.shape)
    x[...] = p.x
    got, want = gpu.forward(x, p.gamma, p.beta, 1e-5), reference.forward(exact(x), p.gamma, p.beta, 1e-5)
    assert all("<float, 1," in name for name in device.kernels()[-2:])
    assert_forward(got, want, p, "float32", False, case="unaligned")


BFLOAT16 = [((64, 16), "rows"), ((40, 3), "widened rows"), ((3, 5, 400), "runs"), ((3, 5, 333), "odd runs")]


@pytest.mark.parametrize(("shape", "why"), BFLOAT16, ids=[why for _, why in BFLOAT16])
def test_bfloat16(device, shape, why):
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    rng = np.random.default_rng(5)
    x, dy = ((rng.standard_normal(shape) + 3).astype(bfloat16) for _ in range(2))
    gamma, beta = rng.uniform(0.5, 2, shape[1]), rng.standard_normal(shape[1])
    wide_x, wide_dy = x.astype(np.float64), dy.astype(np.float64)
    y, stats, count, _ = gpu.forward(x, gamma, beta, 1e-5, slope=0.0)
    want, stats_want, _, _ = reference.forward(wide_x, gamma, beta, 1e-5, slope=0.0)
    assert y.dtype == bfloat16
    assert_close(stats, stats_want, 1e-6 * np.abs(stats_want) + 1e-6, why=why)
    assert_close(y.astype(np.float64), want, 2.0**-8 * np.abs(want) + 1e-5, why=why)  # 8 bits, and float32 inside
    got = gpu.backward(dy, x, stats_want, count)
    want = reference.backward(wide_dy, wide_x, stats_want, count)
    assert_close(got[0].astype(np.float64), want[0], 2.0**-8 * np.abs(want[0]) + 1e-4, why=why)
    for g, w in zip(got[1:], want[1:], strict=True):
        assert_close(g, w, 1e-5 * np.abs(wide_dy).sum(), why=why)


# Sizes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(66000, 1), (2, 66000)], ids=["rows", "channels"])
def test_more_than_65535(device, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype("float16")
    y, stats, _, _ = gpu.forward(x, None, None, 1e-5)
    want, want_stats, _, _ = reference.forward(exact(x), None, None, 1e-5)
    assert_close(stats[:2], want_stats[:2], 1e-6 * np.maximum(1, want_stats[:2]), shape=shape)
    assert_close(y, want, 2e-3 * np.maximum(1, np.abs(want)), shape=shape)


@pytest.mark.parametrize("shape", [(9000, 40), (2, 3, 70000)], ids=["rows", "runs"])
def test_chunks_that_a_map_cuts_into_parts(device, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    device.limits = SMALL._replace(processors=1)
    try:
        y = gpu.forward(x, None, None, 1e-5)[0]
    finally:
        device.limits = SMALL
    geometry = device.log[-1].geometry
    assert jobs.JOB.placed(geometry)["split"] == plans.SPLIT
    assert_close(y, reference.forward(exact(x), None, None, 1e-5)[0], 2e-6, shape=shape)


@pytest.mark.parametrize("shape", [((1 << 31) // 64 + 999, 64), (2, 3, (1 << 30) + 8)], ids=["rows", "runs"])
def test_more_than_two_billion_elements(device, shape):
    """Only the blocks that write the end of the array are run; the rest of it is memory that nobody touches."""
    try:
        x = np.zeros(shape, "float16")
    except MemoryError as error:
        pytest.skip(str(error))
    x.reshape(-1)[-64:] = 4
    channels = np.arange(1.0, shape[1] + 1)

    def last(launch):
        f = jobs.JOB.placed(launch.geometry)
        whole, part = divmod((f["steps"] - 1) // f["chunk"], f["split"])
        chunk = (f["split"] - 1 - part) * (f["chunks"] // f["split"]) + whole  # parts of a chunk are far apart in a map
        return [chunk * launch.grid[0] + launch.grid[0] - 1]

    device.only = last
    device.limits = SMALL._replace(processors=20000)  # many chunks, so that the last one is short
    try:
        gpu.normalize(x, stats_of(np.ones(shape[1]), channels, channels), out=x)
    finally:
        device.only, device.limits = None, SMALL
    want = (4 - 1) * channels + channels if len(shape) == 2 else np.full(64, 4 * channels[-1])
    assert_same(x.reshape(-1)[-64:], want.astype("float16"))
