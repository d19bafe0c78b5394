"""When all blocks of a device together keep an array in shared memory, from its sums to the map.

All blocks run at the same time, and meet in between, that is, they wait for each other: each writes its sums, and when
all have done so, each joins the sums of some channels. So one launch reads memory once; two would read it twice.
"""

from .limits import STATIC_SHARED, Limits
from .shapes import VECTOR_BYTES, Shape, cdiv

LONE = 64 << 10  # up to so many bytes, one block alone is faster than several that have to meet
LEAST_STEPS = 2  # steps of a thread: with fewer, more blocks are not worth their partial sums


def cut(shape: Shape, itemsize: int, arrays: int, limits: Limits) -> tuple[int, int, int, int] | None:
    """Return steps of a chunk, chunks, the steps that a thread keeps, and bytes of a block; None if blocks do not meet.

    They meet if channels lie in rows of whole vectors, and all of it can be kept. They do not if each tile has whole
    channels, and tiles are either small or so many that most processors have one.
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
