"""`layer.vjp`, which returns the backward of one forward, and `no_backward`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from bnorm.passes import Saved

if TYPE_CHECKING:
    from numpy import ndarray
    from numpy.typing import ArrayLike


class Layer(Protocol):
    """The part of a layer that this module needs."""

    _who: str
    _saved: Saved | None

    def __call__(self, x: Any, *args: Any, **options: Any) -> ndarray: ...
    def _pulled(self, holder: Any, dy: Any, saved: Saved, out: ndarray | None) -> ndarray: ...


OPEN: list[Taker] = []  # of all threads. It is nearly always empty, so a forward tests this first


class Taker:
    """Takes what forwards in this thread save: for the `vjp` of one layer, or, without a layer, to drop it."""

    __slots__ = ("layer", "saved", "thread")

    def __init__(self, layer: Layer | None) -> None:
        self.thread, self.layer = get_ident(), layer
        self.saved: Saved | None = None


def keep(layer: Layer, saved: Saved) -> None:
    """Give what a forward saves to the innermost taker, or else to the layer."""
    thread = get_ident()
    for taker in reversed(tuple(OPEN)):
        if taker.thread == thread and taker.layer is layer:
            taker.saved = saved
            return
        if taker.thread == thread and taker.layer is None:
            layer._saved = None
            return
    layer._saved = saved


def drops() -> bool:
    """Whether this thread is inside `no_backward`."""
    return any(taker.layer is None and taker.thread == get_ident() for taker in tuple(OPEN))


@contextmanager
def no_backward() -> Iterator[None]:
    """Forwards inside this block, in this thread, keep nothing for a backward.

    Otherwise a forward keeps x until its backward. In evaluation and inference there is no backward, so x would stay in
    memory until the next forward. `backward` after a forward inside this block is a RuntimeError. `layer.vjp` works as
    usual inside it.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> bn = bnorm.BatchNorm1d(2).eval()
    >>> with bnorm.no_backward():
    ...     y = bn(np.ones((3, 2)))
    """
    taker = Taker(None)
    try:  # includes the append, so that an interrupt right after it removes the taker too
        OPEN.append(taker)
        yield
    finally:
        OPEN.remove(taker)


def forward_and_pull(layer: Layer, x: Any, *args: Any, **options: Any) -> tuple[ndarray, Pull]:
    """A forward, and its backward, which belongs to the caller instead of the layer."""
    taker = Taker(layer)
    try:
        OPEN.append(taker)
        y = layer(x, *args, **options)
    finally:
        OPEN.remove(taker)
    if taker.saved is None:
        raise RuntimeError(f"{layer._who}: vjp: expected a call that ends in one forward, got none")
    return y, Pull(layer, taker.saved)


class Pull:
    """The backward of one forward: `dx = pull(dy)`, once. `Layer.vjp` returns it."""

    __slots__ = ("_layer", "_saved")

    def __init__(self, layer: Layer, saved: Saved) -> None:
        self._layer = layer
        self._saved: Saved | None = saved

    def __call__(self, dy: ArrayLike, out: ndarray | None = None) -> ndarray:
        """The gradient of x for dy, the gradient of y. Gradients of parameters are added to their `grad`.

        out: an array for dx: dy, the x of the forward, or an array that overlaps no other.
        """
        saved = self._saved
        if saved is None:
            raise RuntimeError(
                f"{self._layer._who}: pull: expected one call for each vjp, got a second one; "
                "layer.vjp(x) returns another"
            )
        return self._layer._pulled(self, dy, saved, out)

    def __repr__(self) -> str:
        return f"<the backward of one forward of {self._layer._who}{'' if self._saved else ', done'}>"
