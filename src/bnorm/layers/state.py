"""What a layer knows, as plain arrays under PyTorch's names, and back."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm import checks

ALIASES = {"gamma": "weight", "beta": "bias"}
NOT_NEGATIVE = ("running_var", "num_batches_tracked")


class StateDict(dict[str, ndarray]):
    """Arrays by name; `seen` counts the values behind each channel's statistics, for which PyTorch has no name."""

    seen: ndarray | None = None


class Incompatible(NamedTuple):
    """The names in which a state and a layer differ."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def read(
    who: str, given: Any, expected: Mapping[str, ndarray], strict: bool
) -> tuple[dict[str, ndarray], Incompatible]:
    """The arrays of `given` that are expected, in their shape and dtype, and the names that did not match.

    One error lists everything that is wrong. Arrays may be PyTorch's tensors, on any device, and have axes of length 1
    to spare; they are returned on the device that they came from.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"{who}: state_dict: expected a mapping of names to arrays, got {type(given).__name__}")
    found: dict[str, ndarray] = {}
    wrong, unexpected = [], []
    for key, value in given.items():
        name: Any = ALIASES.get(key, key)
        if name not in expected:
            unexpected.append(str(key))
        elif name in found:
            wrong.append(f"{name}: given twice, also as {key}")
        else:
            try:
                found[name] = _array(name, value, expected[name])
            except (TypeError, ValueError) as error:
                wrong.append(str(error))
                found[name] = np.zeros(0)
    missing = [name for name in expected if name not in found]
    if strict and missing:
        wrong.append(f"missing: {', '.join(missing)}")
    if strict and unexpected:
        wrong.append(f"unexpected: {', '.join(unexpected)}")
    if wrong:
        raise ValueError(f"{who}: state_dict: expected {_described(expected)}; got {'; '.join(wrong)}")
    return found, Incompatible(missing, unexpected)


def _array(name: str, value: Any, like: ndarray) -> ndarray:
    if hasattr(value, "detach"):  # a tensor: perhaps part of a graph, perhaps on a device
        value = value.detach().cpu()
    a = checks.real(name, "value", value)
    if _without_ones(a.shape) != _without_ones(like.shape):
        raise ValueError(f"{name}: shape {a.shape} instead of {like.shape}")
    if like.dtype.kind == "i" and not ((np.abs(a) < 2.0**63) & (a == np.floor(a))).all():
        raise ValueError(f"{name}: {a} instead of an integer")
    if name in NOT_NEGATIVE and (a < 0).any():
        raise ValueError(f"{name}: negative values")
    return a.reshape(like.shape).astype(like.dtype)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _described(expected: Mapping[str, ndarray]) -> str:
    return ", ".join(f"{name} {a.shape}" for name, a in expected.items()) or "nothing"
