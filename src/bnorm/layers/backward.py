"""`layer.vjp`, which returns the backward of one forward, and `no_backward`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

import numpy as np

from bnorm.checks import flag, floating
from bnorm.kernels import moved
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


OPEN: list[Taker] = []  # the active takers of all threads. It is nearly always empty, so a forward tests that first


class Taker:
    """Takes what forwards in this thread save: for the `vjp` of a layer, or, if `layer` is None, to drop it."""

    __slots__ = ("layer", "saved", "thread")

    def __init__(self, layer: Layer | None) -> None:
        self.thread, self.layer = get_ident(), layer
        self.saved: Saved | None = None


DEBUG = Taker(None)  # is in OPEN if set_debug is on. It takes nothing
DEBUG.thread = -1


def _forget_other_threads() -> None:
    """After a fork only the thread that forked goes on, and new threads may get the identities of the others."""
    OPEN[:] = [taker for taker in OPEN if taker.thread == get_ident() or taker is DEBUG]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)


def keep(layer: Layer, saved: Saved) -> None:
    """Give what a forward saves to the innermost taker, or else to the layer."""
    taker = _taker(layer)
    if taker is None:
        layer._saved = _marked(saved)
    elif taker.layer is None:
        layer._saved = None
    else:
        taker.saved = _marked(saved)


def drops(layer: Layer) -> bool:
    """Whether `keep` would drop what a forward of this layer saves."""
    taker = _taker(layer)
    return taker is not None and taker.layer is None


def _taker(layer: Layer) -> Taker | None:
    """Return the innermost taker of this thread that takes what a forward of this layer saves, or None."""
    thread = get_ident()
    for taker in reversed(tuple(OPEN)):
        if taker.thread == thread and (taker.layer is layer or taker.layer is None):
            return taker
    return None


def set_debug(on: bool) -> None:
    """Check whether x was changed between its forward and its backward: then the backward is a RuntimeError.

    A layer keeps the x of its forward without a copy, so a change in place makes the gradient wrong. With this check
    each forward of a layer computes a checksum of x, and its backward computes it again. The same holds for the
    forecast that `RevIN.inverse` brings back.

    Parameters
    ----------
    on : bool
        Whether to check. The check is off at first, and then costs nothing. If it is on, x is read two more times, and
        copied to the CPU from a GPU.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> bnorm.set_debug(True)
    >>> bn, x = bnorm.BatchNorm1d(2), np.array([[1.0, 2.0], [3.0, 5.0]])
    >>> y = bn(x)
    >>> x *= 2
    >>> bn.backward(y)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    RuntimeError: BatchNorm1d(2): backward: expected x as it was in the forward, got it changed in place ...
    >>> bnorm.set_debug(False)
    """
    wanted = flag("set_debug", "on", on)
    if wanted and DEBUG not in OPEN:
        OPEN.insert(0, DEBUG)
    elif not wanted and DEBUG in OPEN:
        OPEN.remove(DEBUG)


def refuse_changed(who: str, saved: Saved) -> None:
    """Raise RuntimeError if x is known to have changed since the forward."""
    if saved.x is not None and changed(saved.x, getattr(saved, "digest", None)):
        with saved.turn():
            raise RuntimeError(
                f"{who}: backward: expected x as it was in the forward, got it changed in place since; call the layer "
                "with a copy, layer(x.copy()), or change x after the backward"
            )


def _marked(saved: Saved) -> Saved:
    """Add the checksum of x if set_debug is on. Return `saved`."""
    if saved.x is not None and (found := digest(saved.x)) is not None:
        saved.digest = found
    return saved


def digest(x: Any) -> int | None:
    """Return the checksum of an array that is kept for a backward; None unless set_debug is on."""
    return _digest(x) if DEBUG in OPEN else None


def changed(x: Any, before: int | None) -> bool:
    """Whether an array is known to have changed since `digest`."""
    return DEBUG in OPEN and before not in (None, _digest(x))


def _digest(x: Any) -> int:
    x = floating(x)  # as the first backward converts it, and a later one may be the error
    return crc32(np.ascontiguousarray(moved(x, np.ndarray)).reshape(-1).view(np.uint8).data)


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
    """Run a forward. Return its result and its backward, which the caller owns instead of the layer."""
    if not type(layer).__module__.startswith("bnorm."):
        _refuse_own_backward(layer)
    taker = Taker(layer)
    try:
        OPEN.append(taker)
        y = layer(x, *args, **options)
    finally:
        OPEN.remove(taker)
    if taker.saved is None:
        raise RuntimeError(f"{layer._who}: vjp: expected a call that ends in one forward, got none")
    return y, Pull(layer, taker.saved)


def _refuse_own_backward(layer: Layer) -> None:
    """Raise TypeError if the class of a user has a `backward`, but not the `vjp` that belongs to it.

    A pull does not call `layer.backward`, so its gradient would be another one.
    """
    own = next(kind for kind in type(layer).__mro__ if {"backward", "vjp"} & vars(kind).keys())
    if "vjp" not in vars(own) and not own.__module__.startswith("bnorm."):
        raise TypeError(
            f"{layer._who}: vjp: expected a layer whose backward is that of its class in bnorm, as vjp does not call "
            f"another one, got one that {own.__name__} defines: define vjp there too"
        )


class Pull:
    """The backward of one forward: `dx = pull(dy)`, once. `Layer.vjp` returns it."""

    __slots__ = ("_layer", "_saved")

    def __init__(self, layer: Layer, saved: Saved) -> None:
        self._layer = layer
        self._saved: Saved | None = saved

    def __call__(self, dy: ArrayLike | tuple[ArrayLike, ArrayLike | None], out: ndarray | None = None) -> ndarray:
        """Return the gradient of x for dy, the gradient of y, and add the gradients of parameters to their `grad`.

        dy: after a forward with a residual, which returned (y, h), a pair: (dy, dh).
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
