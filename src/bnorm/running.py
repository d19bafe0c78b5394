"""How statistics move over time: the weight of each update.

    average   statistics += share (batch - statistics): an exponential moving average
    pool      every value counts by its weight, wherever the batches were cut, with the spread between batches

A layer's statistics (`Running`) are moved by the kernels, in the pass that has the batch in hand; a transformer's
(`Stream`), which keep more digits and forget by other rules, by the moments of a batch. Both change their arrays in
place: others hold these too.
"""

from types import ModuleType
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.kernels import BACKENDS
from bnorm.moments import Moments, merged

LATER = 256  # batches on a device, whose flags are kept until somebody asks; then they are counted, there
Target = tuple[ndarray, ndarray, float, ndarray | None, int, str]  # what the kernels' `forward` and `move` move


class Running:
    """The running statistics of a layer, float64 or float32 (C,), from mean 0 and variance 1 on.

    momentum None: every value weighs the same, and `seen` counts those of each channel.

    `skipped` are batches in which a channel was left alone. A device tells by flags, one per channel, at which nobody
    looks while batches go on, as the host would have to wait for each of them: `look` does.
    """

    __slots__ = (
        *("batches", "ddof", "mean", "momentum", "nonfinite", "recounts", "seen", "skipped", "var"),
        *("counted", "flags"),
    )

    def __init__(
        self, mean: ndarray, var: ndarray, momentum: float | None = None, ddof: int = 0, nonfinite: str = "skip"
    ) -> None:
        self.mean, self.var = mean, var
        self.momentum, self.ddof, self.nonfinite = momentum, ddof, nonfinite
        self.seen = np.zeros_like(mean, np.float64)
        self.batches = self.skipped = 0
        self.flags: list[ndarray] = []  # of batches not counted yet
        self.counted: list[ndarray] = []  # of those before: their number, and flags of all of them, on the device
        self.recounts = False  # `seen` got lost on the way here: the next batch says how large batches are

    def target(self) -> Target:
        """What moves: by averaging, or where that is given by pooling with `seen`."""
        if self.momentum is None:
            return self.mean, self.var, 0.0, self.seen, self.ddof, self.nonfinite
        return self.mean, self.var, self.momentum, None, self.ddof, self.nonfinite

    def pool(self) -> "Running":
        """Empty statistics for several batches that will count as one."""
        mean = np.zeros_like(self.mean, np.float64)
        return Running(mean, np.ones_like(mean), None, 0, self.nonfinite)

    def commit(self, pool: "Running", kernels: ModuleType, replace: bool) -> int:
        """Let in what was pooled, as one batch; with `replace` it takes the place of what stood there.

        Returns the number of channels that were left alone, as `note` does.
        """
        if not pool.batches:
            return 0
        if self.recounts:
            self.recount(pool.seen)
        mean, var, momentum, seen, ddof, nonfinite = self.target()
        if replace:
            seen = np.zeros_like(self.seen)
        left = kernels.move((mean, var, momentum, seen, ddof, nonfinite), pool.seen, pool.mean, pool.var)
        if replace and seen is not None:
            self.seen[...] = seen
        self.batches += 1
        if pool.flags or pool.counted:
            pool.note(left)
            return self._keep(pool.count()[1])
        return self.note(left, pool.skipped > 0)

    def note(self, left: Any, before: bool = False) -> int:
        """One batch more, and the channels that it left alone; before: some part of it left others alone.

        Returns their number; 0 where a device has to be asked for it, which only `look` does.
        """
        if isinstance(left, int):
            self.skipped += before or left > 0
            return left
        return self._keep(left.flags)

    def _keep(self, flags: ndarray) -> int:
        if not BACKENDS[type(flags)].capturing():  # or there is nothing in them yet
            self.flags.append(flags)
        if len(self.flags) >= LATER:
            self.count()
        return 0

    def count(self) -> list[ndarray]:
        """Count the batches whose flags are kept, on their device: their number, and flags of them all."""
        if self.flags:
            flags = np.stack(self.flags) != 0
            number, channels = flags.any(1).sum(), flags.any(0)
            if self.counted:
                number, channels = number + self.counted[0], channels | self.counted[1]
            self.counted, self.flags = [number, channels], []
        return self.counted

    def look(self) -> int:
        """Bring `skipped` up to date, waiting for the device; the number of channels that were left alone since."""
        if not self.flags and not self.counted:
            return 0
        number, channels = self.count()
        skipped, left = BACKENDS[type(number)].numbers(number, channels.sum())
        self.counted = []
        self.skipped += int(skipped)
        return int(left)

    def recount(self, values: ndarray | float) -> None:
        """Take the batches so far to have been as large as one of so many values per channel."""
        self.seen[...] = self.batches * values
        self.recounts = False

    def reset(self) -> None:
        """As if there had been no batch."""
        self.mean[...], self.var[...], self.seen[...] = 0, 1, 0
        self.batches = self.skipped = 0
        self.flags, self.counted = [], []
        self.recounts = False


class Stream:
    """The statistics of a stream of tables, float64 (C,): mean and variance of what was seen, NaN before.

    weight: of all that is behind a feature. Pooled, it is the sum of the weights of its values; averaged, of its
    batches, of which the newest weighs 1. It fades while nothing of a feature is seen, its mean and variance do not.
    """

    __slots__ = ("low", "mean", "square", "var", "weight")

    def __init__(self, mean: ndarray, var: ndarray) -> None:
        self.mean, self.var = mean, var  # of the owner; in-place changes are seen here
        self.weight = np.zeros(mean.shape, like=mean)
        self.square = np.zeros(mean.shape, like=mean)  # sum of w f^2 for values of weight w that have faded to w f
        self.low = np.zeros(mean.shape, like=mean)  # mean + low is the mean: what float64 rounds off

    def average(self, batch: Moments, momentum: float, ddof: int) -> None:
        """Exponential moving average of batch means and variances, its weights 1, 1 - m, (1 - m)^2 ... normalized."""
        seen, faded = batch.count > 0, self.weight * (1 - momentum)
        weight = faded + seen
        share = seen / np.where(weight == 0, 1, weight)
        first = seen & (faded == 0)
        var = batch.m2 / _divisor(batch.count, batch.count, ddof)
        mean = np.where(first, batch.mean, self.mean + share * (batch.mean - self.mean))
        var = np.where(first, var, self.var + share * (var - self.var))
        self._move(seen, mean, var, np.zeros(mean.shape, like=mean), weight, weight)

    def pool(self, batch: Moments, ddof: int, fade: float = 1.0, square: ndarray | None = None) -> None:
        """Values of the batch beside the values so far, which weigh `fade` times what they did.

        square: sum of w f^2 in the batch, where its values have faded: w f is what they weigh in its count.
        """
        faded, faded_square = self.weight, self.square
        if fade != 1:
            faded, faded_square = faded * fade, faded_square * (fade * fade)
        if type(faded) is ndarray and not faded.any():  # nothing to merge with: this is what a fit costs
            _, mean, m2, low = batch.parts
        else:
            m2 = self.var * _divisor(faded, faded_square, ddof)
            before = np.array([faded, self.mean, m2, self.low], like=faded)
            _, mean, m2, low = merged(before, batch.parts)
        weight, square = faded + batch.count, faded_square + (batch.count if square is None else square)
        self._move(batch.count > 0, mean, m2 / _divisor(weight, square, ddof), low, weight, square)

    def moments(self, ddof: int) -> Moments:
        """What is behind the statistics, as a batch that another stream may pool beside its own."""
        return Moments.of(self.weight, self.mean, self.var * _divisor(self.weight, self.square, ddof), self.low)

    def _move(self, seen: ndarray, mean: ndarray, var: ndarray, low: ndarray, weight: ndarray, square: ndarray) -> None:
        np.copyto(self.mean, mean, where=seen)
        np.copyto(self.var, var, where=seen)
        np.copyto(self.low, low, where=seen)
        self.weight[...], self.square[...] = weight, square


def _divisor(weight: ndarray, square: ndarray, ddof: int) -> ndarray:
    """What m2 is divided by: with ddof 1 unbiased, where there are values enough; 1 where there are none.

    Values that are counted whole have square = weight, and this is weight - ddof.
    """
    whole = np.where(weight == 0, 1, weight)
    if not ddof:
        return whole
    divisor = whole - ddof * square / whole
    return np.where(divisor > 0, divisor, whole)
