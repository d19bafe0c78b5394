"""`RunningNorm.tree`: running statistics of observations that are dictionaries or tuples."""

import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from operator import call
from typing import Any, Self

import numpy as np

from bnorm import checks
from bnorm.kernels import BACKENDS, kind_of
from bnorm.layers import state
from bnorm.streams.base import Normalizer
from bnorm.streams.statistics import Followed

CLASS = "RunningNormTree"


class RunningNormTree(Normalizer):
    """A RunningNorm for each array of a nested observation; `RunningNorm.tree` makes it.

    It is used as a RunningNorm, with whole observations. `tree["key"]`, or `tree[0]` of a tuple, is the normalizer of a
    part: a RunningNorm, another tree, or None for what is passed on as it is.

    Parameters
    ----------
    parts : dict or tuple
        The normalizers of the parts.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> obs = {"position": np.zeros(3), "hands": (np.zeros(2), np.zeros(2)), "room": 7}
    >>> tree = bnorm.RunningNorm.tree(obs, clip=10)
    >>> z = tree(obs)
    >>> z["room"], tree["position"].count
    (7, array([1., 1., 1.]))
    """

    __slots__ = ("__weakref__", "_parts")

    def __init__(self, parts: dict[str, Any] | tuple[Any, ...]) -> None:
        if not isinstance(parts, dict | tuple):
            raise TypeError(f"{CLASS}: parts: expected a dict or a tuple, got {checks.type_name(parts)}")
        for name, part in _pairs(parts):
            if not (part is None or isinstance(part, Followed | RunningNormTree)):
                raise TypeError(
                    f"{CLASS}: parts: expected RunningNorm, {CLASS} or None, got {checks.type_name(part)} for {name!r}"
                )
        self._parts, self._training = parts, True
        places = [place for place, _ in self._places()]
        if twice := sorted({place for place in places if places.count(place) > 1}):
            raise ValueError(
                f"{CLASS}: parts: expected names that differ when joined by dots, as arrays are called in a state "
                f"dict, got {twice[0]!r} twice"
            )

    def __call__(self, obs: Any) -> Any:
        """Update the statistics of parts in training mode, and normalize.

        Parameters
        ----------
        obs : dict or tuple
            An observation of the structure of the tree. Its arrays are one observation each, or a batch of them along
            leading axes, as in a call of RunningNorm.

        Returns
        -------
        z : dict or tuple
            The same structure with normalized arrays. What has no normalizer is passed on as it is.
        """
        return self._moved(obs, lambda norm: norm.training)

    def update(self, obs: Any) -> None:
        """Update the statistics, in either mode, without normalizing.

        Parameters
        ----------
        obs : dict or tuple
            As in a call: an observation, or batches of its arrays.
        """
        self._moved(obs, lambda norm: True, maps=False)

    def normalize(self, obs: Any) -> Any:
        """Normalize by the present statistics, which do not change.

        Parameters
        ----------
        obs : dict or tuple
            As in a call: an observation, or batches of its arrays.

        Returns
        -------
        z : dict or tuple
            As in a call.
        """
        return self._mapped(lambda norm, x: norm.normalize(x), obs)

    def denormalize(self, z: Any) -> Any:
        """The reverse of `normalize`, except for what `clip` has cut off.

        Parameters
        ----------
        z : dict or tuple
            A normalized observation, or batches of its arrays.

        Returns
        -------
        obs : dict or tuple
            The same structure, in the dtypes of z.
        """
        return self._mapped(lambda norm, x: norm.denormalize(x), z)

    def train(self, mode: bool = True) -> Self:
        """Set training mode in all parts; train(False) is eval(). Returns the tree."""
        mode = checks.flag(CLASS, "mode", mode)
        for _, part in _pairs(self._parts):
            if part is not None:
                part.train(mode)
        self._training = mode
        return self

    def __getitem__(self, name: Any) -> Any:
        return self._parts[name]

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts)

    def __add__(self, other: object) -> Self:
        """The statistics of both streams, part by part."""
        both: Self = self._beside(other, "+", lambda a, b: a + b)
        return both

    def __sub__(self, base: object) -> Self:
        """What was seen since the statistics were those of `base`, part by part."""
        left: Self = self._beside(base, "-", lambda a, b: a - b)
        return left

    def copy(self) -> Self:
        """An independent copy, of what a subclass has added too."""
        return self._with(_made(self._parts, lambda _, part: None if part is None else part.copy()))

    def reset(self) -> None:
        """Forget everything that was seen."""
        for norm in self._norms().values():
            norm.reset()

    def to(self, device: str) -> Self:
        """Move the statistics to a device, "cpu" or "cuda". Returns the tree."""
        for norm in self._norms().values():
            norm.to(device)
        return self

    def state_dict(self) -> state.StateDict:
        """Copies of all arrays, under the names of the parts and dots."""
        return state.StateDict(
            (f"{place}.{name}", a) for place, norm in self._norms().items() for name, a in norm.state_dict().items()
        )

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> state.Incompatible:
        """Load a `state_dict()` of a tree of the same structure. After an error nothing is loaded.

        Parameters
        ----------
        state_dict : mapping of str to array
            Of a tree whose parts have the same names and shapes, and the same momentum or half-life.
        strict : bool, default True
            Whether missing and unexpected names are an error. A wrong shape always is. What is missing begins anew.

        Returns
        -------
        Incompatible
            A named tuple of the `missing_keys` and `unexpected_keys`.
        """
        holders = {f"{place}.": norm for place, norm in self._norms().items()}
        return state.load(CLASS, "state_dict", holders, state_dict, strict)

    # Inside -------------------------------------------------------------------------------------------------------

    def _with(self, parts: dict[str, Any] | tuple[Any, ...]) -> Self:
        """Return a copy with other parts of the same structure."""
        both: Any = super().__getstate__()
        added, slots = both  # the __dict__ of a subclass, and all slots
        new = object.__new__(type(self))
        copies = {id(self): new, id(self._parts): parts}
        for name, value in deepcopy((added or {}) | slots, copies).items():
            setattr(new, name, value)
        return new

    def _mapped(self, f: Callable[[Any, Any], Any], obs: Any) -> Any:
        """Return an observation of the same structure, with f(norm, x) for each array x."""
        parts = self._parts
        self._same_structure(obs)

        def through(name: Any, part: Any) -> Any:
            x = obs[name]
            return x if part is None else part._mapped(f, x) if isinstance(part, RunningNormTree) else f(part, x)

        return _made(parts, through)

    def _same_structure(self, obs: Any) -> None:
        parts = self._parts
        if isinstance(parts, dict):
            if not isinstance(obs, Mapping) or obs.keys() != parts.keys():
                got = sorted(map(str, obs)) if isinstance(obs, Mapping) else checks.type_name(obs)
                raise ValueError(f"{CLASS}: obs: expected a mapping of {', '.join(map(str, parts))}, got {got}")
        elif not isinstance(obs, tuple | list) or len(obs) != len(parts):
            found = len(obs) if isinstance(obs, tuple | list) else checks.type_name(obs)
            raise ValueError(f"{CLASS}: obs: expected a tuple of {len(parts)}, got {found}")

    def _moved(self, obs: Any, updates: Callable[[Any], bool], maps: bool = True) -> Any:
        """Check all of an observation, then update and normalize all parts, with no Python code in between.

        So an error, or an interrupt, comes before any part has changed, or after all have.
        """
        calls: list[Callable[[], Any]] = []
        ends: list[Callable[[Any], Any]] = []

        def prepare(norm: Any, x: Any) -> None:
            a, moves = norm._taken(x, "obs"), updates(norm)
            if moves and norm.nonfinite == "raise":
                norm.copy().update(a)  # a trial, which raises the error
            online, end = norm._prepared(a, moves, maps)
            calls.append(online)
            ends.append(partial(end, x))

        self._mapped(prepare, obs)
        results = list(map(call, calls))
        done = map(call, ends, results)
        return self._mapped(lambda norm, x: next(done), obs)

    def _norms(self) -> dict[str, Any]:
        """All normalizers by place, parts joined by dots."""
        return dict(self._places())

    def _places(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        for name, part in _pairs(self._parts):
            if isinstance(part, RunningNormTree):
                yield from part._places(f"{prefix}{name}.")
            elif part is not None:
                yield f"{prefix}{name}", part

    def _beside(self, other: object, sign: str, f: Callable[[Any, Any], Any]) -> Any:
        """Return a tree with f(mine, other) for each pair of normalizers."""
        if not isinstance(other, RunningNormTree):
            return NotImplemented
        mine, others = self._norms(), other._norms()
        if mine.keys() != others.keys():
            raise ValueError(
                f"{CLASS}: {sign}: expected parts {', '.join(mine)} on both sides, got {', '.join(others)}"
            )
        names, found = ([name for name, part in _pairs(tree._parts) if part is not None] for tree in (self, other))
        if set(names) != set(found):  # such as "0" of a dictionary, and 0 of a tuple
            raise ValueError(f"{CLASS}: {sign}: expected parts {names} on both sides, got {found}")

        def joined(name: Any, part: Any) -> Any:
            if isinstance(part, RunningNormTree):
                return part._beside(other[name], sign, f)
            return None if part is None else f(part, other[name])

        return self._with(_made(self._parts, joined))

    def __repr__(self) -> str:
        return f"{CLASS}({self._parts!r})"


def grown(kind: type, given: Any, options: dict[str, Any]) -> Any:
    """Return a tree, or a RunningNorm (the `kind`), for a space or an example."""
    part = _grown(partial(kind, **options), given)
    if part is None:
        raise TypeError(
            f"RunningNorm.tree: space_or_example: expected arrays of floats, or a space with a Box, got {given!r:.80}"
        )
    return part


def _grown(make: Callable[[Any], Any], given: Any) -> Any:
    spaces = getattr(sys.modules.get("gymnasium"), "spaces", None)
    if spaces is not None and isinstance(given, spaces.Space):
        if isinstance(given, spaces.Dict | spaces.Tuple):
            given = dict(given.spaces) if isinstance(given, spaces.Dict) else tuple(given.spaces)
        else:
            return make(given.shape) if isinstance(given, spaces.Box) else None
    if isinstance(given, Mapping):
        return RunningNormTree({name: _grown(make, part) for name, part in given.items()})
    if isinstance(given, tuple):
        return RunningNormTree(tuple(_grown(make, part) for part in given))
    kind = kind_of(given)
    try:
        a = BACKENDS[kind or np.ndarray].asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        if kind is None:  # such as lists of different lengths
            return None
        raise TypeError(
            f"RunningNorm.tree: space_or_example: expected arrays that NumPy can read, got {checks.type_name(given)}: "
            f"{error}"
        ) from error
    return make(tuple(a.shape)) if a.dtype.kind == "f" else None


def _pairs(parts: Any) -> list[tuple[Any, Any]]:
    return list(parts.items()) if isinstance(parts, dict) else list(enumerate(parts))


def _made(parts: Any, f: Callable[[Any, Any], Any]) -> Any:
    """Return the same structure, with f(name, part) for each part."""
    made = {name: f(name, part) for name, part in _pairs(parts)}
    return made if isinstance(parts, dict) else tuple(made.values())
