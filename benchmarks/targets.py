"""The goals for the results, and how the measured ones compare with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .store import Results, Row, ratio
from .text import aligned, geometric_mean

Number = Callable[[Row, Results], float | None]  # None: the row does not have this number
CHANNELS, ROWS, SCALER = ("batch",), ("layer", "group", "instance"), ("scaler",)
SHARED = 1 << 20  # bytes read and written: smaller work stays on one thread


@dataclass(frozen=True)
class Target:
    """What is compared, in which rows, and how large its mean and its smallest value have to be.

    Only rows with all threads count. below: small numbers are good, and none may be larger than `least`.
    """

    what: str
    number: Number
    kinds: tuple[str, ...]
    operations: tuple[str, ...]
    dtypes: tuple[str, ...]
    least: float
    mean: float | None = None
    shapes: tuple[str, ...] = ()  # all, if none are named
    below: bool = False

    def found(self, results: Results) -> list[tuple[float, str]]:
        """Return the numbers, each with the name of its case."""
        most = max(results["threads"])
        rows = (
            row
            for row in results["rows"]
            if row["kind"] in self.kinds
            and row["operation"] in self.operations
            and row["dtype"] in self.dtypes
            and row["threads"] == most
            and (not self.shapes or row["shape"] in self.shapes)
        )
        named = ((self.number(row, results), f"{row['shape']} {row['operation']} {row['dtype']}") for row in rows)
        return [(number, name) for number, name in named if number is not None]


def over(peer: str) -> Number:
    """Return the number: the peer's time over ours, both with fresh results."""

    def number(row: Row, results: Results) -> float | None:
        return ratio(row, peer) if peer in row["ms"] else None

    return number


def of_copy(which: str) -> Number:
    """Return the number: the speed of the least bytes with out=, over the speed of a copy in memory or in a cache."""

    def number(row: Row, results: Results) -> float | None:
        if "bnorm out=" not in row["ms"]:
            return None
        return row["bytes"] / row["ms"]["bnorm out="][1] * 1e-6 / row["copy"][which]

    return number


def microseconds(row: Row, results: Results) -> float | None:
    return 1e3 * row["ms"]["bnorm"][1]


def second_thread(row: Row, results: Results) -> float | None:
    """Return one thread's time over that of all, unless the memory is too slow for all threads at that speed."""
    label = "bnorm out=" if "bnorm out=" in row["ms"] else "bnorm"
    key = (row["shape"], row["operation"], row["dtype"])
    alone = [
        other
        for other in results["rows"]
        if other["threads"] == 1 < row["threads"] and (other["shape"], other["operation"], other["dtype"]) == key
    ]
    if not alone or row["bytes"] < SHARED:
        return None
    one = alone[0]["ms"][label][1]
    limited = row["bytes"] / one * 1e-6 * row["threads"] > row["copy"]["memory"]
    return None if limited else one / row["ms"][label][1]


def _batch(dtype: str, *aims: tuple[str, float, float]) -> list[Target]:
    against = over("PyTorch")
    return [
        Target(f"{operation}, {dtype}, over PyTorch", against, CHANNELS, (operation,), (dtype,), least, mean)
        for operation, mean, least in aims
    ]


BOTH = ("float32", "float64")
TARGETS = [
    # 0.95 is 1.0 less the noise of the measurement
    *_batch("float32", ("forward", 5, 1.5), ("backward", 3, 1.2), ("inference", 3, 0.95)),
    *_batch("float64", ("forward", 3, 1.2), ("backward", 2, 1.1), ("inference", 1.7, 0.95)),
    Target("row norms, over PyTorch", over("PyTorch"), ROWS, ("forward", "backward"), ("float32",), 1.1, 2.5),
    Target(
        "scaler, over StandardScaler",
        over("scikit-learn"),
        SCALER,
        ("fit", "partial_fit", "transform", "inverse"),
        BOTH,
        3,
        20,
    ),
    *(
        Target(
            f"{operation}, out=, of the roofline",
            of_copy("memory"),
            CHANNELS,
            (operation,),
            ("float32",),
            least,
            shapes=("(1000000, 100)",),
        )
        for operation, least in (("forward", 0.84), ("inference", 0.95), ("backward", 0.78))
    ),
    Target(
        "in cache, out=, of a copy in cache",
        of_copy("cache"),
        CHANNELS,
        ("forward", "inference", "backward"),
        ("float32",),
        0.6,
        shapes=("(1024, 256)",),
    ),
    *(
        Target(
            f"{operation} call, µs",
            microseconds,
            CHANNELS + SCALER,
            (operation,),
            ("float32",),
            most,
            shapes=("(32, 64)", "scaler (32, 64)"),
            below=True,
        )
        for operation, most in (("forward", 3), ("inference", 2), ("transform", 20))
    ),
    Target(
        "all threads over one",
        second_thread,
        CHANNELS + ROWS + SCALER,
        ("forward", "inference", "backward", "fit", "partial_fit", "transform", "inverse"),
        BOTH,
        1.8,
    ),
]


def report(results: Results, targets: Sequence[Target] = TARGETS) -> str:
    """Return the table as plain text."""
    return "\n".join(aligned([_HEAD, *(_line(target, results) for target in targets)], 2))


_HEAD = ["target", "worst case", "cells", "mean", "at least", "worst", "at least", ""]


def _line(target: Target, results: Results) -> list[str]:
    found = target.found(results)
    wanted = "" if target.mean is None else f"{target.mean:g}"
    bound = f"{'≤ ' if target.below else ''}{target.least:g}"
    if not found:
        return [target.what, "", "0", "", wanted, "", bound, "not measured"]
    mean, (worst, where) = geometric_mean(number for number, _ in found), (max if target.below else min)(found)
    met = worst <= target.least if target.below else worst >= target.least and mean >= (target.mean or 0)
    return [
        target.what,
        where,
        str(len(found)),
        f"{mean:.2f}",
        wanted,
        f"{worst:.2f}",
        bound,
        "met" if met else "MISSED",
    ]
