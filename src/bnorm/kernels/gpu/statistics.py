"""How statistics move on a device: the functions of `reference_statistics.py` on CuPy arrays, by array operations.

They are vectors of a value per channel, so it is launches that cost, not arithmetic. Nothing here waits for the device.
"""

from typing import Any

import numpy as np

Array = Any  # cupy.ndarray
Rule = tuple[Any, ...]  # of a bnorm.running.Statistics
AVERAGE, POOL, FADE = range(3)
EPSILON = float(np.finfo(np.float64).eps)
NAMES = ("mean", "var", "low", "seen", "weight", "pairs", "last")  # of the arrays of a rule, from its second place on


class LeftAlone:
    """How many channels were left alone, an int to whoever looks: only then does the host wait for the device."""

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


def known(
    mean: Array, var: Array, gamma: Array | None, beta: Array | None, eps: float, seen: Array | None = None
) -> Array:
    """stats of a mean and a variance that are known, of so many values; seen None: of one."""
    nothing = np.zeros(mean.shape, like=mean)
    n = nothing + 1 if seen is None else np.where(seen > 0, seen, 1)
    rstd = 1 / np.sqrt(var + eps)
    if eps == 0:
        slack = n * mean * EPSILON
        bound = slack * slack
        constant = np.where(np.isfinite(bound), var <= n * EPSILON * var + bound, np.sqrt(var) <= abs(slack))
        rstd = np.where(constant, 1, rstd)
    scale = rstd if gamma is None else gamma * rstd
    return np.stack([mean, var, rstd, scale, nothing if beta is None else beta])


def merge(sets: list[Array]) -> Array:
    """Sets of values, each the parts (4, C) of some, as one; the mean of a channel without values is NaN."""
    sets = list(sets)
    while len(sets) > 1:  # neighbours in pairs, then pairs of pairs
        pairs = zip(sets[::2], sets[1::2], strict=False)
        sets = [np.stack(merged(a, b)) for a, b in pairs] + sets[len(sets) & ~1 :]
    parts: Array = sets[0].copy()
    nothing = parts[0] == 0
    np.copyto(parts[1], np.nan, where=nothing)
    np.copyto(parts[2:], 0.0, where=nothing)
    return parts


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
) -> Any:
    """Move statistics by a batch known by its parts, and count it; returns the channels left alone."""
    mode, counters, nonfinite = rule[0], rule[8], rule[-1]
    counts = mode != AVERAGE or rule[5] is not None
    uncounted = float(counters[3]) * typical if mode == POOL or replace else 0.0
    count = parts[0]
    after, bad = moved(rule, parts, count if seen is None else seen, pairs, last, uncounted, replace)
    left = LeftAlone(bad)
    if nonfinite == "raise":
        refuse(left, lambda: None)
    kept = count > 0 if nonfinite == "propagate" else (count > 0) & (bad == 0)
    if uncounted:
        rule[4][...] += uncounted
    counters[3] = 0 if counts or replace else counters[3] + batches
    if not counts and not replace:
        after["seen"] = rule[4]
    if mode == AVERAGE and rule[5] is not None and not replace:
        np.copyto(rule[5], rule[5] * (1 - rule[9]), where=count == 0)
    for name, values in zip(NAMES, rule[1:8], strict=True):
        if values is not None:
            np.copyto(values, after[name].astype(values.dtype), where=kept)
    counters[:3] += [batches, skipped, rows]
    return 0 if nonfinite in ("propagate", "raise") or not count.size else left


def settle(rule: Rule, stats: Array, count: Any, size: int, left: Any = 0) -> Any:
    """Count the batch of a forward, which has moved the statistics of a layer; move those of a transformer."""
    if isinstance(count, float) and not count:
        return 0
    counters, rows = rule[8], size // stats.shape[1]
    if not in_passing(rule):
        return move(rule, *_batch_of(rule, stats, count, rows), rows=rows, typical=float(rows))
    counters[:3] += [1, 0, rows]
    counters[3] = 0 if rule[0] == POOL else counters[3] + 1
    return left


def in_passing(rule: Rule) -> bool:
    """Whether these are statistics that the kernels of a forward can move: those of a layer."""
    return rule[3] is None and rule[5] is None


def _batch_of(rule: Rule, stats: Array, count: Any, rows: int) -> tuple[Array, Array, Array, Array]:
    """parts, seen, pairs and last of a batch of a layer, whose rows count as if they stood in random order."""
    n = np.zeros(stats.shape[1:][:1], like=stats) + count
    weight, square = n, n
    if rule[0] == FADE:
        half = np.log(2.0) / rule[10]
        share, square_share = (float(np.expm1(-k * half * rows) / np.expm1(-k * half) / rows) for k in (1, 2))
        weight, square = n * share, n * square_share
    parts = np.stack([weight, stats[0], stats[1] * weight, np.zeros(n.shape, like=n)])
    return parts, n, weight * weight - square, n * 0 + float(rule[8][2] + rows)


def refuse(left: LeftAlone, test: Any) -> None:
    """Wait for a test of the statistics, and raise where a channel would have to be left alone."""
    if left.flags.size:
        test()
        if left:
            of = left.flags.size
            raise FloatingPointError(f"the batch mean or variance of {left} of {of} channels is not finite")


def moved(rule: Rule, parts: Array, seen: Array, pairs: Any, last: Any, typical: Any, replace: bool) -> tuple[Any, Any]:
    """The statistics after a batch, by name, and flags of the channels that would not be finite then."""
    mode, arrays, (momentum, halflife, ddof, whole) = rule[0], rule[1:8], rule[9:13]
    state = dict(zip(NAMES, arrays, strict=True))
    mean_type, var_type = state["mean"].dtype, state["var"].dtype
    state["seen"] = state["seen"] + typical
    for name in ("mean", "var"):
        state[name] = state[name].astype(np.float64, copy=False)
    zero = np.zeros(parts.shape[1:], like=parts)
    if state["weight"] is None:
        state["weight"] = state["seen"] if mode == POOL else zero + np.inf
    state = {name: zero if values is None or replace else values for name, values in state.items()}
    batch = dict(zip(("count", "mean", "m2", "low"), parts, strict=True))
    batch |= {"pairs": zero if pairs is None else pairs, "last": zero if last is None else last}

    def divisor(weight: Array, pairs: Array) -> Array:
        left = weight if ddof == 0 else pairs / weight if mode == FADE else weight - ddof
        return np.where(left > 0, left, weight if whole else zero)

    if mode == FADE and not replace:
        state, batch = _faded(state, batch, halflife)
    if mode == AVERAGE and not replace:
        state |= _averaged(state, batch, momentum, divisor(batch["count"], zero))
    else:
        state |= _pooled(state, batch, divisor)
    state["seen"] = state["seen"] + seen
    if replace:
        state |= {"weight": zero + np.inf if mode == AVERAGE else batch["count"], "last": batch["last"]}
    fits = np.isfinite(state["mean"].astype(mean_type)) & np.isfinite(state["var"].astype(var_type))
    return state, (~fits & (batch["count"] > 0)).astype(np.int32)


def _averaged(state: Any, batch: Any, momentum: float, divisor: Array) -> dict[str, Array]:
    settled = np.isinf(state["weight"])
    faded = np.where(settled, 0, state["weight"] * (1 - momentum))
    share = np.where(settled, momentum, 1 / (faded + 1))
    first = ~settled & (faded == 0)
    var = np.where(divisor > 0, batch["m2"] / divisor, np.nan)
    return {
        "mean": np.where(first, batch["mean"], state["mean"] + share * (batch["mean"] - state["mean"])),
        "low": np.where(first, batch["low"], 0),
        "var": np.where(first, var, state["var"] + share * (var - state["var"])),
        "weight": np.where(settled, state["weight"], faded + 1),
    }


def _pooled(state: Any, batch: Any, divisor: Any) -> dict[str, Array]:
    n, count = state["weight"], batch["count"]
    m2 = state["var"] * divisor(n, state["pairs"])
    values = [batch[name] for name in ("count", "mean", "m2", "low")]
    total, mean, m2, low = merged([n, state["mean"], m2, state["low"]], values)
    pairs = state["pairs"] + batch["pairs"] + 2 * n * count
    by = divisor(total, pairs)
    return {
        "mean": mean,
        "low": low,
        "var": np.where(by > 0, m2 / np.where(by > 0, by, 1), state["var"]),
        "weight": total,
        "pairs": pairs,
    }


def _faded(state: Any, batch: Any, halflife: float) -> tuple[dict[str, Array], dict[str, Array]]:
    age = (batch["last"] - state["last"]) / halflife
    empty = state["weight"] == 0
    older = np.where(empty, 0, np.exp2(-np.where(age > 0, age, 0)))
    younger = np.where(empty, 1, np.exp2(np.where(age < 0, age, 0)))
    state |= {"weight": state["weight"] * older, "pairs": state["pairs"] * older * older}
    state |= {"last": np.where(empty | (age >= 0), batch["last"], state["last"])}
    batch |= {name: batch[name] * younger for name in ("count", "m2")} | {"pairs": batch["pairs"] * younger * younger}
    return state, batch


def merged(a: Any, b: Any) -> list[Array]:
    """Two sets, each count, mean, m2 and low, as one, channel by channel (Chan, Golub, LeVeque 1983)."""
    count = a[0] + b[0]
    share = b[0] / np.where(count == 0, 1, count)
    high, rest = _sum_and_rest(b[1], -a[1])
    delta = high + (rest + (b[3] - a[3]))
    mean, rest = _sum_and_rest(a[1], delta * share)
    mean, low = _sum_and_rest(mean, rest + a[3])
    both = [count, mean, a[2] + (b[2] + delta * delta * (a[0] * share)), np.where(np.isfinite(low), low, 0)]
    return [np.where(a[0] == 0, y, np.where(b[0] == 0, x, z)) for x, y, z in zip(a, b, both, strict=True)]


def _sum_and_rest(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b, and exactly what rounding it took off (Knuth's two-sum)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)
