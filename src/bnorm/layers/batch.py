"""Batch normalization with running statistics."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike

from bnorm import checks, devices
from bnorm.checks import FLOAT64, FLOATS
from bnorm.kernels import moved
from bnorm.layers import state
from bnorm.layers.base import Layer, fixed, signature_of
from bnorm.layers.shapes import axis_and_names, wrong_shape
from bnorm.passes import channel_forward
from bnorm.running import UNCOUNTED, Statistics

NONFINITE = ("skip", "raise", "propagate")
ON_SINGLE = ("raise", "running")


class BatchNorm(Layer):
    """Normalize each channel over all other axes: y = (x - mean) / sqrt(var + eps) gamma + beta.

    In training, mean and var are those of the batch, and move the running statistics; in inference they are the
    running statistics, and constants to the backward.

    momentum   weight of the new batch in running_mean and running_var; None: every value seen weighs the same, with
               the spread between batches (PyTorch's None averages the variances of batches, and loses that spread)
    affine     whether there are parameters, gamma and beta
    track_running_stats  False: no running statistics, those of the batch in both modes
    ddof       running_var averages sum (x - mean)^2 / (count - ddof); 1 is PyTorch's convention
    axis       of the channels; -1 for channels-last
    activation  None, "relu" or "leaky_relu" (of slope `negative_slope` below 0), in the same pass, forward and backward
    nonfinite  what a channel does whose new running statistics would be NaN or infinite: "skip" leaves them alone,
               counts the batch in num_batches_skipped and warns once; "raise" raises NonFiniteError, and nothing has
               happened; "propagate" lets them in
    on_single  a batch of one value per channel in training: "raise" SingleValueError, or normalize it by the "running"
               statistics, which stay as they are
    dtype      of parameters and running statistics, float64 or float32; x and y may be of any other
    device     "cpu", or "cuda": all arrays, x and y too, are CuPy arrays. Only nonfinite="raise" and weights, whose
               values are looked at, make a call wait for the GPU
    """

    _POSITIONS: ClassVar[tuple[str, ...]]  # of each rank that is accepted, the axes beside batch and channels

    num_features = fixed("num_features", "The number of channels.")
    track_running_stats = fixed("track_running_stats", "Whether there are running statistics.")
    axis = fixed("axis", "The axis of the channels.")
    ddof = fixed("running.ddof", "What is subtracted from the count in the running variance.")
    comm = fixed("comm", "None: the statistics are of this process.")

    def __init__(
        self,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        ddof: int = 0,
        axis: int = 1,
        activation: str | None = None,
        negative_slope: float = 0.01,
        nonfinite: str = "skip",
        on_single: str = "raise",
        dtype: Any = "float64",
        device: str = "cpu",
        comm: None = None,
    ) -> None:
        name = type(self).__name__
        channels = checks.positive(name, "num_features", num_features)
        who = signature_of(name, channels)
        super().__init__(who, (channels,), eps, affine, activation, negative_slope, dtype, device)
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
        self.on_single = on_single
        if comm is not None:
            raise ValueError(
                f"{who}: comm: expected None, as statistics are not shared between processes, got {comm!r}"
            )
        self._comm = comm
        self._moving: Statistics | None = self._running if self._track_running_stats else None  # by a training batch
        self._warned = False
        self._settle()

    @property
    def momentum(self) -> float | None:
        """Weight of the new batch in the running statistics; None: every value seen weighs the same."""
        return self._running.momentum

    @momentum.setter
    def momentum(self, value: float | None) -> None:
        self._running.momentum = checks.momentum(self._who, value)

    @property
    def nonfinite(self) -> str:
        """What a channel does whose new running statistics would not be finite: "skip", "raise" or "propagate"."""
        return self._running.nonfinite

    @nonfinite.setter
    def nonfinite(self, value: str) -> None:
        self._running.nonfinite = checks.choice(self._who, "nonfinite", value, NONFINITE)

    @property
    def on_single(self) -> str:
        """What a training batch of one value per channel does: "raise", or use the "running" statistics."""
        return self._on_single

    @on_single.setter
    def on_single(self, value: str) -> None:
        on_single = checks.choice(self._who, "on_single", value, ON_SINGLE)
        if on_single == "running" and not self._track_running_stats:
            raise ValueError(f"{self._who}: on_single: expected 'raise' without running statistics, got 'running'")
        self._on_single: str = on_single

    @property
    def running_mean(self) -> ndarray | None:
        """The array that training moves in place; values assigned to it are written there. None without tracking."""
        return self._running.mean if self._track_running_stats else None

    @running_mean.setter
    def running_mean(self, value: ArrayLike) -> None:
        self._write_statistics("running_mean", self._running.mean, value)

    @property
    def running_var(self) -> ndarray | None:
        """As running_mean."""
        return self._running.var if self._track_running_stats else None

    @running_var.setter
    def running_var(self, value: ArrayLike) -> None:
        self._write_statistics("running_var", self._running.var, value)

    @property
    def num_batches_tracked(self) -> int | None:
        """Training batches that the running statistics have seen; None without tracking."""
        return self._running.batches if self._track_running_stats else None

    @property
    def num_batches_skipped(self) -> int | None:
        """Those of them in which some channel was left alone, as it was not finite; None without tracking.

        On a GPU they are counted as they come, but only whoever reads this waits for it; a warning comes then too.
        """
        if not self._track_running_stats:
            return None
        self._warn_once(self._running.look())
        return self._running.skipped

    def reset_running_stats(self) -> None:
        """Mean 0, variance 1, no batches."""
        self._running.reset()

    def reset_parameters(self) -> None:
        """gamma to 1 and beta to 0, and the running statistics too, as PyTorch does."""
        super().reset_parameters()
        self.reset_running_stats()

    def __call__(self, x: Any, weight: ArrayLike | None = None, out: ndarray | None = None) -> ndarray:
        """y, in the shape, type and memory order of x.

        weight: how much each value counts in the statistics of a training batch, or a mask: the shape of x without
        channels, or (N,). At weight 0 a value feeds nothing in, and y is computed there all the same.
        out: x itself, whose backward is lost then, or memory of its own.
        """
        given = None if out is None else {"x": x, "weight": weight, **self._own}
        if type(x) is not self._kind or x.dtype not in FLOATS:
            x = self._taken(x)
        who, axis, shape, slope, eps = self._who, self._axis, x.shape, self._slope, self._eps
        if len(shape) not in self._names or shape[axis] != self._num_features:
            raise wrong_shape(who, shape, self._num_features, self._names)
        gamma, beta, mean, var = self._constants or self._wide()
        seen = self._running.seen
        moving = rule = None
        if self._training or not self._track_running_stats:
            mean = var = None
            moving = self._moving
            if moving is not None:
                rule = moving.rule
        try:
            y, saved = channel_forward(who, x, gamma, beta, mean, var, eps, axis, slope, weight, out, rule, given, seen)
        except checks.SingleValueError:
            if self._on_single == "raise":
                raise
            moving = None
            *_, mean, var = self._wide()
            y, saved = channel_forward(who, x, gamma, beta, mean, var, eps, axis, slope, weight, out, None, given, seen)
        except FloatingPointError as error:
            raise self._not_finite(error) from None
        self._saved = saved
        if moving is not None:
            # With the line above, the one point at which this call does something to the layer: signals are looked at
            # between calls only, and before this one there is none.
            left = saved.kernels.settle(moving.rule, saved.stats, saved.count, y.size, saved.left)
            if type(left) is not int or left:
                self._warn_once(moving.note(left))
        return y

    forward = __call__

    @contextmanager
    def frozen_stats(self) -> Iterator[None]:
        """Training batches inside leave the running statistics and their counters alone."""
        moving, self._moving = self._moving, None
        try:
            yield
        finally:
            self._moving = moving

    @contextmanager
    def pooled_stats(self, replace: bool = False) -> Iterator[None]:
        """Training batches inside are pooled, each value weighing the same, and count as one batch at the end.

        replace: they take the place of what the running statistics were. After an exception nothing has moved; inside
        of frozen_stats nothing does either.
        """
        replace, running = checks.flag(self._who, "replace", replace), self._moving
        if running is not None and running is not self._running:
            raise RuntimeError(f"{self._who}: pooled_stats: expected one at a time, got one inside another")
        if running is None:
            yield
            return
        pool = self._moving = running.pool()
        try:
            yield
        finally:
            self._moving = running
        try:
            skipped = running.commit(pool, replace)
        except FloatingPointError as error:
            raise self._not_finite(error) from None
        self._warn_once(skipped)

    def to(self, device: str) -> Self:
        """As in every layer; not inside of pooled_stats."""
        if self._moving not in (None, self._running):
            raise RuntimeError(f"{self._who}: to: expected no pooled_stats around it, got one")
        if devices.arrays_on(self._who, device) is not self._kind:
            self._warn_once(self._running.look())
        return super().to(device)

    def _switches(self) -> list[str]:
        frozen = self._track_running_stats and self._moving is None
        return super()._switches() + ["frozen_stats"] * frozen

    def adopt(self, statistics: Statistics) -> None:
        """Take these for the running statistics, and share them with whoever else holds them."""
        self._running = statistics
        self._moving = statistics if self._track_running_stats else None
        self._settle()

    def _not_finite(self, error: FloatingPointError) -> checks.NonFiniteError:
        return checks.NonFiniteError(f"{self._who}: x: {error}, and nonfinite is 'raise'")

    def _warn_once(self, channels: int) -> None:
        if channels and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._who}: {channels} of {self._num_features} channels had a batch mean or variance that is not "
                "finite, and keep their running statistics (nonfinite='skip'); num_batches_skipped counts such batches "
                "from now on",
                RuntimeWarning,
                stacklevel=3,
            )

    def _write_statistics(self, name: str, to: ndarray, value: ArrayLike) -> None:
        if value is to:  # what an in-place operator leaves
            return
        if not self._track_running_stats:
            raise ValueError(f"{self._who}: {name}: expected no value without running statistics")
        a = checks.vector(self._who, name, value, to.shape, self._kind, "the layer")
        if name == "running_var" and (a < 0).any():
            raise ValueError(f"{self._who}: {name}: expected no negative values, got {a.min()}")
        to[...] = a

    def _wide(self) -> tuple[ndarray | None, ...]:
        running = self._running
        return (*super()._wide(), *(a.astype(FLOAT64, copy=False) for a in (running.mean, running.var)))

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
        """Copies of all arrays, under PyTorch's names.

        The values behind statistics with momentum None, for which PyTorch has no name, travel as an attribute of this
        dictionary. From any other, batches are taken to have been as large as the next one.
        """
        arrays = super().state_dict()
        running = self._running
        if self._track_running_stats and running.momentum is None and not running.counters[UNCOUNTED]:
            arrays.seen = running.seen.copy()
        return arrays

    def _load(self, found: Mapping[str, ndarray], state_dict: Mapping[str, Any]) -> None:
        running, seen = self._running, getattr(state_dict, "seen", None)
        seen = None if seen is None else moved(seen, self._kind)
        super()._load(found, state_dict)
        if "running_mean" in found:
            running.mean[...] = found["running_mean"]
        if "running_var" in found:
            running.var[...] = found["running_var"]
        if "num_batches_tracked" in found:
            running.load(int(found["num_batches_tracked"]), seen)

    def __getstate__(self) -> dict[str, Any]:
        self._warn_once(self._running.look())
        moving = self._running if self._track_running_stats else None  # whatever block it is in
        return super().__getstate__() | {"_moving": moving}


class BatchNorm1d(BatchNorm):
    """Batch normalization of (N, C) or (N, C, L)."""

    _POSITIONS = ("", "L")


class BatchNorm2d(BatchNorm):
    """Batch normalization of (N, C, H, W)."""

    _POSITIONS = ("HW",)


class BatchNorm3d(BatchNorm):
    """Batch normalization of (N, C, D, H, W)."""

    _POSITIONS = ("DHW",)


for _layer in (BatchNorm1d, BatchNorm2d, BatchNorm3d):
    _layer.__doc__ = f"{_layer.__doc__}\n\n{BatchNorm.__doc__}"
