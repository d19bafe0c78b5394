"""Updates of running statistics in plain NumPy: the part of `reference.py` without large arrays."""

from typing import Any

import numpy as np

from .rule import AVERAGE, FADE, POOL, Rule

Array = np.ndarray[Any, Any]
ARRAYS = Rule._fields[1:8]  # without the counters


@np.errstate(all="ignore")
def settle(rule: Rule, stats: Array, count: float, size: int, left: int = 0) -> int:
    """Update statistics by the batch of a forward, and count the batch. Return the number of skipped channels.

    A channel is skipped if its statistics are not finite.

    rule belongs to a `bnorm.running.Statistics`; size is that of x; the other arguments are results of `forward`. A
    batch without values is not counted. If values fade with age, its rows count as if they were in random order.
    """
    if not count > 0:
        return 0
    rows = size // stats.shape[1]
    return _move(rule, *_batch_of(rule, stats, count, rows), rows=rows, typical=count)


@np.errstate(all="ignore")
def move(
    rule: Rule,
    parts: Array,
    seen: Array | None = None,
    pairs: Array | None = None,
    last: Array | None = None,
    rows: int = 0,
    batches: int = 1,
    typical: float = 0.0,
    skipped: bool = False,
    replace: bool = False,
) -> int:
    """Update statistics by a batch, given by its parts, and count the batch. Return the number of skipped channels.

    seen, pairs, last: of rows that fade, see formulas.h. typical: the number of values in a batch, for batches that
    were never counted. skipped: whether channels were skipped in a batch that this one was merged from. replace:
    replace the statistics instead of updating them.
    """
    return _move(rule, parts, seen, pairs, last, rows, batches, typical, skipped, replace)


def assign(rule: Rule, source: Rule) -> None:
    """Copy the arrays of `source`, a copy of the same statistics, into those of the rule."""
    for to, values in zip(rule.arrays, source.arrays, strict=True):
        if to is not None:
            to[...] = values


@np.errstate(all="ignore")
def inverse(stats: Array, single: bool) -> Array:
    """Return the stats, (5, C), of the inverse map. single: its results are of float32 or less.

    x = (y - shift) / scale + mean; where scale is 0 it is the mean.
    """
    mean, var, rstd, scale, shift = stats
    high = mean.astype(np.float32) if single else mean
    low = (mean - high) * scale
    center = shift - np.where(np.isfinite(low), low, 0)
    return np.stack([center, var, rstd, np.where(scale == 0, 0, 1 / scale), high])


@np.errstate(all="ignore")
def merge(sets: list[Array]) -> Array:
    """Return the parts (4, C) of several sets of values, merged, read-only. A channel without values has mean NaN."""
    parts = np.stack(sets).astype(np.longdouble)
    parts[:, 1:] = np.where(parts[:, :1] == 0, 0, parts[:, 1:])
    count, mean = parts[:, 0].sum(0), parts[:, 1] + parts[:, 3]
    share = parts[:, 0] / np.where(count == 0, 1, count)
    center = (share * mean).sum(0)
    m2 = (parts[:, 2] + np.where(parts[:, 0] == 0, 0, parts[:, 0] * (mean - center) ** 2)).sum(0)
    high = np.where(count == 0, np.nan, _narrow(center))
    low = np.where(np.isfinite(high), center - high, 0)
    merged = np.stack([_narrow(row) for row in (count, high, m2, low)])
    merged.flags.writeable = False
    return merged


def _batch_of(rule: Rule, stats: Array, count: float, rows: int) -> tuple[Array, Array, Array, Array]:
    """Return parts, seen, pairs and last of the batch of a layer."""
    n = np.full(stats.shape[1], count)
    square = n
    seen, last = n, n * 0 + rule.counters[2] + rows
    if rule.mode == FADE:
        fade = 0.5 ** (np.arange(rows) / rule.halflife)
        square, n = n * (fade**2).mean(), n * fade.mean()
    return np.stack([n, stats[0], stats[1] * n, 0 * n]), seen, n**2 - square, last


def _move(
    rule: Rule,
    parts: Array,
    seen: Array | None,
    pairs: Array | None,
    last: Array | None,
    rows: int = 0,
    batches: int = 1,
    typical: float = 0.0,
    skipped: bool = False,
    replace: bool = False,
) -> int:
    """Update the statistics in place by a batch. Return the number of skipped channels.

    `nonfinite` of the rule says how to treat a channel whose new statistics are not finite in the dtype of the arrays:
    "skip" does not change it, "raise" raises before anything changes, "propagate" stores them. In a transformer (if
    `whole`), only an infinite variance can be stored; other statistics that are not finite raise. A channel without
    values does not change, except for its weight in an average.
    """
    mode, mean, var, low, seen_, weight, pairs_, last_, counters, momentum, halflife, ddof, whole, nonfinite, *_ = rule
    count = parts[0]
    counts = mode != AVERAGE or weight is not None
    uncounted = counters[3] * typical if mode == POOL or replace else 0.0
    before = _state(rule, uncounted)
    if replace:
        before = {name: np.zeros_like(values) for name, values in before.items()}
    batch = dict(zip(("count", "mean", "m2", "low"), parts, strict=True))
    batch |= {"pairs": 0 * count if pairs is None else pairs, "last": 0 * count if last is None else last}
    how = {AVERAGE: _average, POOL: _pool, FADE: _fade}[POOL if replace else mode]
    after = how(before, batch, momentum, halflife, lambda n, p: _divisor(n, p, mode == FADE, ddof, whole))
    after["seen"] = before["seen"] + (count if seen is None else seen) * (counts or replace)
    if replace:
        after["weight"] = np.full_like(count, np.inf) if mode == AVERAGE else count
        after["last"] = batch["last"]
    fits = np.isfinite(after["mean"].astype(mean.dtype)) & np.isfinite(after["var"].astype(var.dtype)) | (count == 0)
    propagates = nonfinite == "propagate"
    kept = (fits | propagates) & (_sound(after, mode, ddof) | (count == 0) | (not whole))
    if (nonfinite == "raise" or (propagates and whole)) and not kept.all():
        raise FloatingPointError(f"{(~kept).sum()} of {kept.size} channels have a mean or variance not finite")
    seen_ += uncounted
    if mode == AVERAGE and weight is not None and not replace:
        weight[count == 0] = (np.where(np.isinf(weight), 1 / momentum, weight) * (1 - momentum))[count == 0]
    for name, values in zip(ARRAYS, (mean, var, low, seen_, weight, pairs_, last_), strict=True):
        if values is not None:
            values[kept & (count > 0)] = after[name][kept & (count > 0)]
    left = 0 if propagates else int((~kept).sum())
    counters[:3] += [batches, left > 0 or skipped, rows]
    counters[3] = 0 if counts or replace else counters[3] + batches
    return left


def _sound(after: dict[str, Array], mode: int, ddof: float) -> Array:
    """Whether each channel is in a state that a transformer may have: see bn_sound in formulas.h."""
    good = np.isfinite(after["mean"]) & np.isfinite(after["low"]) & (after["var"] >= 0)
    good = good & np.isfinite(after["seen"]) & (after["weight"] >= 0)
    if mode == FADE:
        good = good & np.isfinite(after["weight"]) & np.isfinite(after["last"])
        good = good & (np.isfinite(after["pairs"]) | (ddof == 0))
    return good


def _state(rule: Rule, uncounted: float) -> dict[str, Array]:
    """Return the statistics of each channel in float64, by name."""
    seen = rule.seen + uncounted
    nothing = np.zeros_like(seen)
    weight = seen if rule.mode == POOL else nothing + np.inf
    absent = {"low": nothing, "weight": weight, "pairs": nothing, "last": nothing}
    given = {name: a.astype(np.float64) for name, a in zip(ARRAYS, rule.arrays[:-1], strict=True) if a is not None}
    return absent | given | {"seen": seen}


def _divisor(weight: Array, pairs: Array, fades: bool, ddof: float, whole: bool) -> Array:
    """Return the divisor of m2: where it is not above 0, the weight if `whole`, else 0."""
    left = weight - ddof if not fades else weight if ddof == 0 else np.where(weight > 2.0**54, weight, pairs / weight)
    return np.where(left > 0, left, weight if whole else 0)


def _average(s: Any, b: Any, momentum: float, halflife: float, divisor: Any) -> dict[str, Array]:
    """Average batches, which weigh 1, 1 - momentum, (1 - momentum)^2 ... from the newest to the oldest.

    Their sum is the weight, which is infinite once the average is settled.
    """
    faded = np.where(np.isinf(s["weight"]), np.inf, s["weight"] * (1 - momentum))
    share = np.where(np.isinf(faded), momentum, 1 / (faded + 1))
    by = divisor(b["count"], 0.0)
    var = np.where(by > 0, b["m2"] / by, np.nan)
    averaged = {"mean": _toward(s["mean"], b["mean"], share), "var": _toward(s["var"], var, share)}
    averaged |= {"low": 0 * share, "weight": faded + 1}
    first = {"mean": b["mean"], "var": var, "low": b["low"], "weight": faded + 1}
    new: dict[str, Array] = s | {name: np.where(faded == 0, first[name], averaged[name]) for name in first}
    return new


def _toward(a: Array, b: Array, share: Array) -> Array:
    """Return a moved by a share of the way to b, even where b - a overflows; b itself if the share is 1."""
    near = a + share * (b - a)
    return np.where(share == 1, b, np.where(np.isfinite(near), near, (1 - share) * a + share * b))


def _pool(s: Any, b: Any, momentum: float, halflife: float, divisor: Any) -> dict[str, Array]:
    """Pool both: add up the squares about the common mean."""
    n, first = s["weight"], s["weight"] == 0
    total = n + b["count"]
    mean = np.where(first, b["mean"], s["mean"]).astype(np.longdouble) + np.where(first, b["low"], s["low"])
    delta = b["mean"] + b["low"].astype(np.longdouble) - mean
    m2 = np.where(first, 0, s["var"] * divisor(n, s["pairs"])) + b["m2"] + delta**2 * (n * b["count"] / total)
    pairs = np.minimum(s["pairs"] + b["pairs"] + 2 * n * b["count"], np.finfo(np.float64).max)
    mean = mean + delta * (b["count"] / total)
    by = divisor(total, pairs)
    high, var = _narrow(mean), np.where(by > 0, m2 / by, s["var"])
    new: dict[str, Array] = s | {"mean": high, "low": _narrow(mean - high), "var": var, "weight": total, "pairs": pairs}
    return new


def _fade(s: Any, b: Any, momentum: float, halflife: float, divisor: Any) -> dict[str, Array]:
    """Pool both, with the weights that they have at the younger row."""
    new = np.where(s["weight"] == 0, b["last"], np.maximum(s["last"], b["last"]))
    f, g = (0.5 ** ((new - where["last"]) / halflife) for where in (s, b))
    fades = {"weight": s["weight"] * f, "pairs": s["pairs"] * f**2, "last": new}
    after = _pool(
        s | fades,
        b | {"count": b["count"] * g, "m2": b["m2"] * g, "pairs": b["pairs"] * g**2},
        momentum,
        halflife,
        divisor,
    )
    # With ddof 1 and a single value beside others that have faded, the variance is a quotient of two small numbers: it
    # is computed from what these were before they faded.
    n, k, d = s["weight"], b["count"], b["mean"] + b["low"] - (s["mean"] + s["low"])
    m2 = s["var"] * divisor(n, s["pairs"])
    unbiased = (n > 0) & (divisor(np.ones(1) * 2, np.zeros(1)) != divisor(np.ones(1) * 2, np.ones(1) * 4))
    late, early = s["pairs"] * f + 2 * n * k, b["pairs"] * g + 2 * n * k  # divisors
    is_late = unbiased & (g == 1) & (b["pairs"] == 0) & (b["m2"] == 0) & (late > 0)
    is_early = unbiased & (g < 1) & (s["pairs"] == 0) & (m2 == 0) & (early > 0)
    after["var"] = np.where(is_late, (m2 * (n * f + k) + d**2 * n * k) / late, after["var"])
    after["var"] = np.where(is_early, (b["m2"] * (k * g + n) + d**2 * n * k) / early, after["var"])
    faint = np.minimum(2.0**-400 * after["weight"] ** 2, np.finfo(np.float64).max)
    after["pairs"] = np.where(unbiased & (after["pairs"] >= 0) & (after["pairs"] < faint), faint, after["pairs"])
    return after


def _narrow(values: Array) -> Array:
    return np.asarray(values, np.float64)
