"""The forward and backward passes: they bring arrays into the kernels' view, call kernels, and save what a backward
needs.

Functions and layers both call `known_forward`, `batch_forward`, `row_forward` and `Saved.pull_back`. These trust the
arguments that their caller has checked, and check weight, out and dy, which come with every call. `who` is the name of
the caller in messages.
"""

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from types import ModuleType
from typing import Any

from numpy import ndarray

from bnorm import checks, overlap
from bnorm.kernels import BACKENDS, MEAN_SQUARE, view
from bnorm.kernels.activation import Activation
from bnorm.kernels.cpu.entries import ready
from bnorm.kernels.cpu.launches import ready as ready_there
from bnorm.kernels.rule import Rule

Gradients = tuple[ndarray, ndarray | None, ndarray | None]
Known = tuple[Any, Any]  # mean and var
Seen = tuple[ndarray, view.Layout]  # x in the kernels' view, and the Layout of this view


# Where a result goes. First the array that a kernel writes to, in the kernels' view, or None: it makes a new one.
# Second `out` as a base-class array, to which a new result is copied, or None if nothing is left to do after the
# kernel. Third whether `out` certainly shares no memory with x. A plain tuple, as a named one takes longer.
Room = tuple[Any, Any, bool]
NOWHERE: Room = None, None, True


class Saved:
    """What a forward saves for its backward: x, the weights if there were any, and small vectors.

    x is not copied: changing it before the backward changes the gradient. Parameters, statistics, weights and mode are
    those of the forward. A backward does not change this object, so there may be several backwards for one forward,
    unless `out` overwrote x: then x is None.
    """

    # The forward sets the attributes itself: an `__init__` with all of them takes a tenth of a small forward.
    __slots__ = ("act", "digest", "kernels", "layout", "x")

    kernels: Any  # the backend of the forward, or the object that replaced it
    x: ndarray | None  # in the kernels' view; integers become float64 at the first backward
    layout: view.Layout  # of this view of the caller's x
    act: Activation
    digest: int  # of x, if set_debug is on
    order: tuple[int, ...] | None = None  # the memory order of the axes of a result, if not that of `layout`
    residual: bool = False  # whether x is the sum h, the forward's second result

    def __repr__(self) -> str:
        x = "overwritten by out=" if self.x is None else self.x.dtype
        return f"<saved by {self._norm()}: x of shape {self.layout.shape}, {x}>"

    def _norm(self) -> str:
        """The name of the normalization."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles take: for a module of kernels, which neither can take, its name."""
        both: Any = super().__getstate__()
        slots: dict[str, Any] = both[1]
        kernels = slots.get("kernels")
        return slots | {"kernels": kernels.__name__} if isinstance(kernels, ModuleType) else slots

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        if isinstance(state.get("kernels"), str):
            self.kernels = import_module(state["kernels"])

    def gradients(self, dy: ndarray, params: Any, out: ndarray | None, dh: ndarray | None = None) -> Gradients:
        """Return dx, dgamma, dbeta for dy in the layout of x, and for dh if x is h. dgamma and dbeta may be None if
        `params` is False or if kernels have added them to a layer's."""
        raise NotImplementedError

    def turn(self) -> AbstractContextManager[None]:
        """Return a context for checks of a backward. If ranks compute it together, an error there is one on all."""
        return nullcontext()

    def pull_back(
        self, who: str, dy: Any, params: Any = True, out: ndarray | None = None, given: overlap.Given = ()
    ) -> Gradients:
        """Return dx, dgamma, dbeta for the caller's dy; without `params` no dgamma and dbeta.

        params: a bool; or (holder, dgamma, dbeta): the object that holds this one, and the arrays to which its layer
        adds gradients. Kernels that can add to them do so, return None, and drop the holder's saved forward.
        dy: (dy, dh) if the forward had a residual.
        given: more arrays that `out` must not overlap.
        """
        x, layout = self.x, self.layout
        if x is None:
            raise RuntimeError(f"{who}: x: expected it as it was in the forward, got one that out= overwrote")
        if x.dtype.kind in "bui":
            x = self.x = checks.floating(x)
        dh = None
        if self.residual:
            dy, dh = checks.gradients(who, dy)
            given = ({"dh": dh}, *given)
        mine, kind = dy, type(x)
        if type(dy) is not kind or dy.dtype != x.dtype or dy.shape != layout.shape:
            dy = checks.gradient(who, dy, layout.shape, x.dtype, kind)
        if dh is not None:
            dh = view.like(checks.gradient(who, dh, layout.shape, x.dtype, kind, "dh"), layout)
        if out is None:
            dx, dgamma, dbeta = self.gradients(view.like(dy, layout), params, None, dh)
            return view.ordered(view.restore(dx, layout), self.order), dgamma, dbeta
        whole = x
        room = (ready if kind is ndarray else ready_there)(out, x, layout, ({"dy": mine, "x": x}, *given)), None, True
        if room[0] is None:
            whole = view.restore(x, layout)
            room = _looked_at(who, out, x, layout, ({"dy": mine, "x": whole}, *given), kind, same="dy")
        dx, dgamma, dbeta = self.gradients(view.like(dy, layout), params, room[0], dh)
        _deliver(dx, layout, room, whole, self)
        return out, dgamma, dbeta


class ChannelSaved(Saved):
    """For statistics per channel: stats is float64 (5, C), with rows mean, var, 1/std, scale, shift."""

    __slots__ = ("count", "frozen", "has_beta", "has_gamma", "left", "stats", "weight")

    stats: ndarray
    count: Any  # values per channel, or the sum of their weights, which may be on the device unless it is 0
    left: Any  # for `settle` of the kernels
    weight: ndarray | None
    frozen: bool  # the statistics were given: the backward takes them as constants
    has_gamma: bool
    has_beta: bool

    def _norm(self) -> str:
        return "batch norm by known statistics" if self.frozen else "batch norm"

    def gradients(self, dy: ndarray, params: Any, out: ndarray | None, dh: ndarray | None = None) -> Gradients:
        if not (self.has_gamma or self.has_beta):
            params = False
        dx, dgamma, dbeta = self.kernels.backward(
            dy, self.x, self.stats, self.count, self.weight, self.act, self.frozen, params, out
        )
        return dx, dgamma if self.has_gamma else None, dbeta if self.has_beta else None


class RowSaved(Saved):
    """For statistics per row: mean and rstd are float64, one value per row."""

    __slots__ = ("beta", "gamma", "mean", "order", "parameter_shape", "residual", "rstd", "rule", "weight")

    mean: ndarray
    rstd: ndarray
    gamma: ndarray | None  # a flat copy, in the type in which the rows are computed
    beta: ndarray | None  # a flat copy, or the caller's array if no gradient depends on it
    rule: int  # VARIANCE or MEAN_SQUARE
    parameter_shape: tuple[int, ...]
    weight: ndarray | None

    def _norm(self) -> str:
        """The name. A group norm of all channels without further axes is a layer norm."""
        if self.rule == MEAN_SQUARE:
            return "RMS norm"
        if len(block := self.layout.block) == 2 or block[1] == block[3] == 1:
            return "layer norm"
        return "instance norm" if block[2] == 1 else "group norm"

    def gradients(self, dy: ndarray, params: Any, out: ndarray | None, dh: ndarray | None = None) -> Gradients:
        gamma, beta = self.gamma, self.beta
        if gamma is None and beta is None:
            params = False
        dx, dgamma, dbeta = self.kernels.rows_backward(
            dy, self.x, self.mean, self.rstd, gamma, beta, self.rule, self.act, params, out, dh, self.weight
        )
        if dgamma is None:
            return dx, None, None
        shape = self.parameter_shape
        if len(shape) != 1:
            dgamma, dbeta = dgamma.reshape(shape), dbeta.reshape(shape)
        return dx, None if gamma is None else dgamma, None if beta is None else dbeta


def known_forward(
    who: str,
    x: ndarray,
    seen: Seen,
    gamma: ndarray | None,
    beta: ndarray | None,
    known: Known,
    eps: float,
    act: Activation,
    weight: Any,
    out: ndarray | None,
    given: overlap.Given,
    keeps: bool = True,
) -> tuple[ndarray, Any]:
    """Batch norm by known statistics, which the backward takes as constants. Return y and saved, a `ChannelSaved`.

    The caller guarantees that x comes from `checks.array`, that `seen` is `view.channels` of x without `flat`, and that
    gamma, beta and the statistics come from `checks.vector` and have one value per channel.
    given: needed with `out`: every array that is read or updated, as its owner has it. `out` may be x, and must not
    overlap any other.
    keeps: whether there may be a backward. Otherwise `saved` is None.
    """
    kernels = BACKENDS[type(x)]
    block, layout = seen
    if weight is not None:  # it has no effect, but an invalid one is an error
        checks.weights(who, weight, layout, type(x), keep=False)
    room = NOWHERE if out is None else _room(who, out, block, layout, given, type(x))
    mean, var = known
    y, stats, count, left = kernels.forward(block, gamma, beta, eps, mean, var, None, act, None, room[0])
    saved = None
    if keeps:
        saved = ChannelSaved()
        saved.kernels, saved.x, saved.layout, saved.act = kernels, block, layout, act
        saved.stats, saved.count, saved.left, saved.weight = stats, count, left, None
        saved.frozen, saved.has_gamma, saved.has_beta = True, gamma is not None, beta is not None
    if out is None:
        return y if block is x else view.restore(y, layout), saved
    if room[1] is not None:
        _deliver(y, layout, room, x, saved)
    return out, saved


def batch_forward(
    who: str,
    x: ndarray,
    seen: Seen,
    gamma: ndarray | None,
    beta: ndarray | None,
    eps: float,
    act: Activation,
    weight: Any = None,
    out: ndarray | None = None,
    given: overlap.Given = (),
    running: Rule | None = None,
    kernels: Any = None,
    single: Known | None = None,
) -> tuple[ndarray, ChannelSaved]:
    """Batch norm by the statistics of the batch. Return y and saved.

    The other arguments are as in `known_forward`.
    running: the Rule of the statistics that the caller will update with this batch.
    kernels: an object that replaces the kernels here and in the backward, such as `distributed.sync.Shared`, to work
    between reduction and map. Its `forward` returns None if the batch has one value per channel.
    single: the statistics for a batch of one value per channel; `saved.frozen` tells that they were used. Without them
    such a batch is a SingleValueError, and nothing has changed.
    """
    block, layout = seen
    positive: float = 2
    if weight is not None:
        weight, positive = checks.weights(who, weight, layout, type(x))
    saved: ChannelSaved
    found = None
    if own := kernels is None:
        kernels, saved = BACKENDS[type(x)], ChannelSaved()
    else:
        saved = kernels.saved()
    size = block.size
    if not own or not size or (size != layout.block[1] if weight is None else positive != 1):
        room = NOWHERE if out is None else _room(who, out, block, layout, given, type(x))
        if running is not None and (not positive or (out is not None and room[0] is None)):
            running = running._replace(waits=False)  # nothing will be settled, or y is copied before that happens
        found = kernels.forward(block, gamma, beta, eps, None, None, weight, act, running, room[0])
    if found is None:
        if single is not None:
            return known_forward(who, x, seen, gamma, beta, single, eps, act, None, out, given)
        raise checks.SingleValueError(
            f"{who}: x: expected more than one value per channel for statistics, got shape {x.shape}"
            f"{'' if weight is None else ' with one weight above zero'}; normalize a larger batch, or by known "
            "statistics (mean= and var=), or each sample by itself (layer_norm)"
        )
    y, stats, count, left = found
    if own and not positive:
        count = 0.0  # known here, while reading it from a device would synchronize
    saved.kernels, saved.x, saved.layout, saved.act = kernels, block, layout, act
    saved.stats, saved.count, saved.left, saved.weight = stats, count, left, weight
    saved.frozen, saved.has_gamma, saved.has_beta = False, gamma is not None, beta is not None
    if out is None:
        return y if block is x else view.restore(y, layout), saved
    if room[1] is not None:
        _deliver(y, layout, room, x, saved)
    return out, saved


def row_forward(
    who: str,
    x: ndarray,
    rows: Seen,
    gamma: ndarray | None,
    beta: ndarray | None,
    eps: float,
    rule: int,
    act: Activation,
    out: ndarray | None,
    given: overlap.Given,
    residual: Any,
    weight: Any = None,
    keeps: bool = True,
) -> tuple[Any, Any]:
    """Normalize each row, and return y and saved, a `RowSaved`. rows: `view.rows` or `view.groups` of x.

    The rest is as in `known_forward`. gamma and beta have the same shape; the kernels copy those on which gradients
    depend.
    residual: is checked here, and added to x first. The result is then (y, h) and saved, whose x is the sum h.
    weight: of each position of `view.groups`; it is checked here.
    """
    kernels = BACKENDS[type(x)]
    block, layout = rows
    added = None if residual is None else view.like(checks.residual(who, residual, x), layout)
    if weight is not None:
        weight, _ = checks.weights(who, weight, layout, type(x))
    room = NOWHERE if out is None else _room(who, out, block, layout, given, type(x))
    found = kernels.rows_forward(block, gamma, beta, eps, rule, act, room[0], added, weight, keeps)
    y, saved = found[0], None
    if added is not None:
        y, block = y
    order = None if layout.order is None and x.flags.c_contiguous else view.axes_in_memory(x)
    if keeps:
        saved = RowSaved()
        saved.kernels, saved.x, saved.layout, saved.act = kernels, block, layout, act
        _, saved.mean, saved.rstd, saved.gamma, saved.beta = found
        saved.rule, saved.order = rule, order
        saved.weight, saved.residual = weight, added is not None
        either = beta if gamma is None else gamma
        saved.parameter_shape = () if either is None else either.shape
    if out is None:
        out = view.restore(y, layout)
        if order is not None:
            out = view.ordered(out, order)
    elif room[1] is not None:
        _deliver(y, layout, room, x if added is None else None, saved)
    if added is None:
        return out, saved
    return (out, view.ordered(view.restore(block, layout), order)), saved


def _room(who: str, out: ndarray, block: ndarray, layout: view.Layout, given: overlap.Given, kind: type) -> Room:
    """Check `out`, which may be x. Kernels can write to most arrays directly; the others need all the checks."""
    to = (ready if kind is ndarray else ready_there)(out, block, layout, given)
    return _looked_at(who, out, block, layout, given, kind, same="x") if to is None else (to, None, True)


def _looked_at(
    who: str, out: ndarray, block: ndarray, layout: view.Layout, given: overlap.Given, kind: type, same: str
) -> Room:
    """Make all the checks of `out`. same: the name of the array that `out` may be, besides x."""
    dtype = checks.FLOAT64 if block.dtype.kind in "bui" else block.dtype
    target, to, apart = overlap.output(who, out, layout, dtype, given, kind, same=same)
    return to, target, apart


def _deliver(result: ndarray, layout: view.Layout, room: Room, x: ndarray | None, saved: Saved | None) -> None:
    """Copy a result to `out` unless the kernel has written it there, and remove an overwritten x from `saved`.

    This is not needed if `out` did not need all the checks.
    """
    to, target, apart = room
    if to is None:
        view.put(target, view.restore(result, layout))
    if saved is not None and not apart and x is not None and overlap.same_memory(target, x):
        saved.x = None
