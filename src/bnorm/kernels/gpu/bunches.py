"""How the partial sums of many blocks are joined: all by the block that comes last, or in bunches first.

A thread loads WINDOW numbers at a time and then waits for them, which takes most of a join. So of many sums the last
block of each bunch joins those, at the same time as others do, and the last one of these joins what they have found. It
takes one more ticket to find out which that is.
"""

from math import isqrt
from typing import NamedTuple

THREADS = 256
WINDOW = 16  # numbers: AHEAD of joins.cu has them
TICKET = 2  # how many windows take as long as a ticket


class Bunches(NamedTuple):
    bunch: int  # chunks of one
    turns: int  # windows that wait for one another, tickets counted as such
    behind: int  # float64 numbers of each channel, behind the partial sums of the chunks
    tickets: int  # of channels that are joined together


def bunches(chunks: int, items: int, channels: int, parts: int) -> Bunches:
    """Of so many chunks, with `items` partial sums of `parts` numbers each. A block joins `channels` at once.

    The order of sums depends on it, so it is the same whatever follows them.
    """

    def turns(items: int) -> int:  # as the Slices of joins.cu share them out
        slices = 1
        while 2 * slices * max(channels, 1) <= THREADS and slices < items:
            slices *= 2
        windows = -(-items // (slices * (WINDOW // parts)))
        passes = 2 if parts > 2 and windows > 1 else 1  # moments need the mean first
        return windows * passes * -(-channels // (THREADS // slices))

    once = Bunches(chunks, turns(chunks * items), 0, 1)
    bunch = isqrt(chunks - 1) + 1
    many = -(-chunks // bunch)
    twice = Bunches(bunch, turns(bunch * items) + TICKET + turns(many), parts * many, many + 1)
    return twice if many > 1 and twice.turns < once.turns else once
