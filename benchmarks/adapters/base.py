"""What an adapter is.

An adapter is made from the data and holds what its library would hold: parameters in the library's own type, and what
its forward leaves for its backward. It has those of these methods that its library has:

    forward, inference, backward             batch, layer, group and instance norm
    fit, partial_fit, transform, inverse     the scaler

Each of the first row takes `out`, None for a fresh array or what `target` made of one. They return what the library
returns, which `arrays` turns into NumPy's. Nothing else happens in a method: it is timed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
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

    def around(self, operation: str) -> AbstractContextManager[None]:
        """What a program does once around many calls of an operation."""
        return nullcontext()

    def reset(self) -> None:
        """Forget what earlier calls have gathered: the next result is looked at."""

    def arrays(self, operation: str, result: object) -> tuple[np.ndarray, ...]:
        """y; dx, dgamma and dbeta (only dx without parameters); mean and variance of a fit; what was transformed."""
        return result if isinstance(result, tuple) else (result,)


class Scaler(Adapter):
    """What has scikit-learn's methods and attributes."""

    def __init__(self, data: Data) -> None:
        self.x = data.x
        self.fitted = self.new().fit(self.x)
        self.reset()

    def new(self):
        """An estimator that has not been fitted."""
        raise NotImplementedError

    def reset(self) -> None:
        self.stream = self.new()

    def fit(self):
        return self.stream.fit(self.x)

    def partial_fit(self):
        return self.stream.partial_fit(self.x)

    def transform(self):
        return self.fitted.transform(self.x)

    def inverse(self):
        return self.fitted.inverse_transform(self.x)

    def arrays(self, operation: str, result: object) -> tuple[np.ndarray, ...]:
        return (result.mean_, result.var_) if operation in ("fit", "partial_fit") else (result,)


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
