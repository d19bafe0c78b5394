"""What the tests of launch plans share: sizes and limits of devices, and checks that hold for every plan."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from bnorm.kernels.gpu import plans
from emulated.launches import fields, has_few, parameters

DTYPES = st.sampled_from(sorted(plans.ITEMSIZE))
SIZES = st.one_of(st.integers(1, 9), st.integers(1, 300), st.integers(1, 5000))
LIMITS = st.builds(
    plans.Limits, st.sampled_from([1, 16, 132, 200]), st.sampled_from([48 << 10, 99 << 10, 227 << 10]), st.booleans()
)
LIKE_H100 = plans.Limits()
SMALL = 300_000  # elements that are counted one by one
many = settings(max_examples=4 * settings.default.max_examples, deadline=None)


def positions(launch):
    """Return the element at which each step of each thread begins, and how many it takes, as computed by kernels."""
    f = fields(launch)
    _, _, vector, wide, across, *_ = parameters(launch)
    tiles = f["columns"] if launch.family == "clusters" else launch.grid[0]  # clusters go on from tile to tile
    columns = np.arange(tiles * across)[:, None] * wide
    steps = np.arange(f["chunks"] * f["chunk"])[None, :]
    at = columns * f["base"] + steps // f["run"] * f["jump"] + steps % f["run"] * f["unit"]
    return at[(columns < f["columns"]) & (steps < f["steps"])], vector


def check_workspace(plan, f, parts, groups, channels, chunks="chunks"):
    """Check what join_last of joins.cu writes to: the sums of all chunks, then those of bunches, and the tickets."""
    chunks, bunch, columns = f[chunks], f["bunch"], f["columns"]
    if has_few(plan.launches[0]):  # a tile joins the columns of a channel first
        chunks, columns = chunks * plan.launches[0].grid[0], channels
    assert 1 <= bunch <= chunks
    if plan.launches[0].meeting:  # only sums, for moments those of two rounds, and one more ticket
        assert plan.partial == max(parts * chunks * columns, plan.otherwise.partial)
        assert plan.tickets == max(groups * parts // 2, plan.otherwise.tickets)
        return
    if chunks * f.get("copies", 1) * f.get("inner", 1) == 1 and "sets" not in f:
        assert plan.partial == plan.tickets == 0  # blocks finish their channels by themselves
        return
    many = -(-chunks // bunch)
    assert plan.partial == parts * (chunks * columns + (many * channels if many > 1 else 0))
    assert plan.tickets == groups * (many + 1 if many > 1 else 1)


def check_groups(launch):
    """Check that a group of tiles, whose blocks share one ticket, has all columns of its channels."""
    f = fields(launch)
    _, _, _, wide, across, *_ = parameters(launch)
    if f["copies"] > 1:
        assert f["group"] == launch.grid[0]
    else:
        assert f["group"] == launch.grid[0] or f["group"] * across * wide % f["inner"] == 0
