"""Integers of any size, one per channel, as columns of limbs. Exact sums are kept in them."""

from typing import NamedTuple

import numpy as np
from numpy import ndarray

from bnorm.kernels.cpu.exact.entries import combined

BITS = 32  # bits of a limb


class Integers(NamedTuple):
    """An integer per channel: limb i, a row of an int64 array (n, C), counts multiples of 2^(32 (first + i)).

    The kernels always use one form (`kernels/cpu/exact/entries.pyx`), so equal integers have equal arrays.
    """

    first: int
    limbs: ndarray

    @classmethod
    def combined(cls, items: "list[Integers]", factors: list[int]) -> "Integers":
        """Return the sum of all items, each times its factor."""
        return cls(*combined(items, factors))

    @classmethod
    def beside(cls, items: "list[Integers]") -> "Integers":
        """Return the channels of all items, one after the other."""
        some = [(first, first + len(limbs)) for first, limbs in items if len(limbs)] or [(0, 0)]
        begin, end = min(first for first, _ in some), max(end for _, end in some)
        wide, c = np.zeros((end - begin, sum(limbs.shape[1] for _, limbs in items)), np.int64), 0
        for first, limbs in items:
            if len(limbs):
                wide[first - begin : first - begin + len(limbs), c : c + limbs.shape[1]] = limbs
            c += limbs.shape[1]
        return cls.combined([cls(begin, wide)], [1])

    def equals(self, other: "Integers") -> bool:
        """Whether the integers of all channels are equal."""
        return self.first == other.first and np.array_equal(self.limbs, other.limbs)

    def numbers(self) -> list[int]:
        """Return Python integers, in units of 2^(32 first)."""
        n, channels = self.limbs.shape
        data, size = self.limbs.T.astype("<u4").tobytes(), 4 * n
        return [int.from_bytes(data[c * size : (c + 1) * size], "little", signed=True) for c in range(channels)]

    def times(self, factor: int, down: int) -> "Integers":
        """Return the integers times any factor, in units that are 2^(32 down) smaller."""
        numbers = [factor * n for n in self.numbers()] or [0] * self.limbs.shape[1]
        size = max((n.bit_length() for n in numbers), default=0) // BITS + 1
        data = b"".join(n.to_bytes(4 * size, "little", signed=True) for n in numbers)
        limbs = np.frombuffer(data, "<u4").reshape(len(numbers), size).T.astype(np.int64, order="C")
        limbs[-1] -= (limbs[-1] >> (BITS - 1)) << BITS  # the last limb has the sign
        return Integers.combined([Integers(self.first - down, limbs)], [1])

    def packed(self) -> ndarray:
        """Return the limbs packed in pairs, of which the last has the sign: half the size."""
        limbs = self.limbs
        if len(limbs) % 2:
            limbs = np.concatenate([limbs, limbs[-1:] >> BITS])
        packed: ndarray = (limbs[0::2] & (2**BITS - 1)) | (limbs[1::2] << BITS)
        return packed

    @classmethod
    def unpacked(cls, first: int, packed: ndarray) -> "Integers":
        """Return the integers of a result of `packed`."""
        limbs = np.empty((2 * len(packed), packed.shape[1]), np.int64)
        limbs[0::2] = packed & (2**BITS - 1)
        limbs[1::2] = packed >> BITS
        limbs[1:-1:2] &= 2**BITS - 1
        return cls.combined([cls(first, limbs)], [1])
