"""An index of keys: which code a key has, and the arrays that a file has of it."""

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.transformer.keys import FLAG, MOST, NUMBER, TEXT, TIME, UNIT, Keys


class Index:
    """The keys that have been seen, each with a code: its place in `keys`. Only the calls of `added` add keys."""

    def __init__(self, columns: int) -> None:
        self.kinds: tuple[str | None, ...] = (None,) * columns
        self.keys: list[Any] = []
        self._places: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, who: str, keys: Keys, names: Sequence[str]) -> ndarray:
        """Return the code of each key, -1 if it is new. TypeError if keys are of another kind than those seen."""
        for name, mine, its in zip(names, self.kinds, keys.kinds, strict=True):
            if None not in (mine, its) and mine != its:
                raise TypeError(f"{who}: by: column {name}: expected keys of kind {mine!r}, as in fit, got {its!r}")
        if not self.keys:
            return np.full(len(keys.keys), -1)
        return np.fromiter(map(self._places.get, keys.keys, repeat(-1)), np.int64, len(keys.keys))

    def added(self, keys: list[Any], kinds: tuple[str | None, ...]) -> list[tuple[Any, ...]]:
        """Return compiled calls, with their arguments, that add these keys, which must be new, in this order."""
        known: dict[str, Any] = {"kinds": tuple(mine or its for mine, its in zip(self.kinds, kinds, strict=True))}
        places = dict(zip(keys, range(len(self.keys), len(self.keys) + len(keys)), strict=True))
        if not self.keys:
            return [(self.__dict__.update, known | {"_places": places, "keys": list(keys)})]
        return [(self.__dict__.update, known), (self._places.update, places), (self.keys.extend, keys)]

    def array(self) -> ndarray:
        """Return the keys as an array: of strings (object), numbers (object if float64 cannot hold all of them), bools
        or times; for several columns, an object array of tuples.
        """
        if len(self.kinds) == 1:
            return _typed(self.kinds[0], self.keys)
        columns = [_typed(kind, list(part)).tolist() for kind, part in zip(self.kinds, self.columns(), strict=True)]
        return np.fromiter(zip(*columns, strict=True), object, len(self.keys))

    def columns(self) -> list[list[Any]]:
        """The keys of each column."""
        if len(self.kinds) == 1:
            return [self.keys]
        return [list(part) for part in zip(*self.keys, strict=True)] or [[] for _ in self.kinds]


def _typed(kind: str | None, keys: list[Any]) -> ndarray:
    if kind == TIME:
        return np.array(keys, np.int64).view(UNIT)
    if kind == FLAG:
        return np.array(keys, bool)
    if kind == NUMBER and not any(type(key) is float for key in keys):
        return np.array(keys, np.int64)
    if kind == NUMBER and not any(map(_beyond_floats, keys)):
        return np.array(keys, np.float64)
    return np.fromiter(keys, object, len(keys))


def _beyond_floats(key: Any) -> bool:
    return bool(float(key) != key)


def stored(index: Index) -> tuple[list[str | None], dict[str, ndarray]]:
    """Return the kinds of the columns, and arrays; `restored` makes the index from them again."""
    arrays: dict[str, ndarray] = {}
    for j, (kind, column) in enumerate(zip(index.kinds, index.columns(), strict=True)):
        if kind == TEXT:
            texts = [text.encode("utf-8", "surrogatepass") for text in column]
            arrays[f"key_{j}_ends"] = np.cumsum([len(text) for text in texts], dtype=np.int64)
            arrays[f"key_{j}"] = np.frombuffer(b"".join(texts), np.uint8)
        elif kind is not None:
            values = _typed(kind, column)
            if values.dtype == object:  # numbers that float64 cannot hold: their nearest floats, and which they are
                exact = [key if _beyond_floats(key) else 0 for key in column]
                arrays[f"key_{j}_exact"], values = np.array(exact, np.int64), values.astype(np.float64)
            arrays[f"key_{j}"] = values.view({TIME: np.int64, FLAG: np.uint8}.get(kind, values.dtype))
    return list(index.kinds), arrays


def restored(kinds: list[Any], arrays: dict[str, ndarray], groups: int) -> Index:
    """The reverse of `stored`; ValueError for anything else."""
    index = Index(len(kinds))
    columns: list[list[Any]] = []
    for j, kind in enumerate(kinds):
        if kind is None and not groups:
            columns.append([])
            continue
        if kind not in (TEXT, NUMBER, FLAG, TIME):
            raise ValueError(f"keys of kind {kind!r}")
        values = arrays[f"key_{j}"]
        if kind == TEXT:
            ends = arrays[f"key_{j}_ends"]
            starts = np.concatenate([[0], ends])[:-1].astype(np.int64)
            if ends.shape != (groups,) or (ends < starts).any() or (groups and ends[-1] != len(values)):
                raise ValueError(f"keys of column {j} that end at {ends!r:.60}")
            text = values.tobytes()
            pairs = zip(starts.tolist(), ends.tolist(), strict=True)
            columns.append([text[a:b].decode("utf-8", "surrogatepass") for a, b in pairs])
        else:
            columns.append((values != 0).tolist() if kind == FLAG else values.tolist())
            if kind == NUMBER and values.dtype == np.float64:
                columns[-1] = [int(v) if v == v // 1 and abs(v) <= MOST else v for v in columns[-1]]
                if (exact := arrays.get(f"key_{j}_exact")) is not None:
                    if exact.dtype != np.int64:
                        raise ValueError(f"integers of column {j} of {exact.dtype}")
                    columns[-1] = [e or v for e, v in zip(exact.tolist(), columns[-1], strict=True)]
    keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    if len(keys) != groups or len(set(keys)) != groups:
        raise ValueError(f"{len(set(keys))} keys of {groups} groups")
    index.kinds, index.keys, index._places = tuple(kinds), keys, dict(zip(keys, range(groups), strict=True))
    return index
