"""Launch plans without a device: every element once, limits respected, and kernels that exist."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bnorm.kernels.activation import RELU
from bnorm.kernels.gpu import bunches, jobs, launching, planes, plans, row_plans, shapes
from bnorm.kernels.gpu.jobs import GAMMA_ALONE
from emulated.launches import fields, has_few, parameters, wide_of
from plan_checks import DTYPES, LIKE_H100, LIMITS, SIZES, SMALL, check_groups, check_workspace, many, positions

LARGE = 1 << 35  # elements: 64 GiB of half precision


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


@pytest.mark.parametrize(
    ("kilobytes", "first", "last"), [(227, 26_628, 27_648), (163, 18_436, 19_456), (99, 10_244, 11_264)]
)
def test_a_large_block_keeps_what_it_reads(kilobytes, first, last):
    """Also where its steps, which are rounded up, just fit or just do not."""
    limits, kept = plans.Limits(shared=kilobytes << 10, clusters=False, meetings=False), set()
    for inner in range(first - 2048, last + 2048, 4):
        for outer, channels, name, then in ((1, 2, "sums", "gradient"), (2, 1, "moments", "normalize")):
            plan = plans.reduction(name, outer, channels, inner, "float32", True, False, then, 0, limits)
            for launch in plan.launches:
                check_launch(launch, limits)
            kept.add((plan.launches[0].block, bool(fields(plan.launches[0])["keep"])))
    assert kept >= {((512,), True), ((256,), False)}


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
    if name in ("moments", "sums") and down > shapes.THREADS and parameters(launch)[-2] == jobs.WITH_MAP:
        assert f["keep"] > 0  # a large block of channels.cu always keeps what it reads
    if f["keep"]:
        assert f["keep"] * down * f["chunks"] >= f["steps"]
        arrays = 1 if name.endswith("moments") else 2
        assert launch.shared == arrays * f["keep"] * launch.block[0] * vector * plans.ITEMSIZE[dtype_of(launch)]


def dtype_of(launch):
    return {name: dtype for dtype, name in shapes.NAMES.items()}[parameters(launch)[1]]


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
