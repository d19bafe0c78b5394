"""What a batch tells about its groups: the moments of each group, and of all rows together."""

from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm.kernels import cpu, view
from bnorm.kernels.cpu import groups as kernels
from bnorm.running import Step
from bnorm.transformer import tables
from bnorm.transformer.clock import Rows
from bnorm.transformer.keys import Keys
from bnorm.transformer.tables import Dense, InColumns
from bnorm.transformer.times import NAT, Times, Zero

FAINT = 2.0**-tables.SHALLOW  # weights below it may have underflowed
WAYS = 64
TOGETHER = 1 << 16  # this many groups are merged at a time, to limit the memory


class Batch(NamedTuple):
    """What a batch tells about its groups.

    parts         (4, G, C), the moments of each key; if values fade, with their weights at the row `last`
    seen, last    (G, C), None unless values fade: the weight before fading, and the time of the row with full weight,
                  counted from the last row of the key, or from the newest of all rows if rows have times
    lengths       (G,) the number of rows of each key; 0 unless values fade by rows
    whole         the steps of all rows, with a key or without; if rows have times, counted from the newest
    zero          the kind of the times of the rows, and the newest time; None if rows have no times
    """

    keys: Keys
    parts: ndarray
    seen: ndarray | None
    last: ndarray | None
    lengths: ndarray
    whole: list[Step]
    weighted: bool
    zero: Zero | None = None


def batch_of(
    keys: Keys,
    x: Dense,
    weight: ndarray | None,
    halflife: float | None,
    times: Times | None = None,
    count: bool = False,
) -> Batch:
    """Make a batch from the codes of its rows; ValueError if there is infinity in it. count: whether to count the rows
    of each key even without a half-life, because values will fade by rows later.
    """
    n, rows = len(keys.keys), x.rows
    codes, outside = keys.codes, n
    if keys.gaps:  # rows without a key count for the whole: they form one more group
        codes, outside = np.where(codes < 0, np.int32(n), codes), n + 1
    seen = last = None
    if halflife is None:
        every = moments(x, codes, outside, weight)
        whole = [Step(together(every), rows)]
    elif times is None:
        every, seen, last = _faded(x, codes, outside, weight, kernels.later(codes, outside), halflife)
        whole = x.steps(weight, Rows(halflife), 0)
    else:
        newest = np.full(outside, NAT)
        np.maximum.at(newest, codes, times.ns)
        every, seen, last = _faded(x, codes, outside, weight, _since(newest[codes], times.ns), halflife)
        last -= _since(times.newest, newest).astype(np.float64)[:, None]
        whole = [_as_one(every, seen, last, rows, halflife)]
    tables.refuse_infinity_in(whole[0].parts, x, weight)
    counted = count or (halflife is not None and times is None)
    return Batch(
        keys,
        np.ascontiguousarray(every[:, :n]),
        None if seen is None else seen[:n],
        None if last is None else last[:n],
        np.bincount(codes, minlength=outside)[:n] if counted else np.zeros(n, np.int64),
        whole,
        weight is not None,
        None if times is None else Zero(times.kind, times.newest, times.column),
    )


def mapped(x: Dense, codes: ndarray, numbers: ndarray) -> ndarray:
    """Return (x - mean) scale + shift with the numbers of each row's group, in the memory order of the table."""
    try:
        if isinstance(x, InColumns):
            columns: ndarray = kernels.normalize(_block(x), codes, numbers, None, True)[0]
            return columns.T
        block, layout = view.channels(x.dense(), 1)
        y: ndarray = view.restore(kernels.normalize(block, codes, numbers, None, True), layout)
    except FloatingPointError:
        raise tables.infinite(x) from None
    return y


def moments(x: Dense, codes: ndarray, n: int, weight: ndarray | None) -> ndarray:
    """Return count, mean, m2 and low of the values of each group that are not NaN: (4, G, C)."""
    w = None if weight is None else view.dense(weight, np.float64)
    found: ndarray = kernels.moments(_block(x), codes, n, w, True)
    return found


def _block(x: Dense) -> Any:
    """Return a table as the kernels of groups read it, without a copy if possible."""
    return x.x.alike() if isinstance(x, InColumns) else view.channels(x.dense(), 1)[0]


def _since(later: Any, times: ndarray) -> ndarray:
    """Return by how much `later` is later than `times`: a difference of two int64 fits uint64."""
    ages: ndarray = (later - times).view(np.uint64)
    return ages


@np.errstate(under="ignore")  # what has faded away is 0
def _faded(
    x: Dense, codes: ndarray, n: int, weight: ndarray | None, ages: ndarray, halflife: float
) -> tuple[ndarray, ndarray, ndarray]:
    """Weigh rows by age, as `tables.faded` does. Return parts, seen and last of each group. ages: how much older each
    row is than the last one of its group, in whole numbers.

    If a feature has too little weight left in a group, its ages there count from its last value in this group.
    """
    parts = moments(x, codes, n, _weights(ages, halflife, weight))
    every = moments(x, codes, n, weight)
    tables.refuse_infinity_in(every.reshape(4, -1), x, weight)
    seen = every[0].copy()
    last = np.zeros_like(seen)
    unit = 1.0 if weight is None else max(1.0, float(weight.max()))
    lost = (parts[0] < FAINT * unit) & (seen > 0)
    some_lost = np.flatnonzero(lost.any(0)).tolist()
    for c, column in zip(some_lost, x.dense().T[some_lost] if some_lost else (), strict=True):
        rows = np.flatnonzero(lost[codes, c] & ~np.isnan(column) & (weight is None or weight > 0))
        some, w = codes[rows], None if weight is None else weight[rows]
        youngest = np.full(n, ages.max())
        np.minimum.at(youngest, some, ages[rows])
        heaviest = np.ones(n)
        if w is not None:
            heaviest[some] = 0
            np.maximum.at(heaviest, some, w)
            w = w / heaviest[some]
        own = moments(Dense(column[rows, None]), some, n, _weights(ages[rows] - youngest[some], halflife, w))[..., 0]
        own[[0, 2]] *= heaviest
        parts[:, lost[:, c], c] = own[:, lost[:, c]]
        last[lost[:, c], c] = -youngest[lost[:, c]].astype(np.float64)
    return parts, seen, last


@np.errstate(over="ignore", under="ignore")
def _weights(ages: ndarray, halflife: float, weight: ndarray | None) -> ndarray:
    faded: ndarray = cpu.halved(ages.astype(np.float64) / -halflife)
    return faded if weight is None else faded * weight


@np.errstate(over="ignore", under="ignore")
def _as_one(parts: ndarray, seen: ndarray, last: ndarray, rows: int, halflife: float) -> Step:
    """Merge all groups into one step. The ages of a feature count from its youngest value."""
    youngest = np.where(seen > 0, last, -np.inf).max(0)
    youngest = np.where(youngest > -np.inf, youngest, 0.0)
    merged = []
    for begin in range(0, len(last), TOGETHER):
        some = slice(begin, begin + TOGETHER)
        fade = cpu.halved(np.minimum(last[some] - youngest, 0.0) / halflife)
        older = np.where(fade > 0, parts[:, some], 0.0)
        older[[0, 2]] *= fade
        merged.append(together(older))
    return Step(together(np.stack(merged, 1)), rows, seen.sum(0), np.zeros_like(youngest), youngest, 0.0)


def together(parts: ndarray) -> ndarray:
    """Merge the parts (4, G, C) of all groups to (4, C), in a tree whose nodes have up to WAYS branches."""
    channels = parts.shape[2]
    while (n := parts.shape[1]) > 1:
        ways = min(n, WAYS)
        share, end = n // ways, n // ways * ways
        some = [np.ascontiguousarray(parts[:, i : i + share]).reshape(4, -1) for i in range(0, end, share)]
        merged = cpu.merge(some).reshape(4, share, channels)
        parts = np.concatenate([merged, parts[:, end:]], axis=1)
    return parts[:, 0].copy() if parts.shape[1] else np.zeros((4, channels))
