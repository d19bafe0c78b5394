"""Where the blocks of a device together keep an array from its sums to the map.

They all run at the same time, and meet in between: each writes its sums, and when all have, each joins those of some
channels. So memory is read once, in one launch, where two launches would read it twice.
"""

from .limits import STATIC_SHARED, Limits
from .shapes import VECTOR_BYTES, Shape, cdiv

LONE = 64 << 10  # bytes that a block reads sooner by itself than with others that it has to meet
LEAST_STEPS = 2  # of a thread, before more blocks are worth their partial sums


def cut(shape: Shape, itemsize: int, arrays: int, limits: Limits) -> tuple[int, int, int, int] | None:
    """Steps of a chunk, chunks, the steps that a thread keeps, and the bytes of a block; None where they do not meet.

    They do where channels lie in rows, in whole vectors; but not where each tile has whole channels, and is small or
    one of so many that most processors have one.
    """
    step = shape.across * VECTOR_BYTES * arrays  # bytes
    if not limits.meetings or shape.tiles > limits.processors:
        return None
    if not shape.steps or shape.base != 1 or shape.vector * itemsize != VECTOR_BYTES:
        return None
    if shape.group == 1 and (shape.steps * step <= LONE or 2 * shape.tiles > limits.processors):
        return None
    chunks = max(1, min(limits.processors // shape.tiles, shape.steps // (LEAST_STEPS * shape.down)))
    keep = cdiv(shape.steps, chunks * shape.down)
    shared = keep * shape.down * step
    if shared > limits.shared - STATIC_SHARED["channels"]:
        return None
    chunk = keep * shape.down
    return chunk, cdiv(shape.steps, chunk), keep, shared
