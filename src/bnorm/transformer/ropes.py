"""A sequence of sets of values, and the moments of all of them: it merges, and never subtracts.

The sets are the leaves of a balanced binary tree (a rope). Each node has the moments of all sets below it. A change
makes new nodes from a leaf to the root, and leaves the old tree as it is. So an old tree can be kept without a copy.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from numpy import ndarray

from bnorm.kernels import cpu

HEAVY = 2  # a node may have at most this many times the sets of the node beside it


class Node(NamedTuple):
    """A set, or several, one after the other."""

    parts: ndarray  # their moments, as in `Moments`
    sets: int
    first: int  # the key of the first set
    left: "Node | None"
    right: "Node | None"
    item: Any  # the set, in a leaf


def leaf(parts: ndarray, key: int, item: Any) -> Node:
    """Return the node of one set. Keys, such as times, must not decrease from one set to the next."""
    return Node(parts, 1, key, None, None, item)


def of(leaves: Sequence[Node]) -> Node | None:
    """Return a tree of these sets, in this order; None if there are none."""
    if len(leaves) < 2:
        return leaves[0] if leaves else None
    half = len(leaves) // 2
    return joined(of(leaves[:half]), of(leaves[half:]))


def joined(a: Node | None, b: Node | None) -> Node | None:
    """Return a tree of the sets of a, followed by those of b."""
    return b if a is None else a if b is None else _join(a, b)


def first(node: Node) -> Any:
    """The first set."""
    while node.left is not None:
        node = node.left
    return node.item


def last(node: Node) -> Any:
    """The last set."""
    while node.right is not None:
        node = node.right
    return node.item


def rest(node: Node) -> Node | None:
    """Return the tree without its first set."""
    if node.left is None or node.right is None:
        return None
    return joined(rest(node.left), node.right)


def replaced(node: Node, key: int, change: Callable[[Any], Node | None]) -> Node | None:
    """Replace the last set whose key is not above `key`, or else the first set, by what `change` makes of it."""
    if node.left is None or node.right is None:
        return change(node.item)
    if key < node.right.first:
        return joined(replaced(node.left, key, change), node.right)
    return joined(node.left, replaced(node.right, key, change))


def after(node: Node, key: int) -> int | None:
    """The key of the first set whose key is above this one."""
    if node.left is None or node.right is None:
        return node.first if key < node.first else None
    if key >= node.right.first:
        return after(node.right, key)
    found = after(node.left, key)
    return node.right.first if found is None else found


def items(node: Node | None) -> Iterator[Any]:
    """The sets."""
    if node is not None:
        if node.left is None:
            yield node.item
        else:
            yield from items(node.left)
            yield from items(node.right)


def shape(node: Node | None) -> str:
    """Return the shape of the tree: 1 for a node, followed by the two below it; 0 for a set."""
    if node is None:
        return ""
    return "0" if node.left is None else f"1{shape(node.left)}{shape(node.right)}"


def built(shape: str, leaves: Sequence[Node]) -> Node | None:
    """Return a tree of this shape with these sets; an error of any kind if they do not fit."""
    steps, given = iter(shape), iter(leaves)

    def build() -> Node:
        return _pair(build(), build()) if next(steps) == "1" else next(given)

    node = build() if shape else None
    if next(steps, None) is not None or next(given, None) is not None:
        raise ValueError("a shape of other sets")
    return node


def _pair(a: Node, b: Node) -> Node:
    return Node(cpu.merge([a[0], b[0]]), a[1] + b[1], a[2], a, b, None)


def _join(a: Node, b: Node) -> Node:
    if a[1] > HEAVY * b[1]:
        return _balanced(a.left, _join(a.right, b))  # type: ignore[arg-type]  # a node of several sets has both
    if b[1] > HEAVY * a[1]:
        return _balanced(_join(a, b.left), b.right)  # type: ignore[arg-type]
    return _pair(a, b)


def _balanced(a: Node, b: Node) -> Node:
    """Return a node of a and b, rotated if one side has become too heavy."""
    if a[1] > HEAVY * b[1]:
        outer, inner = a.left, a.right
        if inner[1] < 2 * outer[1]:  # type: ignore[index]
            return _pair(outer, _pair(inner, b))  # type: ignore[arg-type]
        return _pair(_pair(outer, inner.left), _pair(inner.right, b))  # type: ignore[arg-type,union-attr]
    if b[1] > HEAVY * a[1]:
        inner, outer = b.left, b.right
        if inner[1] < 2 * outer[1]:  # type: ignore[index]
            return _pair(_pair(a, inner), outer)  # type: ignore[arg-type]
        return _pair(_pair(a, inner.left), _pair(inner.right, outer))  # type: ignore[arg-type,union-attr]
    return _pair(a, b)
