"""Layers that may have running statistics: batch norm, by default, and instance norm, on request."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike, DTypeLike

from bnorm import checks, devices
from bnorm.kernels import BACKENDS
from bnorm.kernels.activation import Name
from bnorm.layers import state
from bnorm.layers.base import Layer, fixed, signature_of
from bnorm.layers.shapes import Names, axis_and_names
from bnorm.running import UNCOUNTED, Statistics

NONFINITE = ("skip", "raise", "propagate")


class Tracking(Layer):
    """A layer of channels that may have running statistics; inference uses them instead of those of the batch."""

    __slots__ = (
        "_axis",
        "_blocks",
        "_moving",
        "_names",
        "_num_features",
        "_running",
        "_track_running_stats",
        "_warned",
    )

    _POSITIONS: ClassVar[tuple[str, ...]]  # the axes besides batch and channels, for each accepted number of dimensions
    _axis: int
    _names: Names  # the names of the axes, for each accepted number of dimensions

    num_features = fixed("num_features", "The number of channels.")
    track_running_stats = fixed("track_running_stats", "Whether there are running statistics.")
    axis = fixed("axis", "The axis of the channels.")
    ddof = fixed("running.ddof", "The running variance is sum (x - mean)^2 / (count - ddof).")

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        bias: bool,
        ddof: int,
        axis: int,
        activation: Name,
        negative_slope: float,
        nonfinite: str,
        dtype: "DTypeLike | None",
        device: str | None,
    ) -> None:
        name = type(self).__name__
        channels = checks.positive(name, "num_features", num_features)
        who = signature_of(name, channels)
        super().__init__(who, (channels,), eps, affine, bias, activation, negative_slope, dtype, device)
        self._num_features = channels
        self._axis, self._names = axis_and_names(who, axis, self._POSITIONS)
        self._track_running_stats = checks.flag(who, "track_running_stats", track_running_stats)
        self._running = Statistics(
            self._new((channels,), 0),
            self._new((channels,), 1),
            checks.momentum(who, momentum),
            checks.choice(who, "ddof", ddof, (0, 1)),
            checks.choice(who, "nonfinite", nonfinite, NONFINITE),
        )
        # The statistics that a training batch updates: the running statistics, those of a pool, or none.
        self._moving: Statistics | None = self._outside()
        self._blocks: list[list[Statistics | None]] = []  # for each open block: what a batch in it updates
        self._warned = False

    @property
    def momentum(self) -> float | None:
        """The weight of the new batch in the running statistics; with None every value seen weighs the same."""
        return self._running.momentum

    @momentum.setter
    def momentum(self, value: float | None) -> None:
        self._running.momentum = checks.momentum(self._who, value)

    @property
    def nonfinite(self) -> str:
        """How to treat a channel whose new running statistics would not be finite: "skip", "raise" or "propagate"."""
        return self._running.nonfinite

    @nonfinite.setter
    def nonfinite(self, value: str) -> None:
        self._running.nonfinite = checks.choice(self._who, "nonfinite", value, NONFINITE)

    @property
    def running_mean(self) -> ndarray | Any:  # None only without tracking: users need not rule it out
        """The running mean, updated in place by training. Assigned values are copied into it. None without tracking."""
        return self._running.mean if self._track_running_stats else None

    @running_mean.setter
    def running_mean(self, value: "ArrayLike") -> None:
        self._write_statistics("running_mean", self._running.mean, value)
        if self._running.low is not None:  # what the old mean had rounded off is no part of the new one
            self._running.low[...] = 0

    @property
    def running_var(self) -> ndarray | Any:
        """The running variance, as running_mean."""
        return self._running.var if self._track_running_stats else None

    @running_var.setter
    def running_var(self, value: "ArrayLike") -> None:
        self._write_statistics("running_var", self._running.var, value)

    @property
    def num_batches_tracked(self) -> int | Any:
        """The number of training batches in the running statistics; None without tracking."""
        return self._running.batches if self._track_running_stats else None

    @property
    def num_batches_skipped(self) -> int | Any:
        """The number of batches in which a channel was not finite and kept its statistics; None without tracking.

        On a GPU they are counted on the device. Reading this property synchronizes, and only then the layer warns.
        """
        if not self._track_running_stats:
            return None
        self._warn_once(self._running.look())
        return self._running.skipped

    def reset_running_stats(self) -> None:
        """Reset to mean 0, variance 1 and no batches."""
        self._running.reset()

    def reset_parameters(self) -> None:
        """Set gamma to 1 and beta to 0, and reset the running statistics, as PyTorch does."""
        super().reset_parameters()
        self.reset_running_stats()

    def _outside(self) -> Statistics | None:
        """Return the statistics that a training batch updates outside of all blocks."""
        return self._running if self._track_running_stats and not self._running.still else None

    @contextmanager
    def frozen_stats(self) -> Iterator[None]:
        """Training batches inside this block do not change the running statistics and their counters."""
        with self._block(None):
            yield

    @contextmanager
    def _block(self, moving: Statistics | None) -> Iterator[None]:
        """Let training batches in a block update the statistics `moving`, or none. Blocks may end in any order."""
        block = [moving]
        self._blocks.append(block)
        self._moving = moving
        try:
            yield
        finally:
            self._blocks = [other for other in self._blocks if other is not block]
            self._moving = self._blocks[-1][0] if self._blocks else self._outside()

    def to(self, device: str) -> Self:
        """Move parameters, their gradients and statistics to a device. Return the layer.

        Parameters stay the same objects, so an optimizer may keep them. A saved forward is dropped, as its x is not
        moved. Inside pooled_stats it is a RuntimeError.

        Parameters
        ----------
        device : {"cpu", "cuda"}
            "cuda" is CuPy's current device.
        """
        if self._moving not in (None, self._running):
            raise RuntimeError(f"{self._who}: to: expected no pooled_stats around it, got one")
        if devices.arrays_on(self._who, device) is not self._kind:
            self._warn_once(self._running.look())
        return super().to(device)

    def _switches(self) -> list[str]:
        frozen = self._track_running_stats and self._moving is None
        return super()._switches() + ["frozen_stats"] * frozen

    @np.errstate(all="ignore")
    def as_affine(self) -> tuple[ndarray, ndarray]:
        """Return the scale and shift of inference, float64 (C,): y = x scale + shift, before the activation."""
        mean, _, _, scale, beta = self._inference()
        return scale, beta - mean * scale

    def _adopt(self, statistics: Statistics) -> None:
        """Use these statistics as the running statistics, without a copy: other owners share them."""
        self._running = statistics
        self._moving = self._outside()
        self._settle()

    def _not_finite(self, error: FloatingPointError) -> checks.NonFiniteError:
        return checks.NonFiniteError(f"{self._who}: x: {error}{self._of_weights}, and nonfinite is 'raise'")

    @property
    def _of_weights(self) -> str:
        """Weights that may also be the cause of a variance that is not finite, in messages."""
        return ""

    def _warn_once(self, channels: int) -> None:
        """Warn of channels that a batch has skipped, or will skip: a warning may be an error, after which nothing has
        changed."""
        if channels and not self._warned:
            warnings.warn(
                f"{self._who}: {channels} of {self._num_features} channels had a batch mean or variance that is not "
                f"finite{self._of_weights}, and keep their running statistics (nonfinite='skip'); num_batches_skipped "
                "counts such batches from now on",
                RuntimeWarning,
                stacklevel=checks.user_level(),
            )
            self._warned = True

    def _write_statistics(self, name: str, to: ndarray, value: "ArrayLike") -> None:
        if value is to:  # an in-place operator assigns the same object
            return
        if not self._track_running_stats:
            raise ValueError(f"{self._who}: {name}: expected no value without running statistics")
        a = checks.vector(self._who, name, value, to.shape, self._kind, "the layer")
        if name == "running_var" and (a < 0).any():
            raise ValueError(f"{self._who}: {name}: expected no negative values, got {a.min()}")
        state.rewrite(to, a)

    def _inference(self) -> ndarray:
        """Return the rows mean, var, rstd, scale and shift that inference uses."""
        if not self._track_running_stats:
            raise ValueError(f"{self._who}: expected running statistics, which inference needs, got none")
        gamma, beta, mean, var = self._in_float64()
        stats: ndarray = BACKENDS[self._kind].known(mean, var, gamma, beta, self._eps)
        return stats

    def _arrays(self) -> tuple[ndarray | None, ...]:
        return (*super()._arrays(), self._running.mean, self._running.var)

    def _memory(self) -> dict[str, ndarray]:
        arrays = self._running.arrays() if self._track_running_stats else {}
        return super()._memory() | {f"running_{name}": a for name, a in arrays.items()}

    def _place(self, arrays: Mapping[str, ndarray]) -> None:
        super()._place(arrays)
        prefix = "running_"
        self._running.place({name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)})

    def _state(self) -> dict[str, ndarray]:
        arrays = super()._state()
        if self._track_running_stats:
            running = self._running
            arrays |= {"running_mean": running.mean, "running_var": running.var}
            arrays["num_batches_tracked"] = np.array(running.batches, np.int64)
        return arrays

    def state_dict(self) -> state.StateDict:
        """Return copies of all arrays under PyTorch's names, on the device of the layer.

        With momentum None, or in a transformer, the counts of values, for which PyTorch has no name, are an attribute
        of this dictionary, which copy() and pickle keep. A layer that loads a state without counts assumes that its
        batches were as large as the next batch.
        """
        arrays = super().state_dict()
        if self._counts is not None:
            arrays.seen = self._counts.copy()
        return arrays

    @property
    def _counts(self) -> ndarray | None:
        """The number of values in the statistics of each channel, if they are counted."""
        running = self._running
        counts = running.momentum is None or running.from_data
        return self._seen if counts and not running.counters[UNCOUNTED] else None

    @property
    def _seen(self) -> ndarray | None:
        """The array of the numbers of values, even if it lacks some batches."""
        return self._running.seen if self._track_running_stats else None

    def _loading(self, found: Mapping[str, ndarray], seen: ndarray | None) -> list[state.Change]:
        batches: Any = found.get(state.OPTIONAL)
        changes = super()._loading({name: a for name, a in found.items() if name != state.OPTIONAL}, seen)
        running = self._running
        if "running_mean" in found and running.low is not None:
            changes.append(state.write(running.low, 0))
        if batches is None and running.momentum is None and {"running_mean", "running_var"} <= found.keys():
            batches = max(running.batches, 1)  # none would let the next batch replace these statistics
        if batches is not None:
            counted = running.counted_as(int(batches), seen)
            changes += [state.write(to, value) for to, value in counted]
        return changes

    def __getstate__(self) -> tuple[Any, dict[str, Any]]:
        self._warn_once(self._running.look())
        own, slots = super().__getstate__()
        # A restored layer is outside of pooled_stats and frozen_stats, even if this one is inside.
        return own, slots | {"_moving": self._outside(), "_blocks": []}
