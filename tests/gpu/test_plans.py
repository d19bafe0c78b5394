"""Launch plans without a device: every element once, limits respected, and kernels that exist."""

import contextlib
import re
import struct
from functools import cache
from itertools import product
from math import prod

import numpy as np
import pytest
from benchmarks import gpu_compile
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gpu_small
import gpu_sweep
from bnorm.kernels import activation
from bnorm.kernels.activation import RELU
from bnorm.kernels.gpu import bunches, jobs, launching, planes, plans, row_plans, shapes
from bnorm.kernels.gpu.jobs import GAMMA_ALONE, GAMMA_AND_BETA, NO_AFFINE
from cuda_on_cpu.emulator import clusters
from emulated import usual
from emulated.device import PlanningDevice
from emulated.launches import fields, has_few, parameters, wide_of

DTYPES = st.sampled_from(sorted(plans.ITEMSIZE))
SIZES = st.one_of(st.integers(1, 9), st.integers(1, 300), st.integers(1, 5000))
LIMITS = st.builds(
    plans.Limits, st.sampled_from([1, 16, 132, 200]), st.sampled_from([48 << 10, 99 << 10, 227 << 10]), st.booleans()
)
LIKE_H100 = plans.Limits()
SMALL = 300_000  # elements that are counted one by one

LARGE = 1 << 35  # elements: 64 GiB of half precision
many = settings(max_examples=4 * settings.default.max_examples, deadline=None)


def positions(launch):
    """The element that every step of every thread begins at, and how many it takes: what the kernels compute."""
    f = fields(launch)
    _, _, vector, wide, across, *_ = parameters(launch)
    tiles = f["columns"] if launch.family == "clusters" else launch.grid[0]  # clusters go on from one to the next
    columns = np.arange(tiles * across)[:, None] * wide
    steps = np.arange(f["chunks"] * f["chunk"])[None, :]
    at = columns * f["base"] + steps // f["run"] * f["jump"] + steps % f["run"] * f["unit"]
    return at[(columns < f["columns"]) & (steps < f["steps"])], vector


def channel_of_elements(f, at):
    """The channel that the kernels take an element for."""
    if f["base"] > 1 or f["run"] > 1:
        return at // f["base"] % f["channels"]
    return at % f["columns"] // f["inner"] % f["channels"]


@many
@given(SIZES, SIZES, SIZES, DTYPES, st.booleans(), st.booleans(), LIMITS)
def test_every_element_belongs_to_one_step(outer, channels, inner, dtype, vectors, careful, limits):
    total = outer * channels * inner
    if total > SMALL:
        outer = max(1, SMALL // (channels * inner))
        total = outer * channels * inner
    if total > 4 * SMALL:
        return
    plan = plans.reduction("moments", outer, channels, inner, dtype, vectors, careful, "normalize", RELU.kind, limits)
    for launch in plan.launches:
        f = fields(launch)
        at, vector = positions(launch)
        counted = sum(np.bincount(at + v, minlength=total) for v in range(vector))
        assert counted.size == total
        whole = f["steps"] * f["columns"]
        if f["total"] > whole:
            counted[whole : f["total"]] += 1  # the rest
            assert f["total"] == total and f["total"] - whole < f["columns"]
        assert (counted == 1).all()
        element = at[:, None] + np.arange(vector)
        assert np.array_equal(channel_of_elements(f, element), element // inner % channels)
        assert vector == 1 or (vectors and not careful and not (at % vector).any())


@many
@example(1, 1, 96, 0, "bfloat16", True, False, plans.Limits(16))  # no partial sums but those of a meeting
@given(SIZES, SIZES, SIZES, st.integers(0, 22), DTYPES, st.booleans(), st.booleans(), LIMITS)
def test_limits_and_groups(outer, channels, inner, power, dtype, vectors, careful, limits):
    """Also for the largest arrays that a device holds, in either way."""
    while outer * channels * inner << power > LARGE:
        power -= 1
        if power < 0:
            return
    check_plans(outer << power, channels, inner, dtype, vectors, careful, limits)
    check_plans(outer, channels << power, inner, dtype, vectors, careful, limits)
    check_plans(outer, channels, inner << power, dtype, vectors, careful, limits)


@pytest.mark.parametrize("dtype", sorted(plans.ITEMSIZE))
def test_there_are_plans_of_nothing(dtype):
    """Of empty batches, in every way to read them."""
    for channels, inner, vectors, careful in product((1, 3, 100, 512), (1, 2, 3, 7, 60, 4096), *2 * [(False, True)]):
        check_plans(0, channels, inner, dtype, vectors, careful, LIKE_H100)
        check_plans(0, channels, inner, dtype, vectors, careful, plans.Limits(3, 64 << 10, False))


def check_plans(outer, channels, inner, dtype, vectors, careful, limits):
    size = outer, channels, inner, dtype, vectors
    found = [
        plans.reduction("moments", *size, careful, "", RELU.kind, limits),
        plans.reduction("moments", *size, careful, "normalize", RELU.kind, limits),
        plans.reduction("sums", *size, careful, "", RELU.kind, limits),
        plans.reduction("sums", *size, careful, "gradient", RELU.kind, limits),
        plans.reduction("sums", *size, False, "frozen", RELU.kind, limits),
        plans.map_only("normalize", *size, careful, RELU.kind, limits),
        plans.map_only("gradient", *size, careful, RELU.kind, limits),
    ]
    for alone, whole in (found[:2], found[2:4]):  # the pieces have the bits of the whole, but where blocks meet
        if whole.launches[0].meeting:
            continue
        cuts = [fields(plan.launches[0]) | {"keep": 0, "streams": 0} for plan in (alone, whole)]
        first, second = alone.launches[0], whole.launches[0]
        assert cuts[0] == cuts[1] and (first.grid == second.grid or second.family == "clusters")
    for plan in found:
        assert 1 <= len(plan.launches) <= 2
        for launch in plan.launches:
            check_launch(launch, limits)
        first = plan.launches[0]
        name, f = parameters(first)[0], fields(first)
        if name in ("moments", "sums"):
            parts = 4 if name == "moments" else 2
            groups = -(-first.grid[0] // f["group"])
            check_workspace(plan, f, parts, groups, f["channels"])
            check_groups(first)
        if name in ("moments", "sums") and parameters(first)[-2] == jobs.WITH_MAP:
            assert len(plan.launches) == 1
            assert f["group"] == f["chunks"] == 1  # a block has whole channels
        if name.startswith("planes"):  # of which a block has whole ones
            assert plan.partial == plan.tickets == 0 and f["group"] == f["chunks"] == 1
            assert size[4] and (not careful or plan is found[4])
            check_slab(first, itemsize=plans.ITEMSIZE[dtype])
        if name.startswith("cluster"):
            need = plan.otherwise
            assert (plan.partial, plan.tickets) == (need.partial, max(1, need.tickets)) and len(plan.launches) == 1
            assert limits.clusters and not careful
            assert f["chunks"] == plans.CLUSTER and first.grid[0] <= f["columns"] == f["channels"]
            assert f["base"] > 1 and wide_of(first) == 1 and f["keep"]  # one column to a block
    for plan in found[:4] if careful else ():
        assert all(parameters(launch)[2] == 1 for launch in plan.launches)


def check_workspace(plan, f, parts, groups, channels, chunks="chunks"):
    """What join_last of joins.cu writes to: the sums of all chunks, behind them those of bunches, and the tickets."""
    chunks, bunch, columns = f[chunks], f["bunch"], f["columns"]
    if has_few(plan.launches[0]):  # a tile joins the columns of a channel first
        chunks, columns = chunks * plan.launches[0].grid[0], channels
    assert 1 <= bunch <= chunks
    if plan.launches[0].meeting:  # sums alone, but of moments for two rounds, and one more ticket
        assert plan.partial == max(parts * chunks * columns, plan.otherwise.partial)
        assert plan.tickets == max(groups * parts // 2, plan.otherwise.tickets)
        return
    if chunks * f.get("copies", 1) * f.get("inner", 1) == 1 and "sets" not in f:
        assert plan.partial == plan.tickets == 0  # blocks finish their channels by themselves
        return
    many = -(-chunks // bunch)
    assert plan.partial == parts * (chunks * columns + (many * channels if many > 1 else 0))
    assert plan.tickets == groups * (many + 1 if many > 1 else 1)


def check_slab(launch, itemsize):
    """What a block reads of an outer position are whole vectors, of which some have a thread each."""
    f, together = fields(launch), parameters(launch)[4]
    vector = planes.vector_bytes(together, itemsize) // itemsize
    assert f["channels"] % together == together % vector == 0
    assert together * f["run"] // vector <= plans.THREADS == launch.block[0]
    assert f["keep"] or not launch.shared


def check_launch(launch, limits):
    f = fields(launch)
    name, _, vector, wide, across, down, *_ = parameters(launch)
    assert across * down == launch.block[0] <= 1024 and launch.block[0] % 32 == 0
    assert across <= 32 and 32 % across == 0  # the rows of a warp are joined by shuffles
    assert across * wide <= launch.block[0]  # one thread for each column of a tile
    assert 1 <= launch.grid[0] < 2**31 and 1 <= launch.grid[1] <= 65535
    assert launch.grid[1] == f["chunks"] and f["chunks"] % f["split"] == 0
    assert f["chunks"] * f["chunk"] >= f["steps"] and f["chunk"] % down == 0
    assert launch.shared + plans.STATIC_SHARED.get(launch.family, 0) <= max(limits.shared, 48 << 10)
    assert not launch.shared or launch.family in plans.STATIC_SHARED
    if f["keep"]:
        assert f["keep"] * down * f["chunks"] >= f["steps"]
        arrays = 1 if name.endswith("moments") else 2
        assert launch.shared == arrays * f["keep"] * launch.block[0] * vector * plans.ITEMSIZE[dtype_of(launch)]


def dtype_of(launch):
    return {name: dtype for dtype, name in shapes.NAMES.items()}[parameters(launch)[1]]


def check_groups(launch):
    """A group of tiles, all of whose blocks count to one ticket, has all columns of its channels."""
    f = fields(launch)
    _, _, _, wide, across, *_ = parameters(launch)
    if f["copies"] > 1:
        assert f["group"] == launch.grid[0]
    else:
        assert f["group"] == launch.grid[0] or f["group"] * across * wide % f["inner"] == 0


@many
@given(SIZES, SIZES, SIZES, SIZES, DTYPES, st.integers(NO_AFFINE, GAMMA_AND_BETA), st.booleans(), LIMITS)
def test_rows(n, groups, channels, inner, dtype, affine, params, limits):
    """Every value of a row belongs to one step of one thread, and a row to one block."""
    shape, size, many_rows = (n, groups, channels, inner), channels * inner, n * groups
    for name, more in (("rows_forward", False), ("rows_backward", params)):
        plan = row_plans.rows(name, shape, dtype, affine, more, RELU.kind, limits)
        first, *others = plan.launches
        f = fields(first)
        vector, steps, wide = (int(number) for number in re.findall(r"\d+", first.kernel.split(", ", 1)[1])[:3])
        assert size % vector == 0 and (inner == 1 or inner % vector == 0)
        assert row_plans.begins(shape, dtype) == vector * plans.ITEMSIZE[dtype]
        assert (f["rows"], f["size"], f["inner"], f["groups"]) == (many_rows, size, inner, groups)
        threads, full = first.block[0], vector * plans.ITEMSIZE[dtype] == plans.VECTOR_BYTES
        assert threads == max(1, wide) * plans.THREADS
        if not steps:
            pair = 2 * size * plans.ITEMSIZE[dtype]
            twice = inner == 1 or (name == "rows_backward" and pair > row_plans.TWO_PER_PROCESSOR)
            assert wide == (row_plans.BROAD if twice else row_plans.OF_WARPS)
        elif full:
            assert 3 * steps * f["lanes"] <= 4 * max(size // vector, 3)  # a quarter idles at most
        assert f["lanes"] * f["side"] <= threads
        up = limits.processors - 1 if wide >= row_plans.BROAD else 0  # so that few rows take a lone block one turn
        assert f["lanes"] * f["side"] == threads or f["side"] == max(1, (many_rows + up) // limits.processors)
        assert f["lanes"] in ((1, 2, 4, 8, 16, 32), *3 * [(64, 128, 256, *[512] * (wide == row_plans.BROAD))])[wide]
        assert steps * f["lanes"] * vector >= size if steps else f["lanes"] == threads
        assert f["whole"] == (steps * f["lanes"] * vector == size)
        sure = {0: 0, 8: 6}.get(steps, steps - 1) if full else steps // 2  # as rows.cu says: what nobody asks for
        assert size >= sure * f["lanes"] * vector or (vector == 1 and not wide)
        assert not f["keep"] or (not steps and f["keep"] * threads * vector >= size)
        way = int(re.findall(r"\d+", first.kernel)[-1]) if more else jobs.NO_PARAMS
        apart = groups if way == jobs.PER_CHANNEL else 1
        assert first.grid == (f["sets"] * apart, 1) and (f["sets"] - 1) * f["side"] < max(many_rows // apart, 1)
        rows, seen = rows_of_blocks(f, apart), np.zeros(many_rows, bool)
        seen[rows] = True
        assert rows.size == many_rows and seen.all()  # each once
        assert first.shared + plans.STATIC_SHARED["rows"] <= limits.shared
        both = name == "rows_backward"  # with an activation it reads beta, or zeros in its place
        assert f["affine"] in (NO_AFFINE, GAMMA_AND_BETA if both else max(affine, GAMMA_ALONE))
        assert not f["affine"] or groups == inner == 1  # the same gamma for all rows
        kept = affine_bytes(f, dtype) + row_bytes(f, first, vector, dtype)
        if not both:
            few = inner > 1 and affine > NO_AFFINE and groups * channels <= row_plans.KEPT_CHANNELS
            assert f["share"] == (few and not steps)
            kept += f["share"] * -(-2 * groups * channels * max(plans.ITEMSIZE[dtype], 4) // 16) * 16
        assert first.shared >= kept and (way or first.shared == kept)
        assert bool(plan.partial) == bool(way) == bool(others or f["bunch"])
        if others:
            assert params and others[0].kernel == "rows_params" and others[0].geometry == first.geometry
            assert not f["bunch"] and not plan.tickets
            assert plan.partial == 2 * f["sets"] * f["columns"]
            assert f["joined"] == (8 if f["columns"] <= 1024 else 32)  # as was faster on the H100
            assert others[0].grid == (-(-f["columns"] // f["joined"]), 1)
        elif plan.partial:
            check_workspace(plan, f, 2, apart, f["columns"], "sets")
            assert first.block[0] * 16 <= first.shared  # what is joined takes turns there with what was summed
        if way == jobs.PER_COLUMN:
            assert groups == inner == 1 and f["columns"] == size
        if way == jobs.PER_CHANNEL:
            share = f["share"]
            assert inner > 1 and (f["columns"], f["channels"]) == (groups * channels, channels)
            assert share & (share - 1) == 0 and (not steps or share == 1 or share * channels <= threads)
            assert share <= threads and (share >= 32 or steps)
            if steps:
                assert channels * max(1, share // 32) <= max(channels, 64)  # pieces
            else:
                check_parts(f, threads, vector)


def check_parts(f, threads, vector):
    """The warps that have a part of a channel have places of their own for its sum: those that follow each other."""
    warps, vectors, length = threads // 32, f["size"] // vector, f["inner"] // vector
    part = -(-vectors // (8 * warps)) * 8
    first = np.arange(f["channels"]) * length // part
    last = ((np.arange(f["channels"]) + 1) * length - 1) // part
    assert length >= row_plans.SUMMED and last.max() < warps
    assert (last - first).max() < f["share"] // 32


def affine_bytes(f, dtype):
    """What affine_bytes of rows.cu says."""
    gamma = -(-f["size"] // 4) * 4
    beta = gamma if f["affine"] == GAMMA_AND_BETA else row_plans.ZEROS
    return (gamma + beta) * max(plans.ITEMSIZE[dtype], 4) if f["affine"] else 0


def row_bytes(f, launch, vector, dtype):
    """Of a row that is kept in shared memory."""
    arrays = 1 if launch.kernel.startswith("rows_forward") else 2
    return arrays * f["keep"] * launch.block[0] * vector * plans.ITEMSIZE[dtype]


def rows_of_blocks(f, apart):
    """Those that the blocks of rows_backward.cu go through."""
    block, stride = np.arange(f["sets"] * apart, dtype=np.int32)[:, None], f["sets"] * apart * f["side"]
    first = block // apart * f["side"] * apart + block % apart + np.arange(0, f["rows"], stride, dtype=np.int32)
    rows = first.ravel()[:, None] + np.arange(0, f["side"] * apart, apart, dtype=np.int32)
    return rows[rows < f["rows"]]


@many
@given(SIZES, SIZES, SIZES, SIZES, DTYPES, st.booleans(), LIMITS)
def test_sums_over_rows(n, groups, channels, inner, dtype, vectors, limits):
    shape, size = (n, groups, channels, inner), channels * inner
    plan = row_plans.row_sums(shape, dtype, vectors, RELU.kind, limits)
    (launch,) = plan.launches
    f = fields(launch)
    check_groups(launch)
    vector = parameters(launch)[2]
    assert size % vector == 0 and f["row_channels"] == channels
    check_workspace(plan, f, 2, -(-launch.grid[0] // f["group"]), f["channels"])
    if prod(shape) <= SMALL:
        at, vector = positions(launch)
        counted = sum(np.bincount(at + v, minlength=prod(shape)) for v in range(vector))
        assert counted.size == prod(shape) and (counted == 1).all()


def test_how_many_threads_a_row_has_follows_from_its_length():
    """And from nothing else, or its bits would depend on the batch and on the device."""

    def lanes(rows, size, limits):
        plan = row_plans.rows("rows_forward", (rows, 1, size, 1), "float32", GAMMA_AND_BETA, False, 0, limits)
        return fields(plan.launches[0])["lanes"]

    for rows, processors in product((1, 64, 10**5), (20, 132)):
        limits = plans.Limits(processors=processors)
        found = [lanes(rows, size, limits) for size in (4, 64, 256, 512, 1024, 2048, 10**5)]
        assert found == [1, 4, 16, 32, 64, 128, 512]


def test_a_tile_of_few_channels_joins_them_first():
    """So that the last block has few sums to load, which it had to wait for several times."""
    for name in ("moments", "sums"):
        plan = plans.reduction(name, 10**6, 3, 1, "float32", True, False, "frozen", 0, LIKE_H100)
        first, f = plan.launches[0], fields(plan.launches[0])
        assert has_few(first) and (first.grid, f["bunch"], plan.tickets) == ((3, 82), 246, 1)
        assert plan.partial == 246 * 3 * (4 if name == "moments" else 2)
    plan = plans.reduction("moments", 10**6, 3, 1, "float32", False, True, "", 0, LIKE_H100)  # value by value
    assert not has_few(plan.launches[0])


def test_many_partial_sums_are_joined_in_bunches():
    """Where the last block would otherwise wait for memory several times; not where one more ticket takes as long."""

    def bunch(name, rows, channels):
        plan = plans.reduction(name, rows, channels, 1, "float32", True, False, "frozen", 0, LIKE_H100)
        f = fields(plan.launches[0])
        return f["chunks"], f["bunch"]

    assert bunch("moments", 65536, 64) == (128, 12)  # 4 turns and not 8
    assert bunch("sums", 65536, 64) == (128, 128)
    assert bunch("moments", 8192, 512) == (16, 16)
    text = launching.source("channels")
    assert f"AHEAD = {bunches.WINDOW} / PARTS;" in text


@pytest.mark.parametrize(("rows", "size", "names"), [(256, 64, 1), (65536, 256, 1), (65536, 1024, 2), (64, 1024, 1)])
def test_few_sums_over_rows_need_no_launch(rows, size, names):
    """Joined by the last blocks of the backward; many columns by the blocks of a launch."""
    plan = row_plans.rows("rows_backward", (rows, 1, size, 1), "float32", GAMMA_AND_BETA, True, 0, LIKE_H100)
    assert len(plan.launches) == names


def test_long_rows_are_kept_where_a_broad_block_has_room():
    """In shared memory, x of a forward, x and dy of a backward; longer ones are read again.

    A forward keeps more than 100 KB only if it keeps gamma as well: without, it is faster so.
    """

    def kept(name, size, shared=227):
        limits = plans.Limits(shared=shared << 10)
        (first,) = row_plans.rows(name, (500, 1, size, 1), "bfloat16", NO_AFFINE, False, 0, limits).launches
        return row_bytes(fields(first), first, 8, "bfloat16")

    assert [kept("rows_forward", size) for size in (16384, 24576, 49152, 51200)] == [0, 49152, 98304, 0]
    assert [kept("rows_backward", size) for size in (20480, 24576, 57344, 57352)] == [0, 98304, 229376, 0]
    assert kept("rows_forward", 32768, shared=64) == 0
    assert kept("rows_forward", 28672, shared=64) == 57344  # next to nothing is held back


@pytest.mark.parametrize(
    ("name", "positions", "dtype", "blocks", "kilobytes"),  # a row has 8 channels
    [
        ("rows_forward", 3136, "float32", 2, 102),  # 100, and gamma and beta of 256 channels
        ("rows_forward", 3136, "bfloat16", 2, 52 + 2),
        ("rows_forward", 6272, "float32", 1, 196 + 2),
        ("rows_backward", 1568, "float32", 2, 104),
        ("rows_backward", 3136, "float32", 1, 208),  # of twice as many threads, as all that follow
        ("rows_backward", 3136, "bfloat16", 2, 104),
        ("rows_backward", 3136, "float64", 0, 8),  # read again
        ("rows_backward", 6272, "float32", 0, 8),
    ],
)
def test_long_runs_are_kept_by_a_block_alone(name, positions, dtype, blocks, kilobytes):
    """Beside the sums of their channels, where two blocks have no room."""
    shape = (64, 32, 8, positions)
    (first,) = row_plans.rows(name, shape, dtype, GAMMA_AND_BETA, name == "rows_backward", 0, LIKE_H100).launches
    f = fields(first)
    assert (bool(f["keep"]), first.shared >> 10) == (bool(blocks), kilobytes)
    if name == "rows_backward":  # all of a processor, but for those that groups leave, and as many late ones
        assert (first.grid, f["late"], f["halvings"]) == ((2 * (blocks or 1) * 128, 1), 64 * 32 * 7 // 8, 1)


def test_short_runs_are_not_kept_by_a_block_alone():
    for name, positions, keeps in (("rows_forward", 32, False), ("rows_forward", 64, True)):
        shape = (64, 1, 40960 // positions, positions)
        first = row_plans.rows(name, shape, "float32", GAMMA_AND_BETA, False, 0, LIKE_H100).launches[0]
        assert bool(fields(first)["keep"]) == keeps


def test_clusters_are_as_many_as_run_at_a_time():
    """They go on from channel to channel; a ticket says to which."""
    for dtype, name, then, grid in (
        ("float32", "moments", "normalize", (16, 8)),  # 200 KB of each block
        ("bfloat16", "moments", "normalize", (32, 8)),  # 100
        ("bfloat16", "sums", "gradient", (16, 8)),
    ):
        plan = plans.reduction(name, 128, 256, 3136, dtype, True, False, then, 0, LIKE_H100)
        (launch,) = plan.launches
        assert launch.kernel.startswith("cluster_") and launch.grid == grid and plan.tickets >= 1
    (launch,) = plans.reduction("moments", 128, 12, 3136, "float32", True, False, "normalize", 0, LIKE_H100).launches
    assert launch.grid == (12, 8)


@pytest.mark.parametrize("kilobytes", [99, 163, 227])
def test_small_blocks_share_a_processor_however_little_memory_it_has(kilobytes):
    """Else there would be twice as many clusters as run at a time, and a processor would have few threads."""
    limits, found = plans.Limits(160, kilobytes << 10), set()
    for outer, (name, then) in product(range(1, 257), (("moments", "normalize"), ("sums", "gradient"))):
        plan = plans.reduction(name, outer, 512, 3136, "bfloat16", True, False, then, 0, limits)
        launch = plan.launches[0]
        if not launch.persistent and launch.family != "clusters":
            continue
        one = launch.shared + plans.STATIC_SHARED[launch.family] + (1 << 10)
        blocks = launch.grid[0] * plans.CLUSTER // 160 if launch.family == "clusters" else 3 - launch.block[0] // 256
        assert blocks * one <= (kilobytes + 1) << 10
        found.add((launch.family, blocks))
    assert found == set(product(("channels", "clusters"), (1, 2)))


def test_gamma_and_beta_are_kept_where_two_blocks_share_a_processor():
    """Those that the kernel reads; or where a block is alone: beside sums, or as it is broad."""

    def kept(name, size, affine, params=False, kind=0, shared=227, dtype="bfloat16"):
        limits = plans.Limits(shared=shared << 10)
        first = row_plans.rows(name, (500, 1, size, 1), dtype, affine, params, kind, limits).launches[0]
        return fields(first)["affine"]

    forward, backward = "rows_forward", "rows_backward"
    assert kept(forward, 8192, GAMMA_AND_BETA) == kept(forward, 12800, GAMMA_AND_BETA) == GAMMA_AND_BETA
    assert kept(forward, 12800, GAMMA_AND_BETA, dtype="float32") == GAMMA_AND_BETA
    assert kept(backward, 57600, GAMMA_ALONE) == GAMMA_ALONE  # with zeros in place of beta, by a block alone
    assert kept(backward, 57984, GAMMA_ALONE) == NO_AFFINE
    assert kept(forward, 64, NO_AFFINE) == GAMMA_ALONE  # ones
    assert kept(forward, 20000, NO_AFFINE) == NO_AFFINE  # which would be in the way of the row
    assert kept(backward, 8192, GAMMA_ALONE, shared=64) == NO_AFFINE  # two blocks have 31 KB each
    for affine in (GAMMA_ALONE, GAMMA_AND_BETA):  # without an activation beta is not read
        assert kept(backward, 1024, affine, params=True) == GAMMA_ALONE  # beside 64 KB
        assert kept(backward, 16384, affine, params=True) == GAMMA_ALONE  # beside 128 KB, of one block
    assert kept(backward, 8192, GAMMA_AND_BETA, params=True, kind=RELU.kind) == GAMMA_AND_BETA
    assert kept(backward, 16384, GAMMA_AND_BETA, params=True, kind=RELU.kind) == NO_AFFINE
    (text,) = re.findall(r"constexpr int ZEROS = (\d+);", launching.source("rows"))
    assert int(text) == row_plans.ZEROS >= max(map(max, map(row_plans.vectors_of, plans.ITEMSIZE)))


def test_a_block_alone_keeps_gamma_and_beta_first_and_then_the_row_of_a_forward():
    """Of up to 226 KB in all: read for every row they would be more, as float64, than the row read twice."""

    def kept(size, dtype, affine=GAMMA_AND_BETA):
        first = row_plans.rows("rows_forward", (500, 1, size, 1), dtype, affine, False, 0, LIKE_H100).launches[0]
        return first.shared >> 10, fields(first)["affine"], bool(fields(first)["keep"])

    assert kept(12832, "bfloat16") == (100, GAMMA_AND_BETA, False)  # in registers
    assert kept(16384, "bfloat16") == (128, GAMMA_AND_BETA, False)
    assert kept(20480, "bfloat16") == (200, GAMMA_AND_BETA, True)
    assert kept(24576, "bfloat16") == (192, GAMMA_AND_BETA, False)
    assert kept(32768, "bfloat16") == (64, NO_AFFINE, True)
    assert kept(16384, "float32") == (192, GAMMA_AND_BETA, True)
    assert kept(12288, "float32") == (144, GAMMA_AND_BETA, True)
    assert kept(8192, "float64") == (192, GAMMA_AND_BETA, True)
    assert kept(28672, "bfloat16", GAMMA_ALONE) == (168, GAMMA_ALONE, True)


def test_rows_of_a_forward_share_gamma_and_beta_if_these_are_many():
    """By one block of a processor, of as many threads as the blocks have together that it would otherwise run."""

    def threads(size, dtype, affine=GAMMA_AND_BETA, rows=5000, shared=227):
        limits = plans.Limits(shared=shared << 10)
        first = row_plans.rows("rows_forward", (rows, 1, size, 1), dtype, affine, False, 0, limits).launches[0]
        assert first.block[0] % fields(first)["lanes"] == 0
        return first.block[0], fields(first)["side"], fields(first)["affine"]

    assert threads(4096, "bfloat16") == (256, 2, GAMMA_AND_BETA)  # 32 KB
    assert threads(5120, "bfloat16") == (512, 4, GAMMA_AND_BETA)
    assert threads(8192, "bfloat16") == threads(8192, "float16", shared=99) == (768, 3, GAMMA_AND_BETA)
    assert threads(12288, "bfloat16") == threads(8192, "float32") == (512, 2, GAMMA_AND_BETA)
    assert threads(8192, "bfloat16", GAMMA_ALONE) == (256, 1, GAMMA_ALONE)
    assert threads(8192, "bfloat16", shared=64) == (256, 1, NO_AFFINE)  # they have no room
    assert threads(4096, "float32", shared=64) == (256, 1, GAMMA_AND_BETA)  # which leave none for a second block
    assert [threads(8192, "bfloat16", rows=rows)[1] for rows in (1, 132, 133, 300)] == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("shape", "sums", "alone"),
    [
        ((256, 64, 1), 2, 16),
        ((16, 16, 1), 1, 1),
        ((65536, 64, 1), 256, 256),
        ((65536, 1024, 1), 256, 256 * shapes.SPLIT),
    ],
    ids=str,
)
def test_a_map_has_more_blocks_where_sums_have_few(shape, sums, alone):
    cut_of = shapes.shape_of(*shape, "float32", True)
    assert cut_of.tiles * shapes.cut(cut_of, LIKE_H100)[1] == sums
    for name in ("normalize", "finite", "gradient", "frozen"):
        (launch,) = plans.map_only(name, *shape, "float32", True, False, 0, LIKE_H100).launches
        assert prod(launch.grid) == alone


def test_blocks_that_leave_sums_are_as_many_as_run_at_a_time():
    def blocks(size, dtype, shared=227):
        limits = plans.Limits(shared=shared << 10)
        plan = row_plans.rows("rows_backward", (5000, 1, size, 1), dtype, GAMMA_ALONE, True, 0, limits)
        return plan.launches[0].grid[0] / limits.processors

    assert blocks(1024, "bfloat16") == blocks(512, "float32") == 2  # 64 KB of sums of the one
    assert blocks(1024, "bfloat16", shared=99) == 1
    assert blocks(2048, "bfloat16") == blocks(1024, "float32") == 1  # of twice as many threads
    assert blocks(4096, "bfloat16", shared=99) == 1  # of as many, as 128 KB of sums have no room
    assert blocks(4096, "float16", shared=164) == 1


def test_few_rows_take_broad_blocks_one_turn():
    for rows in (1, 131, 133, 200, 264, 300, 1000):
        plan = row_plans.rows("rows_backward", (rows, 1, 1024, 1), "float32", GAMMA_ALONE, True, 0, LIKE_H100)
        first = plan.launches[0]
        assert first.block == (512,) and first.grid[0] <= LIKE_H100.processors
        assert fields(first)["side"] * first.grid[0] >= rows


def test_sums_of_channels_are_written_by_as_many_blocks_as_run_at_a_time():
    """Two to a processor, where both have room for them; else one. Of long rows only those of long runs."""

    def blocks(channels, positions):
        shape = (500, 1, channels, positions)
        plan = row_plans.rows("rows_backward", shape, "bfloat16", GAMMA_AND_BETA, True, 0, LIKE_H100)
        return plan.launches[0].grid[0] / LIKE_H100.processors if plan.partial else None

    assert blocks(1024, 4) == blocks(170, 128) == 2
    assert blocks(2048, 4) == 1  # for its registers
    assert blocks(4096, 4) is None and blocks(256, 120) is None
    assert blocks(256, 128) == 1  # of twice as many threads


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_few_channels_fill_their_tiles(dtype):
    """Of three, a tile would be half empty. Few rows are not widened so far."""
    for channels, inner in ((3, 1), (1, 1), (5, 1), (24, 1), (64, 1), (2, 49)):
        shape = plans.shape_of(10**5, channels, inner, dtype, True)
        assert 8 * shape.columns >= 7 * shape.tiles * shape.width and shape.columns <= shapes.MAX_WIDENED
    assert plans.shape_of(200, 3, 1, dtype, True).columns < 200


def test_channels_that_a_cluster_holds_are_read_once():
    """One launch where the memory of eight blocks suffices, and their clusters fill the device; else two."""

    def plan(name, then, channels, pixels, dtype, limits=LIKE_H100):
        found = plans.reduction(name, 128, channels, pixels, dtype, True, False, then, 0, limits)
        return [parameters(launch)[0] for launch in found.launches]

    forward, backward = ("moments", "normalize"), ("sums", "gradient")
    for dtype in ("float32", "bfloat16"):
        assert plan(*forward, 256, 56 * 56, dtype) == ["cluster_moments"]
    assert plan(*backward, 256, 56 * 56, "bfloat16") == ["cluster_sums"]
    assert plan(*backward, 256, 56 * 56, "float32") == list(backward)  # x and dy of a channel are 3.2 MB
    assert plan(*forward, 256, 28 * 28, "float32") == ["cluster_moments"]
    assert plan(*backward, 256, 28 * 28, "float32") == ["cluster_sums"]
    assert plan(*forward, 256, 112 * 112, "float32") == list(forward)
    for channels, names in ((3, forward), (12, ["cluster_moments"]), (17, forward), (24, ["cluster_moments"])):
        assert plan(*forward, channels, 56 * 56, "float32") == list(names)
    older = plans.Limits(108, 163 << 10, False)
    assert plan(*forward, 256, 28 * 28, "float32", older) == list(forward)


# The text of the kernels --------------------------------------------------------------------------------------------


STRUCTS = {"Job": jobs.JOB, "RowJob": jobs.ROW_JOB, "StatisticsJob": jobs.STATISTICS_JOB}
OF_FAMILY = {
    "channels": "Job",
    "clusters": "Job",
    "planes": "Job",
    "rows": "RowJob",
    "row_channels": "Job",
    "statistics": "StatisticsJob",
    "exact": "Job",
}


@pytest.mark.parametrize(("family", "name"), OF_FAMILY.items())
def test_the_struct_is_that_of_the_jobs(family, name):
    expected = STRUCTS[name]
    body = re.search(rf"struct {name} \{{(.*?)\n\}};", launching.source(family), re.DOTALL)[1]
    found = []
    for line in re.sub(r"//[^\n]*", "", body).split(";"):
        if line := line.strip():
            kind, names = re.fullmatch(r"((?:const )?\w+(?: ?\*)?)\s*(.*)", line, re.DOTALL).groups()
            found += [("pointer" if "*" in line else kind, name.strip(" *")) for name in names.split(",")]
    kinds = ("pointer", "i64", "double", "i64")
    assert found == [(kind, name) for kind, names in zip(kinds, expected, strict=True) for name in names]


def test_a_call_packs_its_fields_and_zeros_between():
    fields = jobs.Fields(("a", "b"), ("c",), ("d",), ("e", "f"))
    assert fields.packer("b", "d")(7, 0.5) + fields.place(f=3) == struct.pack("=QQqdqq", 0, 7, 0, 0.5, 0, 3)
    assert fields.size == 48 and fields.placed(fields.place(e=1)) == {"e": 1, "f": 0}
    with pytest.raises(ValueError, match="in the order of the struct"):
        fields.packer("d", "b")
    with pytest.raises(ValueError, match="in the order of the struct"):
        fields.packer("a", "z")


def test_modes_are_spelled_once():
    for names in jobs.ENUMERATIONS:
        assert [getattr(jobs, name) for name in names] == list(range(len(names)))
        for family in launching.FAMILIES:
            assert f"enum {{ {', '.join(names)} }};" in launching.source(family)
    kinds = re.search(r"enum \{ BN_IDENTITY, (.*) \};", launching.source("channels"))[1].split(", ")
    assert [(None, *kinds)[kind] for kind in activation.KINDS] == [
        name and f"BN_{name.removesuffix('_relu').upper()}" for name in activation.NAMES
    ]


def test_kernels_are_those_that_plans_launch():
    text = {family: re.sub(r"//[^\n]*", "", launching.source(family)) for family in launching.FAMILIES}
    pattern = r"__global__ void[^;{]*?(\w+)\((?:Row|Statistics)?Job job\)"
    assert clusters(text["clusters"]) == {name: (1, plans.CLUSTER, 1) for name in ("cluster_moments", "cluster_sums")}
    assert f"constexpr int CLUSTER = {plans.CLUSTER};" in text["clusters"]
    written = {family: set(re.findall(pattern, t)) for family, t in text.items()}
    assert written == {family: {name.split("<")[0] for name in every(family)} for family in launching.FAMILIES}


@cache
def every(family, dtypes=tuple(plans.ITEMSIZE)):
    """The names that are compiled ahead, and for other devices."""
    return set(gpu_compile.instances(family, dtypes))


def test_what_is_compiled_at_once_can_be_launched():
    """usual.txt is that of these kernels: else `python tests/support/emulated/usual.py`."""
    assert usual.listed().keys() == launching.FAMILIES.keys()
    for family, names in usual.listed().items():
        assert set(names) <= every(family), family
    assert usual.text({family: set(names) for family, names in usual.listed().items()}) == usual.LIST.read_text()


@many
@given(SIZES, SIZES, SIZES, DTYPES, st.booleans(), st.booleans(), LIMITS)
def test_no_plan_asks_for_another_kernel(outer, channels, inner, dtype, vectors, careful, limits):
    size = outer, channels, inner, dtype, vectors
    found = [plans.exact_sums(*size, careful, limits)] if dtype != "float64" else []
    for kind in range(3):
        options = kind, limits
        found += [
            plans.reduction("moments", *size, careful, "", *options),
            plans.reduction("moments", *size, careful, "normalize", *options),
            plans.reduction("sums", *size, careful, "", *options),
            plans.reduction("sums", *size, careful, "gradient", *options),
            plans.reduction("sums", *size, False, "frozen", *options),
            *(plans.map_only(name, *size, False, *options) for name in ("normalize", "finite", "frozen")),
            plans.map_only("gradient", *size, careful, *options),
            row_plans.row_sums((outer, channels, inner, 3), dtype, vectors, *options),
        ]
        for shape in ((outer, channels, inner, 3), (outer * inner, 1, channels, 1)):
            args = shape, dtype, GAMMA_AND_BETA
            found += [row_plans.rows("rows_forward", *args, False, *options)]
            found += [row_plans.rows("rows_backward", *args, params, *options) for params in (0, 1)]
    for plan in found:
        for launch in plan.launches:
            assert launch.kernel in every(launch.family, (dtype,))


@pytest.mark.parametrize("dtype", sorted(plans.ITEMSIZE))
def test_the_sweep_forgets_no_instance(dtype, monkeypatch):
    """What test_device.py launches on a device; here the launches are only counted."""
    device = PlanningDevice(plans.Limits())
    monkeypatch.setattr(launching, "device_of", lambda x: device)
    numpy_type = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    for case in gpu_sweep.cases(dtype):
        x = np.empty(case.shape, numpy_type)
        vectors = np.ones((2, case.shape[1] * (case.shape[2] if case.what == "rows" else 1)))
        weight = np.ones((case.shape[0], case.shape[2] if len(case.shape) == 3 else 1))
        for act in gpu_sweep.ACTIVATIONS:
            with contextlib.suppress(FloatingPointError):
                list(gpu_sweep.results(case, act, x, x, vectors, weight))
    launched = set(device.kernels())
    names = {name for family in gpu_sweep.FAMILIES for name in every(family, (dtype,))}
    small = re.compile(rf"rows_backward<\w+, \d, \d, {row_plans.OF_WARPS}, \d, {jobs.PER_COLUMN}>")
    assert launched == {name for name in names if not small.fullmatch(name)}  # where broad blocks have no memory


def test_what_a_sanitizer_watches(monkeypatch):
    """On an H100 the small calls reach every family of kernels, and blocks that go on to other channels and rows."""
    device = PlanningDevice(plans.Limits())
    monkeypatch.setattr(launching, "device_of", lambda x: device)
    gpu_small.calls(lambda shape: np.empty(shape, "f4"), np.ones, device)
    assert {launch.family for launch in device.log} == launching.FAMILIES.keys() - {"statistics"}
    assert {launch.kernel.partition("<")[0] for launch in device.log if launch.meeting} == {"moments", "sums"}
    going_on = set()
    for launch in device.log:
        name = launch.kernel.partition("<")[0]
        if launch.family == "clusters":
            many, at_a_time = fields(launch)["columns"], launch.grid[0]
        elif launch.persistent:
            most = 2048 // plans.THREADS  # blocks of a processor; fewer where each has much memory, or many registers
            most = 1 if launch.shared > 112 << 10 else 2 if launch.shared > 75 << 10 else most
            most = 3 if launch.kernel.startswith("rows_forward<float, 4, 3, 1,") else most
            many, at_a_time = launch.grid[0], most * device.limits.processors
        else:
            continue
        if many > at_a_time:
            going_on.add(name)
    rows = [(launch.kernel.partition("<")[0], fields(launch)) for launch in device.log if launch.family == "rows"]
    assert {name for name, of in rows if of["late"] < of["rows"]} >= {"rows_forward", "rows_backward"}
    weighted = {"rows_weighted_forward", "rows_weighted_backward"}
    assert going_on == {"cluster_moments", "cluster_sums", "moments", "sums", "rows_forward"} | weighted
