"""The file of a grouped transformer: parameters and settings as the configuration, keys and statistics as arrays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Self

import numpy as np
from numpy import ndarray

from bnorm.files import container
from bnorm.files.container import Config, Entry
from bnorm.layers.saving import counted, flag
from bnorm.transformer import key_index
from bnorm.transformer.durations import is_duration, text
from bnorm.transformer.fitted import ticks
from bnorm.transformer.groups import Groups
from bnorm.transformer.saving import checked, stored_name, stored_times, times_of

CLASS = "GroupedTransformer"
PARAMETERS = ("by", "unseen", "prior", "keep_keys", "momentum", "halflife", "eps")
KNOWN = {"format", "class", "parameters", "places", "columns", "names", "kinds", "batches", "counted", "weighted"}
KNOWN |= {"times"}
WHOLE, KEY = "whole_", "key_"  # prefixes of the names of arrays


@dataclass
class Stored:
    """The content of a file. places: the positions of the key columns among all `columns`, which may have names."""

    parameters: dict[str, Any]
    groups: Groups
    places: list[int]
    columns: int
    names: list[str] | None

    @property
    def features(self) -> list[str]:
        """The names of the features; x0, x1 and so on, by position, if they have none."""
        names = self.names or [f"x{i}" for i in range(self.columns)]
        return [name for i, name in enumerate(names) if i not in self.places]

    @property
    def by(self) -> list[str]:
        """The names of the columns of keys."""
        return [self.names[i] if self.names else f"x{i}" for i in self.places]


class Savable:
    """The part of a grouped transformer that saves it."""

    _groups: Groups
    _places: list[int]
    n_features_in_: int
    feature_names_in_: ndarray
    _known_names: Callable[[], list[Any] | None]

    def _packed(self) -> tuple[Config, dict[str, ndarray]]:
        return packed(self._stored())

    def _stored(self) -> Stored:
        """The content of the file."""
        parameters = {name: _plain(getattr(self, name)) for name in PARAMETERS}
        return Stored(parameters, self._groups, self._places, int(self.n_features_in_), self._known_names())

    @classmethod
    def _from_stored(cls, stored: Stored) -> Self:
        """The transformer with this state."""
        self = cls(**stored.parameters)
        self._groups, self._places, self.n_features_in_ = stored.groups, stored.places, stored.columns
        if stored.names is not None:
            self.feature_names_in_ = np.array(stored.names, object)
        return self


def packed(stored: Stored) -> tuple[Config, dict[str, ndarray]]:
    """The configuration and the arrays of a file; ValueError for a state that `restored` would refuse."""
    groups = stored.groups
    groups.whole.look()
    kinds, arrays = key_index.stored(groups.index)
    config = {
        "class": CLASS,
        "parameters": stored.parameters,
        "places": stored.places,
        "columns": stored.columns,
        "names": stored.names,
        "kinds": kinds,
        "batches": groups.batches,
        "counted": groups.whole.counters.tolist(),
        "weighted": bool(groups.weighted),
    }
    if groups.zero is not None:
        config["times"] = stored_times(groups.zero, groups.latest)
    own = {stored_name(name): groups.row(name) for name in groups.arrays}
    whole = {stored_name(name): a for name, a in groups.whole.arrays().items()}
    checked({name: a.reshape(-1) for name, a in own.items()}, groups.whole)
    checked(whole, groups.whole)
    arrays |= own | {WHOLE + name: a for name, a in whole.items()} | {"rows": groups.lengths[: len(groups)]}
    return config, arrays


def restored(config: Config, entries: Mapping[str, Entry]) -> Stored:
    """The reverse of `packed`. An error of any kind means that the file is not a valid one."""
    container.check_entries(config, KNOWN)
    parameters = _parameters(config["parameters"])
    places, columns, names = config["places"], config["columns"], config["names"]
    if type(columns) is not int or not all(type(p) is int and 0 <= p < columns for p in places) or not places:
        raise ValueError(f"columns {places!r:.80} of {columns!r:.80}")
    if len(set(places)) != len(places) or len(places) != len(config["kinds"]):
        raise ValueError(f"columns {places!r:.80} of kinds {config['kinds']!r:.80}")
    if names is not None and not (len(names) == columns and all(type(name) is str for name in names)):
        raise ValueError(f"names of {columns} columns: {names!r:.80}")
    arrays = {name: entry.array() for name, entry in entries.items()}
    n, channels = len(arrays["rows"]), columns - len(places)
    groups = Groups(len(places), channels, parameters["momentum"], parameters["halflife"])
    expected = {name: (n, channels) for name in map(stored_name, groups.arrays)} | {"rows": (n,)}
    expected |= {WHOLE + stored_name(name): (channels,) for name in groups.arrays}
    for name, shape in expected.items():
        dtype = np.int64 if name == "rows" else np.float64
        if arrays[name].shape != shape or arrays[name].dtype != dtype:
            raise ValueError(f"{name}: {arrays[name].dtype} {arrays[name].shape} instead of {shape}")
    rest = {name: a for name, a in arrays.items() if name not in expected}
    if strange := sorted(name for name in rest if not name.startswith(KEY)):
        raise ValueError(f"unknown arrays {strange}")
    groups.index = key_index.restored(config["kinds"], rest, n)
    if (arrays["rows"] < 0).any():
        raise ValueError("rows: expected numbers >= 0")
    groups.arrays = {name: arrays[stored_name(name)] for name in groups.arrays}
    groups.lengths = arrays["rows"]
    for name, a in groups.whole.arrays().items():
        a[...] = arrays[WHOLE + stored_name(name)]
    checked({stored_name(name): a.reshape(-1) for name, a in groups.arrays.items()}, groups.whole)
    checked({stored_name(name): a for name, a in groups.whole.arrays().items()}, groups.whole)
    groups.whole.counters[...] = counted(config["counted"])
    if is_duration(parameters["halflife"]):
        groups.zero, groups.latest = times_of(**config["times"])
    groups.batches, groups.weighted = counted([config["batches"], 0, 0, 0])[0], flag(config["weighted"])
    return Stored(parameters, groups, places, columns, names)


def _plain(value: Any) -> Any:
    """Convert a parameter, which may be of one of NumPy's types, to a type of JSON."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if is_duration(value):
        return text(value)
    return value.item() if isinstance(value, np.generic) else value


def _parameters(given: Any) -> dict[str, Any]:
    """The parameters of a transformer, checked."""
    if sorted(given) != sorted(PARAMETERS):
        raise ValueError(f"parameters {sorted(given)}")
    by, unseen, prior, keep, momentum, halflife, eps = (given[name] for name in PARAMETERS)
    several = by if isinstance(by, list) else [by]
    good = all(type(one) in (str, int) for one in several) and unseen in ("global", "nan", "error")
    good = good and None in (momentum, halflife)
    rows = ticks(halflife)  # ValueError for a text that is not a length of time
    k, e, m, h = (float(1 if v is None else v) for v in (prior, eps, momentum, rows))
    if not (good and 0 <= k < inf and 0 <= e < inf and 0 < m <= 1 and 0 < h < inf and type(keep) is bool):
        raise ValueError(f"parameters {given!r:.200}")
    return dict(given)
