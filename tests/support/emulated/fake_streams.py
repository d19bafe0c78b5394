"""Streams, graphs and memory pools of the stand-in for CuPy, with what goes wrong where two share memory.

A pool gives a block that nobody holds any more to the next who asks for its size, as CuPy's does. What is captured in a
graph runs when the graph is launched, with the addresses of its capture, whoever has that memory by then.
"""

import threading
from contextlib import contextmanager

import numpy as np

ROUND = 512  # bytes


class Lease:
    """A block of a pool, which goes back there with the last array that lies in it."""

    def __init__(self, pool, block, size):
        self.pool, self.block = pool, block
        self.__array_interface__ = block[:size].__array_interface__

    def __del__(self):
        self.pool.free.setdefault(self.block.size, []).append(self.block)


class MemoryPool:
    def __init__(self, allocator=None):
        self.free = {}  # blocks by size

    def malloc(self, size):
        size = -(-size // ROUND) * ROUND
        blocks = self.free.get(size)
        block = blocks.pop() if blocks else np.empty(size, np.uint8)
        block.fill(0xFF)
        return Lease(self, block, size)


class Graph:
    def __init__(self, nodes):
        self.nodes = nodes

    def launch(self, stream=None):
        for node in self.nodes:
            node()


class Stream:
    def __init__(self, ptr):
        self.ptr, self.nodes = ptr, None

    def is_capturing(self):
        return self.nodes is not None

    def begin_capture(self, mode=None):
        assert self.ptr, "the default stream cannot be captured"
        self.nodes = []

    def end_capture(self):
        nodes, self.nodes = self.nodes, None
        return Graph(nodes)

    def __enter__(self):
        self.before, of_thread.stream = of_thread.stream, self
        return self

    def __exit__(self, *error):
        of_thread.stream = self.before


default_pool = MemoryPool()
null = Stream(0)


class OfThread(threading.local):
    def __init__(self):
        self.stream, self.allocator = null, default_pool.malloc


of_thread = OfThread()


def do(node):
    """Now, or each time that the graph runs which the current stream captures."""
    stream = of_thread.stream
    if stream.nodes is None:
        node()
    else:
        stream.nodes.append(node)


def memory(size):
    """Bytes by the current allocator."""
    return np.asarray(of_thread.allocator(size))


@contextmanager
def using_allocator(allocator):
    before, of_thread.allocator = of_thread.allocator, allocator
    try:
        yield
    finally:
        of_thread.allocator = before
