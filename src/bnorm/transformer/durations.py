"""Lengths of time, such as "10min", in whole nanoseconds."""

import re
from datetime import timedelta
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

DURATION = (str, timedelta, np.timedelta64)  # the types of a length of time; pandas.Timedelta is a timedelta
LONGEST = 2**63 - 1

UNITS = {  # names, and nanoseconds; `in_units` writes the first name
    "d days day": 86_400 * 10**9,
    "h hours hour hr": 3_600 * 10**9,
    "min minutes minute m": 60 * 10**9,
    "s seconds second sec": 10**9,
    "ms milliseconds millisecond millis milli": 10**6,
    "us microseconds microsecond micros micro \N{MICRO SIGN}s \N{GREEK SMALL LETTER MU}s": 10**3,
    "ns nanoseconds nanosecond nanos nano": 1,
    "w weeks week": 7 * 86_400 * 10**9,
}
BY_NAME = {name: unit for names, unit in UNITS.items() for name in names.split()}
# Months and years have no fixed length, and units shorter than a nanosecond are of no use.
OF_NUMPY = {unit: BY_NAME[unit.lower()] for unit in ("W", "D", "h", "m", "s", "ms", "us", "ns")}
UNITLESS = np.dtype("timedelta64")

NUMBER = r"\d+(?:\.\d*)?|\.\d+"
AMOUNT = re.compile(rf"({NUMBER})\s*([^\W\d_]+)[\s,]*")
OF_CLOCK = re.compile(rf"(?:({NUMBER})\s*(?:days?|d)?[\s,]+)?\+?(\d+):(\d\d)(?::(\d\d(?:\.\d*)?))?", re.IGNORECASE)
OF_ISO = re.compile(
    rf"P(?:({NUMBER})W)?(?:({NUMBER})D)?(?:T(?:({NUMBER})H)?(?:({NUMBER})M)?(?:({NUMBER})S)?)?", re.IGNORECASE
)
EXPECTED = "a length of time above 0 such as '10min', '1h 30min' or '2 days'"


def is_duration(value: Any) -> bool:
    """Whether a parameter is meant as a length of time, rather than a number of rows."""
    return isinstance(value, DURATION)


def compared(value: Any) -> Any:
    """Return a parameter in a form in which lengths of time are equal if they are equally long."""
    return (nanoseconds(value), "ns") if is_duration(value) else value


def nanoseconds(value: Any) -> int:
    """A length of time in nanoseconds; ValueError unless it is at least one of them, and fits 64 bits."""
    hashable = not isinstance(value, np.timedelta64) or value.dtype != UNITLESS
    if not hashable or (ns := _nanoseconds(value)) is None:
        raise ValueError(f"expected {EXPECTED}, of 1ns to 292 years, got {value!r}")
    return ns


@lru_cache(maxsize=1000)
def _nanoseconds(value: Any) -> int | None:
    ns = _of_text(value) if isinstance(value, str) else _of_object(value)
    return None if ns is None or not 1 <= round(ns) <= LONGEST else round(ns)


def check(who: str, name: str, value: Any) -> None:
    """Raise ValueError for a parameter that is meant as a length of time but is not a valid one."""
    if is_duration(value):
        try:
            nanoseconds(value)
        except ValueError as error:
            raise ValueError(f"{who}: {name}: {error}") from None


def text(value: Any) -> str:
    """Return a length of time as a text that `nanoseconds` reads; a text as it is."""
    return str(value) if isinstance(value, str) else in_units(nanoseconds(value))


def in_units(ns: int) -> str:
    """Return nanoseconds as a text in the largest unit that divides them."""
    name, unit = next((names.split()[0], unit) for names, unit in UNITS.items() if ns % unit == 0)
    return f"{ns // unit}{name}"


def _of_object(value: Any) -> Fraction | None:
    if hasattr(value, "to_timedelta64"):  # pandas keeps nanoseconds, which a timedelta cannot hold
        value = value.to_timedelta64()
    if isinstance(value, timedelta):
        return Fraction(value // timedelta(microseconds=1)) * 1000
    if np.isnat(value):
        return None
    unit, step = np.datetime_data(value.dtype)
    return Fraction(int(value.astype(np.int64)) * step * OF_NUMPY[unit]) if unit in OF_NUMPY else None


def _of_text(value: str) -> Fraction | None:
    given = value.strip().removeprefix("+").strip()
    if found := OF_CLOCK.fullmatch(given):
        return _sum(found.groups(), ("d", "h", "min", "s"))
    if found := OF_ISO.fullmatch(given):
        return _sum(found.groups(), ("w", "d", "h", "min", "s"))
    total, end = Fraction(0), 0
    for amount in AMOUNT.finditer(given):
        name = amount[2] if amount[2] in BY_NAME else amount[2].lower()
        if amount.start() != end or name not in BY_NAME or amount[2] == "M":  # M means months to some
            return None
        total, end = total + Fraction(amount[1]) * BY_NAME[name], amount.end()
    return total if end and end == len(given) else None


def _sum(amounts: tuple[str | None, ...], units: tuple[str, ...]) -> Fraction:
    return sum((Fraction(a or 0) * BY_NAME[unit] for a, unit in zip(amounts, units, strict=True)), Fraction(0))
