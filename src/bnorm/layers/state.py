"""State dicts: the arrays of layers under PyTorch's names, which are loaded completely or not at all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import call, setitem
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy import ndarray

from bnorm import checks
from bnorm.kernels import moved

NAMES = {"gamma": "weight", "beta": "bias"}  # PyTorch's names
NOT_NEGATIVE = ("running_var", "num_batches_tracked")
OPTIONAL = "num_batches_tracked"  # PyTorch had no such name before 0.4.1, and reads states without it
Change = Callable[[], object]


class StateDict(dict[str, ndarray]):
    """Arrays by name.

    `seen` has the number of values in each channel's statistics, for which PyTorch has no name: an array for a layer,
    or a dictionary of arrays by layer name for a net. Copies, pickles and `|` keep it.
    """

    seen: ndarray | dict[str, ndarray] | None = None

    def copy(self) -> StateDict:
        """Return a shallow copy, with `seen`."""
        new = StateDict(self)
        new.seen = self.seen
        return new

    __copy__ = copy

    def __or__(self, other: Any) -> StateDict:  # type: ignore[override]
        return self.copy().__ior__(other) if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> StateDict:  # type: ignore[override]
        return StateDict(other).__ior__(self) if isinstance(other, dict) else NotImplemented

    def __ior__(self, other: Any) -> StateDict:  # type: ignore[override]
        """Add the arrays and counts of another state, such as the state of other layers of a net."""
        self.update(other)
        seen = getattr(other, "seen", None)
        if seen is not None:
            self.seen = {**self.seen, **seen} if isinstance(self.seen, dict) and isinstance(seen, dict) else seen
        return self


class Incompatible(NamedTuple):
    """The names in which a state and a layer differ."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Holder(Protocol):
    """An object with a state: a layer, or a parameter by itself."""

    def _state(self) -> dict[str, ndarray]: ...
    def _loading(self, found: Mapping[str, ndarray], seen: ndarray | None) -> list[Change]: ...


def write(to: ndarray, value: Any) -> Change:
    """Return the change to[...] = value, for `apply`."""
    return partial(setitem, to, ..., value)


def rewrite(to: ndarray, a: ndarray) -> None:
    """Write an array into another, all of it or, where NumPy is set to raise at what its dtype cannot hold, nothing."""
    to[...] = a.astype(to.dtype, copy=False)


def apply(changes: Iterable[Change]) -> None:
    """Make all changes. No interrupt can come between them, as no Python code runs between them.

    A change writes values into an array of their dtype, or sets an attribute, and cannot fail.
    """
    tuple(map(call, changes))


def load(
    who: str, name: str, holders: Mapping[str, Holder], given: Any, strict: bool, expects: str = ""
) -> Incompatible:
    """Load `given`, the argument `name` of `who`, into holders, given by the prefix of their arrays' names.

    expects: what an error says was expected; by default it lists all names. After an error nothing has changed.
    """
    strict = checks.flag(who, "strict", strict)
    if not isinstance(given, Mapping):
        raise TypeError(f"{who}: {name}: expected a mapping of names to arrays, got {type(given).__name__}")
    expected = {first + key: a for first, holder in holders.items() for key, a in holder._state().items()}
    found, missing, unexpected, wrong = _read(given, expected)
    counts, misfits = _counts(given, holders)
    wrong += misfits
    if strict and missing:
        wrong.append(f"missing: {', '.join(missing)}")
    if strict and unexpected:
        wrong.append(f"unexpected: {', '.join(unexpected)}")
    if wrong:
        raise ValueError(f"{who}: {name}: expected {expects or _described(expected)}; got {'; '.join(wrong)}")
    changes: list[Change] = []
    for first, holder in holders.items():
        own = {key: found[first + key] for key in holder._state() if first + key in found}
        changes += holder._loading(own, counts.get(first))
    _warn_of_lost_counts(who, holders, found, counts)
    apply(changes)
    return Incompatible(missing, unexpected)


def _read(
    given: Mapping[Any, Any], expected: Mapping[str, ndarray]
) -> tuple[dict[str, ndarray], list[str], list[str], list[str]]:
    """Return the expected arrays, in their shape and dtype and on their device; missing and unexpected names; errors.

    A count of batches is never missing: without one in the state it stays as it is.

    Arrays may be PyTorch's tensors, on any device. A number may be an array of one.
    """
    found: dict[str, ndarray] = {}
    wrong, unexpected = [], []
    for key, value in given.items():
        name = key if key in expected else _expected_name(key)  # a parameter by itself may be called gamma
        if name not in expected:
            unexpected.append(str(key))
        elif name in found:
            wrong.append(f"{name}: given twice, also as {key}")
        else:
            found[name], misfit = _fitted(name, value, expected[name])
            wrong += misfit
    missing = [name for name in expected if name not in found and _last(name) != OPTIONAL]
    return found, missing, unexpected, wrong


def _expected_name(key: Any) -> Any:
    """Return a key, with PyTorch's name for gamma and beta."""
    if not isinstance(key, str):
        return key
    first, dot, last = key.rpartition(".")
    return first + dot + NAMES.get(last, last)


def _last(name: str) -> str:
    """Return a name without that of the layer."""
    return name.rpartition(".")[2]


def _counts(given: Mapping[Any, Any], holders: Mapping[str, Holder]) -> tuple[dict[str, ndarray], list[str]]:
    """Return the counts of values in a StateDict, by prefix of the holder, and errors."""
    seen = getattr(given, "seen", None)
    counts: dict[str, ndarray] = {}
    wrong: list[str] = []
    for first, holder in holders.items():
        like = getattr(holder, "_seen", None)
        own = None if first else seen
        value = seen.get(first.removesuffix(".")) if isinstance(seen, Mapping) else own
        if like is None or value is None:
            continue
        counts[first], misfit = _fitted(f"{first}seen", value, like)
        wrong += misfit
    return counts, wrong


def _fitted(name: str, value: Any, like: ndarray) -> tuple[ndarray, list[str]]:
    """Return a value in the shape and dtype and on the device of an array, and errors."""
    try:
        return moved(_array(name, value, like), type(like)), []
    except (TypeError, ValueError) as error:
        return like, [str(error)]


def _array(name: str, value: Any, like: ndarray) -> ndarray:
    if hasattr(value, "detach"):  # a tensor may be part of a graph, or on a device
        value = value.detach().cpu()
        value = value.double() if value.is_floating_point() else value  # NumPy has no bfloat16
    a = checks.real(name, "value", value)
    if a.shape != like.shape and (like.shape, a.shape) != ((), (1,)):  # early versions of PyTorch had no shape ()
        raise ValueError(f"{name}: shape {a.shape} instead of {like.shape}")
    if like.dtype.kind == "i" and not ((np.abs(a) < 2.0**63) & (a == np.floor(a))).all():
        raise ValueError(f"{name}: {a} instead of an integer")
    last = _last(name)
    if last in NOT_NEGATIVE and (a < 0).any():
        raise ValueError(f"{name}: negative values")
    if last == "seen" and not (np.isfinite(a) & (a >= 0)).all():
        raise ValueError(f"{name}: {a} instead of counts")
    return a.reshape(like.shape).astype(like.dtype)


def _warn_of_lost_counts(
    who: str, holders: Mapping[str, Holder], found: Mapping[str, ndarray], counts: Mapping[str, ndarray]
) -> None:
    lost = []
    for first, holder in holders.items():
        statistics = all(f"{first}{name}" in found for name in ("running_mean", "running_var"))
        batches = found.get(f"{first}{OPTIONAL}", statistics)  # True: at least one
        if getattr(holder, "momentum", 0) is None and first not in counts and batches:
            lost.append(first.removesuffix("."))
    if lost:
        which = f" for {', '.join(lost)}" if any(lost) else ""
        warnings.warn(
            f"{who}: the state has no counts of values{which}, which momentum=None needs to continue: the batches so "
            "far are assumed to have been as large as the next one. state_dict() of a layer with momentum=None returns "
            "the counts; copy() and pickle keep them, dict() and np.savez lose them",
            UserWarning,
            stacklevel=checks.user_level(),
        )


def _described(expected: Mapping[str, ndarray]) -> str:
    return ", ".join(f"{name} {a.shape}" for name, a in expected.items()) or "nothing"
