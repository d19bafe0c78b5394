"""The times of rows: time stamps or seconds, from any library, as whole nanoseconds."""

import sys
from datetime import UTC, date, datetime
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm import arrow
from bnorm.kernels import BACKENDS, engines, moved
from bnorm.running import Statistics
from bnorm.transformer.clock import Ages
from bnorm.transformer.durations import LONGEST, OF_NUMPY, is_duration

NAIVE, ZONED, SECONDS = "time stamps without a zone", "time stamps with a zone", "numbers of seconds"
KINDS = (NAIVE, ZONED, SECONDS)
NANO = 10**9
NAT = -(2**63)
EXACT = 2**52  # up to this many nanoseconds from the zero of a clock, float64 times are exact
NANOSECONDS = np.dtype("datetime64[ns]")
EPOCH = datetime(1970, 1, 1)


class Times(NamedTuple):
    """The time of each row in nanoseconds, since 1970 or since the zero of the seconds."""

    ns: ndarray  # int64
    kind: str
    column: str | None  # the name of the column that they came from
    in_order: bool  # whether they never decrease
    oldest: int
    newest: int

    @classmethod
    def of(cls, ns: ndarray, kind: str, column: str | None = None) -> "Times":
        """The times of some rows, at least one."""
        in_order = bool((ns[1:] >= ns[:-1]).all())
        ends = (ns[0], ns[-1]) if in_order else (ns.min(), ns.max())
        return cls(ns, kind, column, in_order, *map(int, ends))

    def clock(self, halflife: float, origin: int) -> Ages:
        """The clock of these rows, in a stream that counts from `origin`."""
        ages = (self.newest - self.ns).view(np.uint64).astype(np.float64)  # a difference of two int64 fits uint64
        order = None if self.in_order else np.argsort(self.ns, kind="stable")
        return Ages(halflife, ages if order is None else ages[order], float(self.newest - origin), order)


class Zero(NamedTuple):
    """The kind of the times of a stream, and the time `origin` from which the stream counts them."""

    kind: str
    origin: int
    column: str | None = None

    def check(self, who: str, times: "Times | Zero") -> None:
        """Raise ValueError if these are times of another kind."""
        if times.kind != self.kind:
            raise ValueError(
                f"{who}: times: expected {self.kind}, as this stream began, got {times.kind}; fit begins anew"
            )

    def until(self, newest: int) -> "Zero":
        """Return the same, or the zero at this time if it is so much later that differences would be rounded."""
        return self if newest - self.origin <= EXACT else self._replace(origin=newest)

    def newest(self, statistics: Statistics) -> int:
        """The time of the newest row with a value."""
        last: Any = statistics.last
        latest = float(np.where(statistics.seen > 0, last, -np.inf).max().item())
        return self.origin + (int(latest) if latest > -np.inf else 0)


def differing(mine: Zero | None, its: Zero | None, here: str) -> str | None:
    """Why two streams with these clocks cannot be merged; None if they can. here: where the first is, in words."""
    if mine is None or its is None or mine.kind == its.kind:
        return None
    return f"times: expected {mine.kind}, as {here}, got {its.kind}"


def separated(who: str, X: Any, times: Any) -> tuple[Any, Any, str | None]:
    """The table without the column of times, the times, and the name of this column, if they were given by name."""
    if type(times) is not str:
        return X, times, None
    if (engine := engines.engine_of(X)) is not None:
        raise TypeError(
            f"{who}: X: expected a table in memory with times={times!r}, got a {engine.NAME} collection: "
            f"{engine.__name__}.fit(t, X, times={times!r}) takes it"
        )
    names = names_of(X)
    if names.count(times) != 1:
        found = f"columns {names}" if names else f"a {type(X).__name__} without named columns"
        raise ValueError(f"{who}: times: expected the name of one column of X, got {times!r} for {found:.200}")
    return without(X, times), X[times] if _pandas(X) or _polars(X) else X.column(times), times


def without(X: Any, column: str | None) -> Any:
    """The table without a column, if it has it."""
    if column is None or column not in names_of(X):
        return X
    if _pandas(X):
        return X.drop(columns=[column])
    if _polars(X):
        return X.drop(column)
    return X.select([i for i, name in enumerate(names_of(X)) if name != column])


def features_of(names: Any, column: str | None) -> Any:
    """The names of the columns of a table, if they are given, without that of the times."""
    return names if names is None or column is None else [name for name in names if name != column]


def of_rows(who: str, name: str, length: Any, given: Any, n: int, column: str | None) -> Times | None:
    """Return the times of n rows; None if `length`, the value of the parameter `name`, is not a length of time."""
    said = f"{name}={length!r}"
    if not is_duration(length):
        if given is not None:
            raise ValueError(
                f"{who}: times: expected None, as {said} counts rows, got times; with a length of time, such as "
                f"{name}='10min', rows age by theirs"
            )
        return None
    if given is None:
        raise ValueError(f"{who}: times: expected the time of each row, as {said} is a length of time, got None")
    return read(who, given, n, column)


def read(who: str, given: Any, n: int, column: str | None = None) -> Times:
    """Return the times of n rows; TypeError or ValueError unless there is one for each."""
    found, kind = _values(who, given)
    if found.shape != (n,):
        raise ValueError(f"{who}: times: expected one for each row, shape ({n},), got shape {found.shape}")
    times = Times.of(_of_seconds(who, found) if kind == SECONDS else _of_stamps(who, found), kind, column)
    if times.oldest == NAT:
        row = int(times.ns.argmin())
        raise ValueError(f"{who}: times: expected the time of each row, got NaT in row {row}")
    return times


def stamps(ns: Any, kind: str) -> ndarray:
    """Return nanoseconds as users see them: NumPy's time stamps, in UTC if they had a zone; or seconds."""
    ns = np.asarray(ns, np.int64)
    found: ndarray = ns / NANO if kind == SECONDS else ns.view("datetime64[ns]")
    return found


def _values(who: str, given: Any) -> tuple[ndarray, str]:
    """Return NumPy time stamps of any unit, in UTC, or numbers of seconds; and their kind."""
    name = type(given).__name__
    if _of(given, "pyarrow") and hasattr(given, "type"):
        return _of_arrow(who, given)
    dtype = getattr(given, "dtype", None)
    if hasattr(dtype, "pyarrow_dtype"):  # pandas' columns of Arrow's types
        return _of_arrow(who, getattr(given, "array", given).__arrow_array__())
    zone = getattr(dtype, "tz", None) or getattr(dtype, "time_zone", None)
    if type(given) in BACKENDS:
        given = moved(given, ndarray)
    elif _polars(given):
        given = given.to_numpy()
    elif zone is not None:  # pandas, whose own stamps with a zone become objects
        given = np.asarray(given, f"datetime64[{getattr(dtype, 'unit', 'ns')}]")
    elif isinstance(given, np.ma.MaskedArray):
        raise ValueError(f"{who}: times: expected the time of each row, got a masked array")
    try:
        a = np.asarray(given)
    except Exception as error:  # whatever another library raises
        raise TypeError(f"{who}: times: expected time stamps or seconds, got a {name}: {error}") from None
    if a.dtype.kind == "O":
        return _of_objects(who, a)
    if a.dtype.kind == "M":
        return a, NAIVE if zone is None else ZONED
    if a.dtype.kind not in "iuf":
        raise TypeError(f"{who}: times: expected time stamps or numbers of seconds, got {a.dtype} in a {name}")
    return a, SECONDS


def _of_arrow(who: str, given: Any) -> tuple[ndarray, str]:
    import pyarrow as pa

    kind = given.type
    if pa.types.is_date(kind):
        kind = pa.timestamp("ms" if pa.types.is_date64(kind) else "s")
        given = given.cast(kind)
    pieces = given.chunks if hasattr(given, "chunks") else [given]
    if arrow.is_number(kind):
        return np.concatenate([*map(arrow.values, pieces), np.empty(0)]), SECONDS
    if not pa.types.is_timestamp(kind):
        raise TypeError(f"{who}: times: expected time stamps or numbers of seconds, got {kind}")
    found = [np.empty(0, f"datetime64[{kind.unit}]")]
    for piece in pieces:
        if piece.null_count:
            raise ValueError(f"{who}: times: expected the time of each row, got {piece.null_count} missing")
        found.append(arrow.in_place(piece, found[0].dtype))
    return np.concatenate(found), NAIVE if kind.tz is None else ZONED


def _of_objects(who: str, a: ndarray) -> tuple[ndarray, str]:
    """A list of Python's or pandas' time stamps, or of days, which begin at midnight; or NumPy's, as objects."""
    if a.size and all(isinstance(v, np.datetime64) for v in a.ravel()):
        return np.array(a.tolist()), NAIVE
    if a.ndim == 1 and (found := _of_one_type(a.tolist())) is not None:
        return found
    odd = [v for v in a.ravel() if not isinstance(v, date) or v != v]
    if odd or a.ndim != 1:
        raise TypeError(f"{who}: times: expected time stamps or numbers of seconds, got {(odd or [a])[0]!r:.80}")
    zoned = {_zone(v) is not None for v in a}
    if len(zoned) > 1:
        raise ValueError(f"{who}: times: expected all time stamps with a zone or all without, got some of each")
    exact = [in_utc(f"{who}: times", v) for v in a]
    _of_stamps(who, np.array(exact, "datetime64[us]"))  # raises an error for years outside the range of nanoseconds
    return np.array(exact, "datetime64[ns]"), ZONED if True in zoned else NAIVE


def _of_one_type(given: list[Any]) -> tuple[ndarray, str] | None:
    """Return the times if all are days, Python's stamps or pandas', whose numbers are read at once: to convert one,
    NumPy takes a microsecond. None for anything else, for stamps some of which have a zone, or one without an offset,
    and for those of pandas that 64 bits of nanoseconds do not hold.
    """
    types, n = set(map(type, given)), len(given)
    if types == {date}:
        days = np.fromiter(map(date.toordinal, given), np.int64, n) - EPOCH.toordinal()
        return days.view("datetime64[D]"), NAIVE
    if types not in ({datetime}, {getattr(sys.modules.get("pandas"), "Timestamp", None)}):
        return None
    zoned = {zone is not None for zone in map(attrgetter("tzinfo"), given)}
    kind = ZONED if True in zoned else NAIVE
    if len(zoned) > 1:
        return None
    if types != {datetime}:
        try:
            return np.fromiter(map(attrgetter("value"), given), np.int64, n).view(NANOSECONDS), kind
        except OverflowError:
            return None
    epoch = EPOCH.replace(tzinfo=UTC) if kind == ZONED else EPOCH
    try:
        since = [v - epoch for v in given]
    except (TypeError, NotImplementedError):
        return None
    parts = ("days", "seconds", "microseconds")
    days, seconds, rest = (np.fromiter(map(attrgetter(part), since), np.int64, n) for part in parts)
    return ((days * 86400 + seconds) * 10**6 + rest).view("datetime64[us]"), kind


def in_utc(who: str, v: Any) -> Any:
    """Return a time stamp of Python, pandas or NumPy, or a day, for NumPy: without a zone, in UTC if it had one."""
    if hasattr(v, "to_datetime64"):  # the result of pandas is in UTC already
        return v.to_datetime64()
    if _zone(v) is None:
        return v
    try:
        offset = v.utcoffset()
    except NotImplementedError:
        offset = None
    if offset is None:  # astimezone would take it for a local time
        raise TypeError(f"{who}: expected time stamps whose zone has an offset from UTC, got {v!r:.120}")
    return v.astimezone(UTC).replace(tzinfo=None)


def _zone(v: Any) -> Any:
    return getattr(v, "tzinfo", None)  # a day has none


def _of_stamps(who: str, a: ndarray) -> ndarray:
    if a.dtype == NANOSECONDS:
        return a.view(np.int64)
    unit, step = np.datetime_data(a.dtype)
    if unit not in OF_NUMPY:  # units shorter than a nanosecond are rounded
        a, unit, step = (a.astype("datetime64[s]"), "s", 1) if unit in "YM" else (a.astype("datetime64[ns]"), "ns", 1)
    ticks: ndarray
    ticks, factor = np.ascontiguousarray(a.astype(a.dtype.newbyteorder("="))).view(np.int64), OF_NUMPY[unit] * step
    if factor == 1:
        return ticks
    known = ticks[ticks != NAT]
    if len(known) and max(-int(known.min()), int(known.max())) > LONGEST // factor:
        raise ValueError(
            f"{who}: times: expected time stamps that 64 bits of nanoseconds hold, got some outside of them"
        )
    return np.where(ticks == NAT, NAT, ticks * factor)


def _of_seconds(who: str, a: ndarray) -> ndarray:
    whole, bound = a, LONGEST // NANO
    if a.dtype.kind not in "iu":
        a = a.astype(np.float64)
        if not np.isfinite(a).all():
            row = int((~np.isfinite(a)).argmax())
            raise ValueError(f"{who}: times: expected the time of each row, got {a[row]} in row {row}")
        whole, bound = np.floor(a), bound - 1
    if len(a) and (int(whole.max()) > bound or int(whole.min()) < -bound):
        raise ValueError(f"{who}: times: expected seconds within 292 years of 0, got {a.min()} to {a.max()}")
    ns: ndarray = whole.astype(np.int64) * NANO
    return ns if whole is a else ns + np.rint((a - whole) * NANO).astype(np.int64)


def names_of(X: Any) -> list[str]:
    """The names of the columns of a data frame or an Arrow table."""
    if _pandas(X) or _polars(X):
        return list(getattr(X, "columns", ()))  # a Series of polars has none
    return list(X.schema.names) if _of(X, "pyarrow") and hasattr(X, "schema") else []


def _pandas(X: Any) -> bool:
    module = sys.modules.get("pandas")
    return module is not None and isinstance(X, module.DataFrame)


def _polars(X: Any) -> bool:
    return _of(X, "polars") and hasattr(X, "to_numpy")


def _of(X: Any, package: str) -> bool:
    return type(X).__module__.partition(".")[0] == package
