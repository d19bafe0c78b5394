"""What an adapter is.

An adapter is made from the data and holds what its library would hold: parameters in the library's own type, and what
its forward leaves for its backward. It has those of these methods that its library has:

    forward, inference, backward             batch, layer, group and instance norm
    fit, partial_fit, transform, inverse     the scaler

Each of the first row takes `out`, None for a fresh array or what `target` made of one. They return what the library
returns, which `arrays` turns into NumPy's. Nothing else happens in a method: it is timed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import metadata

import numpy as np

from ..shapes import Data


class Adapter:
    """tolerance: the largest error of its results, relative to the largest value that the result has."""

    tolerance: Mapping[str, float]
    with_out: tuple[str, ...] = ()  # operations that can write to an array of the caller's

    def __init__(self, data: Data) -> None:
        raise NotImplementedError

    def target(self, out: np.ndarray) -> object:
        return out

    def reset(self) -> None:
        """Forget what earlier calls have gathered: the next result is looked at."""

    def arrays(self, operation: str, result: object) -> tuple[np.ndarray, ...]:
        """y; dx, dgamma and dbeta (only dx without parameters); mean and variance of a fit; what was transformed."""
        return result if isinstance(result, tuple) else (result,)


@contextmanager
def as_it_is(threads: int, dtype: str) -> Iterator[None]:
    """For a library that has nothing to set: it uses one thread, whatever it is given."""
    yield


@dataclass(frozen=True)
class About:
    """What is to be known of a library without importing it. target: it is one that bnorm is to be compared with in
    every case; the others only at all threads, which cannot be set for them, and not in the largest cases.
    """

    name: str
    version: str
    kinds: tuple[str, ...]
    target: bool


@dataclass(frozen=True)
class Library:
    """session: its settings while it is measured."""

    name: str
    package: str
    adapters: Mapping[str, type[Adapter]]  # by kind of case
    session: Callable[[int, str], AbstractContextManager[None]] = as_it_is
    target: bool = False

    @property
    def about(self) -> About:
        return About(self.name, metadata.version(self.package), tuple(self.adapters), self.target)
