"""The file of a transformer: parameters and settings as the configuration, the fitted state as arrays.

A loaded state continues exactly as the saved one would have: every number has the same bits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy import ndarray

from bnorm.exact import ExactMoments
from bnorm.files import container
from bnorm.files.container import Config, Entry
from bnorm.kernels import moved
from bnorm.kernels.rule import FADE
from bnorm.layers.saving import counted, flag
from bnorm.running import UNCOUNTED, Statistics
from bnorm.transformer import durations, stored_window
from bnorm.transformer.fitted import Fitted
from bnorm.transformer.history import Moment, TimedMoment
from bnorm.transformer.maps import Affine
from bnorm.transformer.parameters import MOMENTUM
from bnorm.transformer.state import State
from bnorm.transformer.tables import Dense
from bnorm.transformer.times import KINDS, Zero

CLASS = "BatchNormTransformer"
DEFAULTS: dict[str, Any] = {
    "momentum": MOMENTUM,
    "halflife": None,
    "window": None,
    "eps": 0.0,
    "ddof": 0,
    "affine": True,
    "copy": True,
    "history": None,
    "exact": False,
}
KNOWN = {"format", "class", "parameters", "features", "names", "counted", "weighted", "told", "history", "digest"}
KNOWN |= {"times", "window"}
MOMENTS = ("history_rows", "history_mean", "history_var")  # a row for each recorded moment
TIMES = "history_times"  # the same, if rows have times
SUMS = "exact_"  # the prefix of the names of the arrays of exact sums
EXTRA = {"rows", "missing", "extremes", "checkpoint"}  # entries that the command adds
NAMES = {  # of arrays that the file names differently from `Statistics`: PyTorch's name if it has one
    "mean": "running_mean",
    "var": "running_var",
    "weight": "stream_weight",
}
AFFINE = ("weight", "bias")  # gamma and beta


@dataclass
class Stored:
    """The content of a file."""

    parameters: dict[str, Any]
    fitted: Fitted
    affine: Affine  # gamma and beta
    names: list[str] | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # entries that the command has added; JSON


class Savable:
    """The part of a transformer that saves it."""

    n_features_in_: int
    feature_names_in_: ndarray
    _state: State
    _known_names: Callable[[], list[Any] | None]
    get_params: Callable[..., dict[str, Any]]

    def _packed(self) -> tuple[Config, dict[str, ndarray]]:
        p = self.get_params(deep=False)
        return packed(Stored(p, self._state, self._state.parameters, self._known_names()))

    @classmethod
    def _from_stored(cls, stored: Stored) -> Self:
        """The transformer with this state."""
        self = cls(**stored.parameters)
        features = len(stored.fitted.mean)
        state = State(Dense(np.empty((0, features))), stored.parameters)
        state.take(stored.fitted)
        for a, given in zip(state.parameters or (), stored.affine or (), strict=True):
            a[...] = given
        self._state, self.n_features_in_ = state, features
        if stored.names is not None:
            self.feature_names_in_ = np.array(stored.names, object)
        return self


def empty(parameters: Mapping[str, Any], names: list[str]) -> Stored:
    """The state before the first batch."""
    return _empty(DEFAULTS | dict(parameters), len(names), names)


def _empty(p: dict[str, Any], features: int, names: list[str] | None) -> Stored:
    fitted = Fitted(np.empty(features), np.empty(features), p)
    return Stored(p, fitted, (np.ones(features), np.zeros(features)) if p["affine"] else None, names)


def packed(stored: Stored) -> tuple[Config, dict[str, ndarray]]:
    """The configuration and the arrays of a file; ValueError for a state that `unpacked` would refuse."""
    state, statistics = stored.fitted, stored.fitted.own()
    statistics.look()
    parameters = {name: _plain(name, value) for name, value in stored.parameters.items()}
    if parameters["momentum"] is not None and (state.statistics.mode == FADE or state.window is not None):
        parameters["momentum"] = MOMENTUM  # it has no meaning, and may be a float32 that equals the default
    config = {
        "class": CLASS,
        "parameters": parameters,
        "features": len(statistics.mean),
        "names": stored.names,
        "counted": statistics.counters.tolist(),
        "weighted": state.weighted,
        "told": state.told,
        **stored.extra,
    }
    arrays = {stored_name(name): a for name, a in statistics.arrays().items()}
    if (history := state.history) is not None and history.moments:
        config["history"] = {"every": history.every, "batches": history.batches}
        arrays |= dict(zip((*MOMENTS, TIMES), map(_stacked, zip(*history.moments, strict=True)), strict=False))
    if state.zero is not None:
        config["times"] = stored_times(state.zero, state.latest)
    rows: dict[str, ndarray] = {}
    if state.window is not None:
        config["window"], rows = stored_window.stored(state.window)
    if stored.affine is not None:
        arrays |= dict(zip(AFFINE, stored.affine, strict=True))
    arrays = {name: moved(a, ndarray) for name, a in arrays.items()}
    checked(arrays, statistics)
    if state.sums is not None:
        arrays |= {SUMS + name: a for name, a in state.sums._stored().items()}
        config["digest"] = state.sums.digest()
    return config, arrays | rows


def unpacked(config: Config, entries: Mapping[str, Entry]) -> Stored:
    """The reverse of `packed`. An error of any kind means that this is not the file of a transformer."""
    parameters, names = _parameters(config["parameters"]), config["names"]
    recorded = {name: entries[name].array() for name in (*MOMENTS, TIMES) if name in entries}
    sums = {name.removeprefix(SUMS): entry.array() for name, entry in entries.items() if name.startswith(SUMS)}
    rows = {name: entries[name].array() for name in stored_window.ARRAYS if name in entries}
    apart = {*recorded, *rows}
    entries = {name: entry for name, entry in entries.items() if name not in apart and not name.startswith(SUMS)}
    arrays = {name: entry.array() for name, entry in entries.items() if len(entry.shape) == 1}
    features = len(arrays["running_mean"])
    if names is not None and not (
        isinstance(names, list) and len(names) == features and all(type(name) is str for name in names)
    ):
        raise ValueError(f"names of {features} features: {names!r:.80}")
    stored = _empty(parameters, features, names)
    state = stored.fitted
    expected = {name: a for name, a in packed(stored)[1].items() if not name.startswith(SUMS)}
    container.check_arrays(entries, expected)
    if config["features"] != features:
        raise ValueError(f"{config['features']!r:.80} features instead of {features}")
    statistics = state.statistics
    statistics.counters[...] = counted(config["counted"])
    checked(arrays, statistics)
    for name, a in statistics.arrays().items():
        a[...] = arrays[stored_name(name)]
    if stored.affine is not None:
        stored.affine = arrays[AFFINE[0]], arrays[AFFINE[1]]
    _restore(state, config, sums, rows, recorded)
    stored.extra = {name: value for name, value in config.items() if name not in KNOWN}
    container.check_entries(stored.extra, EXTRA)
    return stored


def _restore(
    state: Fitted, config: Config, sums: dict[str, ndarray], rows: dict[str, ndarray], recorded: dict[str, ndarray]
) -> None:
    """Restore everything but the statistics: exact sums, the zero of the clock, a window and the record."""
    seen = state.statistics.seen
    if state.sums is not None:
        restored = ExactMoments._from_stored(sums)
        if restored.digest() != config["digest"] or (restored.count != seen).any():
            raise ValueError(f"exact sums of {restored.count} values, with digest {restored.digest()}")
        state.sums, state.summed = restored, (state.statistics.rows, state.statistics.batches)
    if state.timed and "times" in config:
        state.zero, state.latest = times_of(**config["times"])
    if state.window is not None:
        state.window = stored_window.restored(state.window, config["window"], rows, len(seen))
        if state.window.parts is not None and (state.window.parts[0] != seen).any():
            raise ValueError("window: rows that the statistics are not of")
    elif rows:
        raise ValueError(f"arrays {sorted(rows)}")
    if recorded:
        _recall(state, config["history"], recorded)
    state.weighted, state.told = flag(config["weighted"]), flag(config["told"])


def _plain(name: str, value: Any) -> Any:
    """Convert a parameter to a type of JSON. It may be of one of NumPy's types, and a number may be a bool."""
    if value is None or type(DEFAULTS[name]) is bool:
        return value if value is None else bool(value)
    if durations.is_duration(value):
        return durations.text(value)
    return int(value) if isinstance(value, Integral) else float(value)


def _parameters(given: Any) -> dict[str, Any]:
    """The parameters of a transformer, checked."""
    if unknown := sorted(given.keys() - DEFAULTS.keys()):
        raise ValueError(f"unknown parameters {unknown}")
    given = DEFAULTS | given  # a file of an older version may lack some of them
    momentum, halflife, window, eps, ddof, moments, exact = (
        given[name] for name in ("momentum", "halflife", "window", "eps", "ddof", "history", "exact")
    )
    for length in (halflife, window):
        if type(length) is str:
            durations.nanoseconds(length)  # ValueError for a text that is not a length of time
    rules = [
        momentum is None or (type(momentum) in (int, float) and 0 < momentum <= 1),
        halflife is None or type(halflife) is str or (type(halflife) in (int, float) and 0 < halflife < inf),
        window is None or type(window) is str or (type(window) is int and window > 0),
        window is None or (halflife is None and not exact),
        (halflife is None and window is None) or momentum in (None, MOMENTUM),
        not exact or (momentum is None and halflife is None),
        type(eps) in (int, float) and 0 <= eps < inf,
        type(ddof) is int and ddof in (0, 1),
        moments is None or (type(moments) is int and moments >= 2),
    ]
    if not (all(rules) and all(type(given[name]) is bool for name in ("affine", "copy", "exact"))):
        raise ValueError(f"parameters {given!r:.200}")
    return dict(given)


def _recall(state: Fitted, given: Any, recorded: Mapping[str, ndarray]) -> None:
    """Restore the record of the stream."""
    rows, mean, var = (recorded[name] for name in MOMENTS)
    times = recorded.get(TIMES)
    every, batches, history = given["every"], given["batches"], state.history
    if history is None or not (0 < len(rows) <= history.limit) or rows.dtype != np.int64 or rows.ndim != 1:
        raise ValueError(f"history: {len(rows)} moments")
    if mean.shape != (len(rows), len(state.mean)) or var.shape != mean.shape or (var < 0).any():
        raise ValueError(f"history: moments of shape {mean.shape} and {var.shape}")
    if type(every) is not int or type(batches) is not int or not 0 < every <= 2**62 or not 0 <= batches < 2**62:
        raise ValueError(f"history: {given!r:.80}")
    history.every, history.batches = every, batches
    if (times is None) != (state.zero is None) or (times is not None and times.dtype != np.int64):
        raise ValueError("history: times")
    history.moments = [Moment(int(n), m.copy(), v.copy()) for n, m, v in zip(rows, mean, var, strict=True)]
    if times is not None:
        history.moments = [TimedMoment(*m[:3], int(time)) for m, time in zip(history.moments, times, strict=True)]


def stored_times(zero: Zero, latest: int | None) -> dict[str, Any]:
    """Return the entry of the configuration for the zero of a clock and the time of the newest row, if it is known."""
    return zero._asdict() | ({} if latest is None else {"latest": latest})


def times_of(kind: Any, origin: Any, column: Any, latest: Any = None) -> tuple[Zero, int | None]:
    """Return the zero of a clock and the time of the newest row, checked. Files of older versions lack the latter."""
    good = kind in KINDS and type(origin) is int and abs(origin) < 2**63
    good = good and (latest is None or (type(latest) is int and abs(latest) < 2**63))
    if not good or not (column is None or type(column) is str):
        raise ValueError(f"times: {(kind, origin, column, latest)!r:.80}")
    return Zero(kind, origin, column), latest


def stored_name(name: str) -> str:
    """The name of an array of statistics in a file."""
    return NAMES.get(name, name)


def _stacked(rows: Sequence[Any]) -> ndarray:
    return np.stack([moved(row, ndarray) if hasattr(row, "shape") else np.int64(row) for row in rows])


def checked(arrays: Mapping[str, ndarray], statistics: Statistics) -> None:
    """Raise ValueError unless these statistics may be saved. The rule is that of `bn_sound` in formulas.h, for arrays.

    Every update obeys it. Values that users assign may not: then the statistics cannot be saved.
    """
    seen, mean, var, low = (arrays[name] for name in ("seen", "running_mean", "running_var", "low"))
    weight, fades, known = arrays.get("stream_weight", seen), statistics.mode == FADE, seen > 0
    weighs = known | (statistics.counters[UNCOUNTED] > 0)  # a layer may have loaded statistics without counts
    rules = [
        ("seen", np.isfinite(seen) & (seen >= 0), "finite numbers >= 0"),
        ("running_mean", np.isfinite(mean) | ~known, "finite numbers for features that have been seen"),
        ("running_var", (var >= 0) | (np.isnan(var) & ~known), "numbers >= 0 for features that have been seen"),
        ("low", np.isfinite(low), "finite numbers"),
        ("stream_weight", (weight >= 0) & (weighs | (weight == 0)), "numbers >= 0, and 0 for features never seen"),
    ]
    if fades:
        rules += [
            ("stream_weight", np.isfinite(weight), "finite numbers"),
            ("pairs", np.isfinite(arrays["pairs"]) | (statistics.ddof == 0), "finite numbers"),
            ("last", np.isfinite(arrays["last"]), "finite numbers"),
        ]
    for name, good, expected in rules:
        if not good.all():
            raise ValueError(f"{name}: expected {expected}, got {arrays[name][~good][0]}")
