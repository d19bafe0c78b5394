"""Launch plans without a device: every element once, limits respected, and kernels that exist."""

import re
from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bnorm.kernels.gpu import launching, plans

DTYPES = st.sampled_from(sorted(plans.ITEMSIZE))
SIZES = st.one_of(st.integers(1, 9), st.integers(1, 300), st.integers(1, 5000))
LIMITS = st.builds(plans.Limits, st.sampled_from([1, 16, 132, 200]), st.sampled_from([48 << 10, 99 << 10, 227 << 10]))
SMALL = 300_000  # elements that are counted one by one

LARGE = 1 << 35  # elements: 64 GiB of half precision
many = settings(max_examples=400, deadline=None)


def fields(launch):
    return dict(zip(plans.GEOMETRY, plans.PACK_GEOMETRY.unpack(launch.geometry), strict=True))


def parameters(launch):
    """T, V, K, BX, BY and a mode out of the name of an instance."""
    name, inside = launch.kernel.rstrip(">").split("<")
    first, *numbers = inside.split(", ")
    return name, first, *map(int, numbers)


def positions(launch):
    """The element that every step of every thread begins at, and how many it takes: what the kernels compute."""
    f = fields(launch)
    _, _, vector, wide, across, *_ = parameters(launch)
    columns = np.arange(launch.grid[0] * across)[:, None] * wide
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
    plan = plans.reduction("moments", outer, channels, inner, dtype, vectors, careful, "normalize", limits)
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


def check_plans(outer, channels, inner, dtype, vectors, careful, limits):
    size = outer, channels, inner, dtype, vectors
    found = [
        plans.reduction("moments", *size, careful, "", limits),
        plans.reduction("moments", *size, careful, "normalize", limits),
        plans.reduction("sums", *size, careful, "gradient", limits),
        plans.map_only("normalize", *size, careful, limits),
        plans.map_only("gradient", *size, careful, limits),
    ]
    for plan in found:
        assert 1 <= len(plan.launches) <= 2
        for launch in plan.launches:
            check_launch(launch, limits)
        first = plan.launches[0]
        name, f = parameters(first)[0], fields(first)
        if name in ("moments", "sums"):
            parts = 4 if name == "moments" else 2
            assert plan.partial == parts * f["chunks"] * f["columns"]
            assert plan.tickets * f["group"] >= first.grid[0] > (plan.tickets - 1) * f["group"]
            check_groups(first)
        if first.kernel.endswith(f", {plans.WITH_MAP}>"):
            assert len(plan.launches) == 1
            assert f["group"] == f["chunks"] == 1  # a block has whole channels
        if careful:
            assert all(parameters(launch)[2] == 1 for launch in plan.launches)


def check_launch(launch, limits):
    f = fields(launch)
    name, _, vector, wide, across, down, *_ = parameters(launch)
    assert across * down == launch.block <= 1024 and launch.block % 32 == 0
    assert across <= 32 and 32 % across == 0  # the rows of a warp are joined by shuffles
    assert across * wide <= launch.block  # one thread for each column of a tile
    assert 1 <= launch.grid[0] < 2**31 and 1 <= launch.grid[1] <= 65535
    assert launch.grid[1] == f["chunks"] and f["chunks"] % f["split"] == 0
    assert f["chunks"] * f["chunk"] >= f["steps"] and f["chunk"] % down == 0
    assert launch.shared + plans.STATIC_SHARED <= max(limits.shared, 48 << 10)
    if f["keep"]:
        assert f["keep"] * down >= f["steps"]
        arrays = 1 if name == "moments" else 2
        assert launch.shared == arrays * f["keep"] * launch.block * vector * plans.ITEMSIZE[dtype_of(launch)]


def dtype_of(launch):
    return {name: dtype for dtype, name in plans.NAMES.items()}[parameters(launch)[1]]


def check_groups(launch):
    """A group of tiles, all of whose blocks count to one ticket, has all columns of its channels."""
    f = fields(launch)
    _, _, _, wide, across, *_ = parameters(launch)
    if f["copies"] > 1:
        assert f["group"] == launch.grid[0]
    else:
        assert f["group"] == launch.grid[0] or f["group"] * across * wide % f["inner"] == 0


@many
@given(SIZES, SIZES, SIZES, SIZES, DTYPES, st.booleans(), st.booleans(), LIMITS)
def test_rows(n, groups, channels, inner, dtype, vectors, affine, limits):
    shape = (n, groups, channels, inner)
    size, itemsize = channels * inner, plans.ITEMSIZE[dtype]
    for name, arrays in (("rows_forward", 1), ("rows_backward", 2)):
        (launch,) = plans.rows(name, shape, dtype, vectors, affine, limits).launches
        f = fields(launch)
        vector, across = (int(number) for number in re.findall(r"\d+", launch.kernel.split(", ", 1)[1]))
        assert size % vector == 0 and (inner == 1 or inner % vector == 0) and (vectors or vector == 1)
        assert (f["steps"], f["run"], f["inner"], f["group"]) == (n * groups, size, inner, groups)
        assert launch.shared + plans.STATIC_SHARED <= limits.shared
        affine_bytes = -(-2 * size * max(itemsize, 4) // 16) * 16 if f["copies"] else 0
        assert launch.shared == affine_bytes + arrays * f["keep"] * plans.THREADS * vector * itemsize
        assert f["keep"] == 0 or f["keep"] * across * vector >= size
        assert not f["copies"] or (affine and groups == 1 and inner == 1)  # the same gamma for all rows
    plan = plans.row_params(shape, dtype, vectors, limits)
    (launch,) = plan.launches
    f = fields(launch)
    check_groups(launch)
    vector = parameters(launch)[2]
    assert size % vector == 0 and f["split"] == channels
    assert plan.partial == 2 * f["chunks"] * f["columns"]
    if prod(shape) <= SMALL:
        at, vector = positions(launch)
        counted = sum(np.bincount(at + v, minlength=prod(shape)) for v in range(vector))
        assert counted.size == prod(shape) and (counted == 1).all()


# The text of the kernels --------------------------------------------------------------------------------------------


def test_the_struct_is_that_of_the_plans():
    body = re.search(r"struct Job \{(.*?)\n\};", launching.source("channels"), re.DOTALL)[1]
    found = {"pointer": [], "i64": [], "double": []}
    for line in re.sub(r"//[^\n]*", "", body).split(";"):
        if line := line.strip():
            kind, names = re.fullmatch(r"((?:const )?\w+(?: ?\*)?)\s*(.*)", line, re.DOTALL).groups()
            found["pointer" if "*" in line else kind] += [name.strip(" *") for name in names.split(",")]
    assert tuple(found["pointer"]) == plans.POINTERS
    assert tuple(found["i64"]) == plans.GEOMETRY + plans.SWITCHES
    assert tuple(found["double"]) == plans.NUMBERS
    groups = ("void* x;", "int* infinite;", "i64 channels,", "i64 relu,", "double eps,")
    starts = [body.index(start) for start in groups]
    assert starts == sorted(starts)


def test_kernels_are_those_that_plans_launch():
    text = {family: re.sub(r"//[^\n]*", "", launching.source(family)) for family in launching.FAMILIES}
    written = {family: set(re.findall(r"__global__ void[^;{]*?(\w+)\(Job job\)", t)) for family, t in text.items()}
    launched = {
        "channels": {name.split("<")[0] for t in plans.ITEMSIZE for name in plans.channel_kernels(t)} | {"move"},
        "rows": {name.split("<")[0] for t in plans.ITEMSIZE for name in plans.row_kernels(t)},
    }
    assert written == launched


@many
@given(SIZES, SIZES, SIZES, DTYPES, st.booleans(), st.booleans(), LIMITS)
def test_no_plan_asks_for_another_kernel(outer, channels, inner, dtype, vectors, careful, limits):
    """The lists that are compiled ahead, and for other devices, hold every name that a plan comes to."""
    known = {*plans.channel_kernels(dtype), *plans.row_kernels(dtype)}
    size = outer, channels, inner, dtype, vectors
    found = [
        plans.reduction("moments", *size, careful, "normalize", limits),
        plans.reduction("sums", *size, careful, "gradient", limits),
        plans.map_only("gradient", *size, careful, limits),
        plans.row_params((outer, channels, inner, 3), dtype, vectors, limits),
        plans.rows("rows_forward", (outer, channels, inner, 1), dtype, vectors, True, limits),
    ]
    assert {launch.kernel for plan in found for launch in plan.launches} <= known
