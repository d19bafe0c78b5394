"""Launch plans of rows without a device: which blocks share them, what is kept, and how sums over rows are joined."""

import re
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bnorm.kernels.activation import RELU
from bnorm.kernels.gpu import jobs, launching, plans, row_plans
from bnorm.kernels.gpu.jobs import GAMMA_ALONE, GAMMA_AND_BETA, NO_AFFINE
from bnorm.kernels.gpu.shapes import vectors_of
from emulated.launches import fields, parameters
from plan_checks import DTYPES, LIKE_H100, LIMITS, SIZES, SMALL, check_groups, check_workspace, many, positions


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
        if many_rows <= 10 * SMALL:
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
    for name, length, keeps in (("rows_forward", 32, False), ("rows_forward", 64, True)):
        shape = (64, 1, 40960 // length, length)
        first = row_plans.rows(name, shape, "float32", GAMMA_AND_BETA, False, 0, LIKE_H100).launches[0]
        assert bool(fields(first)["keep"]) == keeps


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
    assert int(text) == row_plans.ZEROS >= max(map(max, map(vectors_of, plans.ITEMSIZE)))


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
