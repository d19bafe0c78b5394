"""How the partial sums of many blocks are joined: all of them by the block that finishes last, or first in bunches.

A thread loads WINDOW numbers at a time and then waits for them, which takes most of the time of a join. So if there are
many sums, the last block of each bunch of blocks joins the sums of its bunch, at the same time as others do, and the
last one of these blocks joins their results. A ticket, which blocks increment, tells them which one is the last.
"""

from math import isqrt
from typing import NamedTuple

THREADS = 256
WINDOW = 16  # numbers that a thread loads before it uses the first: AHEAD of joins.cu
TICKET = 2  # a ticket takes as long as this many windows


class Bunches(NamedTuple):
    bunch: int  # chunks of a bunch
    turns: int  # windows that are loaded one after the other; a ticket counts as TICKET of them
    behind: int  # float64 numbers of each channel for the sums of bunches, behind the partial sums of the chunks
    tickets: int  # for each group of channels that are joined together


def bunches(chunks: int, items: int, channels: int, parts: int) -> Bunches:
    """Return how to join `chunks` chunks, each with `items` partial sums of `parts` numbers for a channel.

    A block joins `channels` channels at once. The order of sums depends on the result, so the result does not depend on
    what follows the sums.
    """

    def turns(items: int) -> int:  # threads share the items as Slices of joins.cu says
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
