"""`RunningNorm`: running statistics of a stream of observations, which normalize it."""

import inspect
from collections.abc import Callable
from functools import partial
from math import inf, prod
from typing import Any, Self

import numpy as np
from numpy import ndarray
from numpy.typing import DTypeLike

from bnorm import checks
from bnorm.kernels import BACKENDS, cpu, moved, view
from bnorm.running import Statistics
from bnorm.streams.statistics import Followed
from bnorm.streams.tree import grown

NONFINITE = ("skip", "raise")
DIRECT = frozenset(map(np.dtype, ("float32", "float64")))  # types that the kernels read and write without a conversion
SHORTEST = 1e-3  # the shortest half-life, in batches: values that are one batch older weigh 2^-1000


class RunningNorm(Followed):
    """Normalize observations by the statistics of all that have been seen: z = (obs - mean) / sqrt(var + eps).

    `z = rn(obs)` first updates the statistics, in training mode, and then normalizes. obs is one observation of that
    shape, or any number of them along leading axes. Each component has its own statistics.

    The first batch gives its own statistics: nothing is mixed in at the start. A component that is constant, or has had
    only one value, has no spread to divide by, and is only centered. Before the first value z is obs (clipped).

    A value that is not finite is left out, and counted in `skipped`: the other components of the same observation
    count, and so do the other observations. (In z it stays as it is, but infinity is clipped.)

    `a + b` has the statistics of both streams. `worker - base` has what the worker has seen since it was copied from
    base. So workers merge without counting their common history twice: base + (worker1 - base) + (worker2 - base). With
    a momentum or a half-life, that is as if base had seen what worker1 has seen, and then what worker2 has.

    Parameters
    ----------
    shape : int or tuple of int
        The shape of one observation; () for numbers.
    clip : float or None, default None
        z is limited to -clip and clip.
    eps : float, default 1e-8
        Added to the variance, inside the root.
    momentum : float or None, default None
        The weight of a new batch, whatever its size: the weight of the past is multiplied by 1 - momentum. The spread
        between batches counts, so batches may be single observations. With None, and no half-life, every value seen
        weighs the same.
    halflife : float or None, default None
        A value weighs half as much as one that came this many observations later. Instead of momentum.
    nonfinite : str, default "skip"
        How to treat a value that is NaN or infinite: "skip" leaves it out, "raise" raises NonFiniteError, and nothing
        has changed.
    dtype : str or numpy.dtype, default "float64"
        The type of mean, var and std, float64 or float32. What is summed is float64 in any case.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> rn = bnorm.RunningNorm(2, clip=5)
    >>> rn(np.array([[1.0, 10.0], [3.0, 30.0]]))
    array([[-1., -1.],
           [ 1.,  1.]])
    >>> rn(np.array([5.0, np.nan])).round(3)
    array([1.225,   nan])
    >>> rn.mean, rn.count, rn.skipped
    (array([ 3., 20.]), array([3., 2.]), array([0, 1]))
    """

    __slots__ = ()

    def __init__(
        self,
        shape: int | tuple[int, ...] | list[int],
        *,
        clip: float | None = None,
        eps: float = 1e-8,
        momentum: float | None = None,
        halflife: float | None = None,
        nonfinite: str = "skip",
        dtype: "DTypeLike" = "float64",
    ) -> None:
        who = "RunningNorm"
        self._shape = _shape(who, shape)
        self._who = who = f"RunningNorm({_shown(self._shape)})"
        self.clip, self.eps = clip, eps
        self._dtype = checks.parameter_dtype(who, dtype)
        self._momentum, self._halflife = _fading(who, momentum, halflife)
        nonfinite = checks.choice(who, "nonfinite", nonfinite, NONFINITE)
        age = self._halflife if self._momentum is None else _age(self._momentum)
        size = prod(self._shape)
        self._statistics = Statistics(np.zeros(size), np.ones(size), None, 0, nonfinite, from_data=True, halflife=age)
        self._skipped = np.zeros(size, np.int64)
        self._training, self._device = True, "cpu"
        self._settle()

    # Normalizing --------------------------------------------------------------------------------------------------

    def __call__(self, obs: Any) -> ndarray | Any:
        """Update the statistics, in training mode, and normalize.

        Parameters
        ----------
        obs : array_like
            One observation, or several along leading axes. A batch without observations changes nothing.

        Returns
        -------
        z : ndarray
            In the shape and dtype of obs; float64 for bools and integers. A number for a number.
        """
        return self._through(obs, self._training, True)

    def update(self, obs: Any) -> None:
        """Update the statistics, in either mode, without normalizing.

        Parameters
        ----------
        obs : array_like
            As in a call: one observation, or a batch of them.
        """
        self._through(obs, True, False)

    def normalize(self, obs: Any) -> Any:
        """Normalize by the present statistics, which do not change.

        Parameters
        ----------
        obs : array_like
            As in a call: one observation, or a batch of them.

        Returns
        -------
        z : ndarray
            As in a call.
        """
        return self._through(obs, False, True)

    @np.errstate(all="ignore")
    def denormalize(self, z: Any) -> Any:
        """The reverse of `normalize`, except for what `clip` has cut off.

        Parameters
        ----------
        z : array_like
            What a call returned: one normalized observation, or a batch of them.

        Returns
        -------
        obs : ndarray
            In the shape and dtype of z; float64 for bools and integers.
        """
        a = self._taken(z, "z")
        wide = a.astype(np.float64)
        wide *= self._spread().reshape(self._shape)  # in place, as a product of arrays without axes is a number
        wide += self._statistics.mean.reshape(self._shape)
        return _like(z, wide.astype(a.dtype if a.dtype.kind == "f" or a.dtype.kind == "V" else np.float64))

    def train(self, mode: bool = True) -> Self:
        """Set training mode, in which calls update the statistics; train(False) is eval(). Returns the object."""
        self._training = checks.flag(self._who, "mode", mode)
        return self

    # Settings -----------------------------------------------------------------------------------------------------

    @property
    def clip(self) -> float | None:
        """The largest absolute value of z, or None."""
        return self._clip

    @clip.setter
    def clip(self, value: float | None) -> None:
        limit = inf if value is None else checks.number(self._who, "clip", value)
        if not limit > 0:
            raise ValueError(f"{self._who}: clip: expected a number above 0, or None, got {value!r}")
        self._clip, self._limit = (None if value is None else limit), limit

    @property
    def eps(self) -> float:
        """Added to the variance, inside the root."""
        return self._eps

    @eps.setter
    def eps(self, value: float) -> None:
        self._eps = checks.epsilon(self._who, value)

    @staticmethod
    def tree(space_or_example: Any, **options: Any) -> Any:
        """A normalizer of observations that are dictionaries or tuples, nested to any depth.

        Parameters
        ----------
        space_or_example : gymnasium.Space, or an observation
            The arrays of a Box are normalized, and so are the float arrays of an example. Everything else, such as the
            integers of a Discrete space, or text, is passed on as it is. An array of integers, such as an image, is
            normalized if it comes from a Box, but not if it is part of an example, where it may as well be a label;
            give an example of floats, or the space. The tree then takes observations of integers.
        **options
            As for RunningNorm, for every array.

        Returns
        -------
        RunningNormTree or RunningNorm
            With the same methods, for whole observations; `tree["key"]` is the normalizer of one part. Where the space
            is a Box, or the example an array, that is a RunningNorm.
        """
        return grown(RunningNorm, space_or_example, options)

    # Inside -------------------------------------------------------------------------------------------------------

    def _through(self, obs: Any, update: bool, maps: bool) -> Any:
        """Call the kernels' `online` for observations of any type."""
        if type(obs) is self._kind and obs.dtype in DIRECT and self._fits(obs):
            weights = None if self._halflife is None or not update else self._weights(obs)
            rule = self._statistics.rule
            return self._online(obs, rule, self._skipped, self._eps, self._limit, update, maps, weights, self._whole)
        x = self._taken(obs, "obs")
        online, end = self._prepared(x, update, maps)
        try:
            return end(obs, online())
        except FloatingPointError:
            bad = (~np.isfinite(x)).reshape(-1, prod(self._shape)).any(axis=0)
            found = f"others in {int(bad.sum())} of {bad.size} components" if bad.any() else "values too large for it"
            raise checks.NonFiniteError(
                f"{self._who}: obs: expected finite values with a finite variance, as nonfinite='raise', got {found}"
            ) from None

    def _prepared(self, x: ndarray, update: bool, maps: bool) -> tuple[Callable[[], Any], Callable[[Any, Any], Any]]:
        """Return the compiled call for an array x of `_taken`, and a function end(obs, its result) that gives z."""
        kind = x.dtype.newbyteorder("=")
        half = kind.itemsize == 2 and kind.kind not in "bui"
        whole = view.dense(x, np.float32 if half else kind)
        weights = self._weights(x) if update and self._halflife is not None else None
        options = (self._eps, self._limit, update, maps, weights, self._whole)
        online = partial(self._online, whole, self._statistics.rule, self._skipped, *options)
        return online, partial(_ended, kind if half else None)

    def _fits(self, obs: ndarray) -> bool:
        """Whether the kernels can read an array directly."""
        shape, own = obs.shape, self._shape
        flags = obs.flags
        return (
            (shape == own or not own or shape[-len(own) :] == own)
            and flags.c_contiguous
            and (self._kind is not ndarray or flags.aligned)
            and self._statistics._nonfinite == "skip"
        )

    def _taken(self, obs: Any, name: str) -> ndarray:
        x = checks.real(self._who, name, obs, self._kind, "the RunningNorm")
        if x.dtype.kind in "bui":
            if x.dtype.name not in BACKENDS[self._kind].INTEGERS:
                x = x.astype(np.float64)
        elif x.dtype.name not in BACKENDS[self._kind].FLOATS:
            raise TypeError(f"{self._who}: {name}: expected float16, float32 or float64, got dtype {x.dtype}")
        own = self._shape
        if own and x.shape[-len(own) :] != own:
            raise ValueError(f"{self._who}: {name}: expected shape {own}, or (N, {_inside(own)}), got {x.shape}")
        return x

    def _weights(self, obs: ndarray) -> ndarray | None:
        """Return the weights of rows that fade one by one, relative to the last; None if all weigh the same."""
        rows = obs.size // self._skipped.size
        if rows <= 1 or self._halflife is None:
            return None
        if self._fading is None or len(self._fading) != rows:
            ages = np.arange(rows - 1, -1, -1) / self._halflife
            self._fading = moved(cpu.halved(-ages).reshape(rows, 1), self._kind)
        return self._fading

    def __repr__(self) -> str:
        shown = [self._who.removesuffix(")")]
        for name, argument in inspect.signature(RunningNorm).parameters.items():
            value = getattr(self, name)
            if argument.default is not argument.empty and value != argument.default:
                shown.append(f"{name}={value.name if isinstance(value, np.dtype) else value!r}")
        return f"{', '.join(shown + ([] if self._training else ['training=False']))})"


def _shape(who: str, shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    return tuple(checks.positive(who, "shape", n) for n in sizes)


def _shown(shape: tuple[int, ...]) -> str:
    return repr(shape[0] if len(shape) == 1 else shape)


def _inside(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def _fading(who: str, momentum: Any, halflife: Any) -> tuple[float | None, float | None]:
    """momentum and halflife, checked."""
    if momentum is not None and halflife is not None:
        raise ValueError(f"{who}: halflife: expected None with momentum={momentum!r}, got {halflife!r}")
    momentum = checks.momentum(who, momentum)
    if momentum == 0:
        raise ValueError(f"{who}: momentum: expected a number above 0, or None, got {momentum!r}")
    if halflife is not None:
        given, halflife = halflife, checks.number(who, "halflife", halflife)
        if not 0 < halflife < inf:
            raise ValueError(f"{who}: halflife: expected a finite number above 0, or None, got {given!r}")
    return momentum, halflife


def _age(momentum: float) -> float:
    """Return the half-life, in batches, of a weight that is multiplied by 1 - momentum with every batch.

    In decimals, as the logarithms of C libraries differ in their last bits.
    """
    from decimal import Context, Decimal  # late, as it takes a millisecond

    if momentum == 1:
        return SHORTEST
    digits = Context(prec=40 - Decimal(momentum).adjusted())
    return float(digits.divide(-digits.ln(2), digits.ln(digits.subtract(1, Decimal(momentum)))))


def _ended(half: Any, given: Any, z: Any) -> Any:
    """Convert a result to the type of half precision that was given, if any. None if there is no result."""
    if z is None:
        return None
    if half is not None:
        with np.errstate(over="ignore", under="ignore"):
            z = z.astype(half)
    return _like(given, z)


def _like(given: Any, a: Any) -> Any:
    """A result, as a number if a number was given."""
    return a[()] if a.ndim == 0 and isinstance(a, ndarray) and not isinstance(given, ndarray) else a
