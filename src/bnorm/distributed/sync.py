"""Batch normalization of a batch that is spread over several ranks, which exchange only a few numbers per channel.

In the forward, ranks exchange count, mean and m2, and merge them in the order of the ranks. In the backward they
exchange the two sums of the gradient, and add them in that order. From the same numbers every rank computes the same
bits. Numbers on a device are copied to the host for the exchange.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.distributed.communicator import Communicator, Turn
from bnorm.kernels import cpu, moved
from bnorm.kernels.activation import IDENTITY, Activation
from bnorm.kernels.rule import Rule
from bnorm.passes import ChannelSaved, Gradients


class SharedSaved(ChannelSaved):
    """What a forward of all ranks saves. All ranks must call its backward together."""

    __slots__ = ()

    def turn(self) -> AbstractContextManager[None]:
        turn: AbstractContextManager[None] = self.kernels.turn("backward")
        return turn

    def pull_back(self, *args: Any, **options: Any) -> Gradients:
        with self.turn():
            return super().pull_back(*args, **options)


class Shared:
    """Replaces the kernels in one forward in training and its backward, for a batch that is spread over all ranks.

    `forward`, `settle` and `backward` have the signatures of the kernels; all other names are those of the kernels.
    Every call is inside a `turn`, so an error on one rank, even before the kernels are called, is raised on all.
    settings: the settings that must be the same on all ranks, so that their statistics stay the same.
    """

    saved = SharedSaved

    def __init__(self, comm: Communicator, who: str, kernels: ModuleType, settings: tuple[Any, ...]) -> None:
        self._comm, self._who, self._kernels, self._settings = comm, who, kernels, settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    @contextmanager
    def turn(self, call: str) -> Iterator[None]:
        """A context in which all ranks make the same call."""
        with Turn(self._comm, f"{self._who}: {call}") as self._turn:
            yield

    def forward(
        self,
        x: ndarray,
        gamma: ndarray | None,
        beta: ndarray | None,
        eps: float,
        mean: None = None,
        var: None = None,
        weight: ndarray | None = None,
        act: Activation = IDENTITY,
        running: Rule | None = None,
        out: ndarray | None = None,
    ) -> tuple[ndarray, ndarray, float, int] | None:
        """Return y, stats and count of the batch of all ranks, or None if it has one value per channel."""
        kernels = self._kernels
        parts = kernels.moments(x, weight)
        positions = x.shape[0] * prod(x.shape[2:])
        values = positions if weight is None else int((weight > 0).sum())
        positions, values, merged = self._exchanged(positions, values, moved(parts, ndarray))
        if values == 1:
            return None
        self._count, self._rows = float(merged[0, 0]), positions
        self._parts = moved(merged, type(parts)) if self._count else parts  # parts without any value have mean 0
        left = 0
        if running is not None and (running.nonfinite == "raise" or type(parts) is ndarray):
            left = self.settle(running.copy())  # a trial, before anything is written to
        stats = kernels.finish(self._parts, gamma, beta, eps)
        return kernels.normalize(x, stats, act, out), stats, self._count, left

    def settle(self, rule: Rule, *_: Any) -> Any:
        """Update statistics by the batch of all ranks."""
        if not self._count:
            return 0
        return self._kernels.move(rule, self._parts, None, None, None, self._rows, 1, self._count)

    @np.errstate(all="ignore")  # infinity and NaN are data; a warning that is an error would stop this rank alone
    def backward(
        self,
        dy: ndarray,
        x: ndarray,
        stats: ndarray,
        count: float,
        weight: ndarray | None = None,
        act: Activation = IDENTITY,
        frozen: bool = False,
        params: bool = True,
        out: ndarray | None = None,
    ) -> tuple[ndarray, ndarray, ndarray]:
        """Return dx through the statistics of all ranks, and dgamma and dbeta of this rank's values."""
        kernels = self._kernels
        own = kernels.grad_moments(dy, x, stats, weight, act)
        everywhere = np.sum(self._turn.share(moved(own, ndarray)), axis=0)
        coefficients = kernels.finish_gradients(moved(everywhere, type(own)), stats, count)
        dx = kernels.grad_input(dy, x, stats, coefficients, weight, act, out)
        return dx, stats[2] * own[1], own[0]

    def _exchanged(self, positions: int, values: int, parts: ndarray) -> tuple[int, int, ndarray]:
        """Return the sums of positions and values over all ranks, and the merged parts."""
        ranks = self._turn.share((self._settings, positions, values, parts))
        settings, every_positions, every_values, every_parts = zip(*ranks, strict=True)
        for rank, other in enumerate(settings):
            if other != settings[0]:
                raise ValueError(
                    f"{self._who}: expected the same settings on all ranks, got {dict(settings[0])} on rank 0 and "
                    f"{dict(other)} on rank {rank}"
                )
        return sum(every_positions), sum(every_values), cpu.merge(list(every_parts))
