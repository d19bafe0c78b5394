"""Updates of running statistics on a device: the functions of `reference_statistics.py` on CuPy arrays.

Nothing here waits for the device, except statistics with "raise", which are tested before they are updated.
"""

from typing import Any, Self

import numpy as np

from ..cpu.entries import mean_weights, move_prepared
from ..cpu.launches import launch
from ..rule import AVERAGE, FADE, POOL, Rule, constant
from . import launching, plans
from .jobs import PROPAGATE, SKIP, STATISTICS_JOB, TEST

Array = Any  # cupy.ndarray
FLOAT32, FLOAT64, INT32 = np.dtype("float32"), np.dtype("float64"), np.dtype("int32")

ADD = STATISTICS_JOB.packer("total", "part", "other", "other_part", "wide")
MERGE = STATISTICS_JOB.packer("sets", "merged", "items")
MOVE = STATISTICS_JOB.packer(
    *("mean", "var", "low", "seen", "weight", "pairs", "last", "parts", "batch_seen", "batch_pairs", "batch_last"),
    *("typical_at", "left", "counted", "mode", "wide", "whole", "replaces", "nonfinite", "momentum", "halflife"),
    *("ddof", "uncounted", "typical"),
)


class LeftAlone:
    """How many channels were left alone (skipped). It can be used as an int, and only then waits for the device."""

    __slots__ = ("flags",)

    def __init__(self, flags: Array) -> None:
        self.flags = flags  # int32 (C,), on the device

    def __int__(self) -> int:
        return int(self.flags.sum())

    __index__ = __int__

    def __bool__(self) -> bool:
        return int(self) != 0

    def __eq__(self, other: object) -> bool:
        return int(self) == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return str(int(self))


def assign(rule: Rule, source: Rule) -> None:
    """Copy the arrays of `source`, a copy of the same statistics, into those of the rule."""
    for to, values in zip(rule.arrays, source.arrays, strict=True):
        if to is not None:
            to[...] = values


def known(mean: Array, var: Array, gamma: Array | None, beta: Array | None, eps: float) -> Array:
    """Return stats from a given mean and variance."""
    nothing = np.zeros(mean.shape, like=mean)
    shifted = var + eps
    if eps == 0:  # as bn_rstd of formulas.h
        shifted = np.where(constant(mean, var), 1, var)
    rstd = 1 / np.sqrt(shifted)
    scale = rstd if gamma is None else gamma * rstd
    return np.stack([mean, var, rstd, scale, nothing if beta is None else beta])


@np.errstate(all="ignore")  # for arrays of an emulator: CuPy never warns
def inverse(stats: Array, single: bool) -> Array:
    """Return the stats, (5, C), of the inverse map. single: its results are of float32 or less."""
    mean, var, rstd, scale, shift = stats  # as bn_invert of formulas.h
    high = mean.astype(FLOAT32 if single else FLOAT64)
    low = (mean - high) * scale
    center = shift - np.where(np.isfinite(low), low, 0)
    return np.stack([center, var, rstd, np.where(scale == 0, 0, 1 / scale), high])


def merge(sets: list[Array]) -> Array:
    """Return the parts (4, C) of several sets of values, merged. The mean of a channel without values is NaN."""
    stacked = np.stack(list(sets))
    device = launching.device_of(stacked)
    items, _, channels = stacked.shape
    merged = device.empty((4, channels), FLOAT64)
    run(device, "merge_sets", channels, MERGE(device.address(stacked), device.address(merged), items))
    return merged


def run(device: launching.Device, name: str, channels: int, job: bytes) -> None:
    if channels:
        device.run(plans.per_channel(name, channels), job)


def add(total: Array | None, part: Array | None, other: Array | None = None, other_part: Array | None = None) -> None:
    """Add part to total, and other_part to other: gradients of parameters.

    Parts are float64; total and other may be float32. A pair whose total or other is None is skipped. Both additions
    are one launch, unless a user has put arrays of another kind there.
    """
    one = other if total is None else total
    if one is None:
        return
    if not (fits(total, part, one) and fits(other, other_part, one)):
        if total is not None:
            total += part
        if other is not None:
            other += other_part
        return
    device = launching.device_of(one)
    places = device.addresses(total, part, other, other_part)
    run(device, "add_gradients", one.size, ADD(*places, one.dtype == FLOAT64))


def fits(total: Array | None, part: Array | None, one: Array) -> bool:
    """Whether a pair can be part of the launch: both arrays are contiguous, with the size and type that it has."""
    if total is None or part is None:
        return True
    if not total.size == part.size == one.size or not (total.flags.c_contiguous and part.flags.c_contiguous):
        return False
    dtype = total.dtype
    return bool(part.dtype == FLOAT64 and dtype == one.dtype and dtype in (FLOAT32, FLOAT64))


class Moving:
    """An update of running statistics by a batch, given by its parts: everything is ready but the launch.

    typical: a number, or an array of one number on the device. If the rule has the array `left`, the device counts in
    it the batches that some channel skipped.
    """

    __slots__ = ("arrays", "channels", "counted", "device", "given", "left", "rule", "values")

    def __init__(
        self,
        rule: Rule,
        parts: Array,
        seen: Array | None = None,
        pairs: Array | None = None,
        last: Array | None = None,
        typical: Any = 0.0,
        replace: bool = False,
    ) -> None:
        self.rule, mode = rule, rule.mode
        uncounted = float(rule.counters[3]) if mode == POOL or replace else 0.0
        typical_at, typical = (None, typical) if isinstance(typical, float) else (typical, 0.0)
        self.device = device = launching.device_of(parts)
        self.channels = parts.shape[1]
        self.counted = rule.left if rule.nonfinite == "skip" else None
        self.left = None if self.counted is not None else device.empty((self.channels,), INT32)
        self.values = mode != AVERAGE or rule.weight is not None or replace
        given = (*rule.arrays[:-1], parts, seen, *((pairs, last) if mode == FADE else (None, None)))
        # kept as long as the job, which has their addresses
        self.arrays = *given, typical_at, self.left, self.counted
        switches = mode, rule.mean.dtype == FLOAT64, rule.from_data, replace
        numbers = rule.momentum, rule.halflife, rule.ddof, uncounted, typical
        places = device.addresses(*self.arrays)
        self.given = places, switches, numbers

    def job(self, code: int) -> bytes:
        places, switches, numbers = self.given
        return MOVE(*places, *switches, code, *numbers)

    def test(self) -> Self:
        """With "raise", FloatingPointError if a channel would have to be left alone. Return self."""
        if self.rule.nonfinite == "raise":
            run(self.device, "move_statistics", self.channels, self.job(TEST))
            refuse(LeftAlone(self.left))
        return self

    @property
    def calls(self) -> list[Any]:
        """The calls that are still to be made."""
        if not self.channels:
            return []
        job = self.job(PROPAGATE if self.rule.nonfinite == "propagate" else SKIP)
        prepared = self.device.prepared(plans.per_channel("move_statistics", self.channels), job)
        return [(launch, ([prepared],), {})]

    @property
    def result(self) -> Any:
        """The number of channels left alone; 0 if the device counts them."""
        flagged = self.rule.nonfinite == "skip" and self.channels and self.left is not None
        return LeftAlone(self.left) if flagged else 0


def move(
    rule: Rule,
    parts: Array,
    seen: Array | None = None,
    pairs: Array | None = None,
    last: Array | None = None,
    rows: int = 0,
    batches: int = 1,
    typical: Any = 0.0,
    skipped: bool = False,
    replace: bool = False,
) -> Any:
    """Update statistics by a batch, given by its parts, and count the batch. Return the number of channels left alone,
    as `Moving.result` does."""
    moving = Moving(rule, parts, seen, pairs, last, typical, replace).test()
    move_prepared(rule, moving.calls, batches, rows, skipped, moving.values)
    return moving.result


def one_launch(rule: Rule, count: Any) -> bool:
    """Whether a forward can update these statistics in its own launch, made by `settle`. They must be a layer's, and
    without "raise", with which the host looks at the batch before they are updated."""
    layers = rule.low is None and rule.weight is None and rule.mode != FADE and not rule.from_data
    counted = rule.nonfinite == "propagate" or (rule.nonfinite == "skip" and rule.left is not None)
    return rule.waits and layers and counted and not (isinstance(count, float) and count == 0.0)


def of_forward(rule: Rule, stats: Array, parts: Array, count: Any, rows: int) -> Moving:
    """Return the update of statistics by a forward's batch: of a layer from its parts, of a transformer from more."""
    if rule.low is None and rule.weight is None:
        return Moving(rule, parts, typical=count)
    return Moving(rule, *_batch_of(rule, stats, count, rows), typical=float(rows))


def _batch_of(rule: Rule, stats: Array, count: Any, rows: int) -> tuple[Array, Array, Array, Array]:
    """Return parts, seen, pairs and last of a batch of a layer, whose rows count as if they were in random order."""
    n = np.zeros(stats.shape[1:][:1], like=stats) + count
    weight, square = n, n
    if rule.mode == FADE:
        share, square_share = mean_weights(rule.halflife, rows)
        weight, square = n * share, n * square_share
    parts = np.stack([weight, stats[0], stats[1] * weight, np.zeros(n.shape, like=n)])
    return parts, n, weight * weight - square, n * 0 + float(rule.counters[2] + rows)


def refuse(left: LeftAlone) -> None:
    """Wait for a test of the statistics, and raise if a channel would have to be left alone."""
    of = left.flags.size
    if of and left:
        raise FloatingPointError(f"the batch mean or variance of {left} of {of} channels is not finite")
