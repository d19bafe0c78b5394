"""The forward and backward passes: array to view, kernels, and what is saved in between.

Functions and layers both call `known_forward`, `batch_forward`, `row_forward` and `Saved.pull_back`. These trust the
arguments that their caller has checked, and check weight, out and dy, which come with every call. `who` is the caller's
name in messages.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from numpy import ndarray

from bnorm import checks, overlap
from bnorm.kernels import BACKENDS, view
from bnorm.kernels.activation import Activation
from bnorm.kernels.cpu.entries import ready
from bnorm.kernels.cpu.launches import ready as ready_there
from bnorm.kernels.rule import Rule

Gradients = tuple[ndarray, ndarray | None, ndarray | None]
Known = tuple[Any, Any]  # mean and var
Seen = tuple[ndarray, view.Layout]  # x as the kernels see it, and how that was made


# Where a result goes: what a kernel may write to, as it sees arrays, or None, a new array; what that is copied to, or
# where the first lies if it is not simply `out`; and whether it is apart from x. A named tuple takes longer.
Room = tuple[Any, Any, bool]
NOWHERE: Room = None, None, True


class Saved:
    """What a forward saves for its backward: x, the weights if there were any, and small vectors.

    x is not copied: changing it before the backward changes the gradient. Parameters, statistics, weights and mode are
    those of the forward. A backward does not change this object, so there may be several backwards for one forward,
    unless `out` overwrote x: then x is None.
    """

    # The forward sets the attributes itself: an `__init__` of so many arguments takes a tenth of a small forward.
    __slots__ = ("act", "digest", "kernels", "layout", "x")

    kernels: Any  # the backend of the forward, or what stood for it
    x: ndarray | None  # as the kernels see it; integers become float64 at the first backward
    layout: view.Layout  # how it was made from the caller's x
    act: Activation
    digest: int  # of x, with set_debug
    order: tuple[int, ...] | None = None  # memory order of the axes of a result, if `layout` would give another
    residual: bool = False  # whether x is the sum h, the forward's second result

    def gradients(self, dy: ndarray, params: Any, out: ndarray | None, dh: ndarray | None = None) -> Gradients:
        """dx, dgamma, dbeta for dy in the layout of x, and dh if x is h; without `params` dgamma and dbeta may be
        None, and where kernels have added them."""
        raise NotImplementedError

    def turn(self) -> AbstractContextManager[None]:
        """What an error of a backward is raised in. If several ranks make it together, it is raised on all of them."""
        return nullcontext()

    def pull_back(
        self, who: str, dy: Any, params: Any = True, out: ndarray | None = None, given: overlap.Given = ()
    ) -> Gradients:
        """dx, dgamma, dbeta for the caller's dy; without `params` no dgamma and dbeta.

        params: True; or (holder, dgamma, dbeta), who holds this and what a layer adds to: kernels that can do so add
        themselves, return None, and leave the holder without a forward.
        dy: (dy, dh) if the forward had a residual.
        given: more arrays that `out` must not overlap.
        """
        x, layout = self.x, self.layout
        if x is None:
            raise RuntimeError(
                f"{who}: saved: expected a forward whose x is still there, got one whose x out= overwrote"
            )
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
    count: Any  # of values per channel, or the sum of their weights, which may be on the device unless it is 0
    left: Any  # for the kernels' `settle`
    weight: ndarray | None
    frozen: bool  # the statistics were given, and are constants to the backward
    has_gamma: bool
    has_beta: bool

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
    gamma: ndarray | None  # flat, and a copy
    beta: ndarray | None  # may be the caller's own, where no gradient depends on it
    rule: int  # VARIANCE or MEAN_SQUARE
    parameter_shape: tuple[int, ...]
    weight: ndarray | None

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
) -> tuple[ndarray, ChannelSaved]:
    """Batch norm by statistics that are known, and constants to the backward: y and saved.

    The caller has checked that x comes from `checks.array`, that `seen` is `view.channels` of it without `flat`, and
    that gamma, beta and the statistics come from `checks.vector` and have the size of the channels.
    given: needed with `out`: every array that is read or updated, as its owner has it. `out` may be x, and must not
    overlap any other.
    """
    kernels = BACKENDS[type(x)]
    block, layout = seen
    if weight is not None:  # which has no effect
        checks.weights(who, weight, layout, type(x), keep=False)
    room = NOWHERE if out is None else _room(who, out, block, layout, given, type(x))
    mean, var = known
    y, stats, count, left = kernels.forward(block, gamma, beta, eps, mean, var, None, act, None, room[0])
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
    """Batch norm by the statistics of the batch: y and saved.

    The other arguments are as in `known_forward`.
    running: the rule of the statistics that the caller will update by this batch.
    kernels: what stands for the kernels here and in the backward, such as `distributed.sync.Shared`, and comes between
    reduction and map; its `forward` returns None if the batch has one value per channel.
    single: the statistics for such a batch; `saved.frozen` tells that they were used. Without them it is a
    SingleValueError, and nothing has changed.
    """
    block, layout = seen
    positive: float = 2
    if weight is not None:
        weight, positive = checks.weights(who, weight, layout, type(x))
    saved: ChannelSaved
    own = kernels is None
    if own:
        size = block.size
        if size and (size == layout.block[1] if weight is None else positive == 1):
            return _of_one_value(who, x, seen, gamma, beta, eps, act, weight, out, given, single)
        kernels, saved = BACKENDS[type(x)], ChannelSaved()
    else:
        saved = kernels.saved()
    room = NOWHERE if out is None else _room(who, out, block, layout, given, type(x))
    if running is not None and (not positive or (out is not None and room[0] is None)):
        running = running._replace(waits=False)  # nothing is settled, or y is copied before that
    found = kernels.forward(block, gamma, beta, eps, None, None, weight, act, running, room[0])
    if found is None:
        return _of_one_value(who, x, seen, gamma, beta, eps, act, weight, out, given, single)
    y, stats, count, left = found
    if own and not positive:
        count = 0.0  # known here; reading it from a device would synchronize
    saved.kernels, saved.x, saved.layout, saved.act = kernels, block, layout, act
    saved.stats, saved.count, saved.left, saved.weight = stats, count, left, weight
    saved.frozen, saved.has_gamma, saved.has_beta = False, gamma is not None, beta is not None
    if out is None:
        return y if block is x else view.restore(y, layout), saved
    if room[1] is not None:
        _deliver(y, layout, room, x, saved)
    return out, saved


def _of_one_value(
    who: str,
    x: ndarray,
    seen: Seen,
    gamma: ndarray | None,
    beta: ndarray | None,
    eps: float,
    act: Activation,
    weight: ndarray | None,
    out: ndarray | None,
    given: overlap.Given,
    single: Known | None,
) -> tuple[ndarray, ChannelSaved]:
    """The forward of a batch of one value per channel."""
    if single is not None:
        return known_forward(who, x, seen, gamma, beta, single, eps, act, None, out, given)
    raise checks.SingleValueError(
        f"{who}: x: expected more than one value per channel for statistics, got shape {x.shape}"
        f"{'' if weight is None else ' with one weight above zero'}; normalize a larger batch, or by known "
        "statistics (mean= and var=), or each sample by itself (layer_norm)"
    )


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
) -> tuple[Any, RowSaved]:
    """Normalization of each row, y and saved; `rows` is `view.rows` or `view.groups` of x.

    The rest is as in `known_forward`. gamma and beta have the same shape; the kernels copy what gradients depend on.
    residual: what is added to x first; it is checked here. Then (y, h) and saved, of which x is that sum h.
    weight: of each position of `view.groups`; it is checked here.
    """
    kernels = BACKENDS[type(x)]
    block, layout = rows
    added = None if residual is None else view.like(checks.residual(who, residual, x), layout)
    if weight is not None:
        weight, _ = checks.weights(who, weight, layout, type(x))
    room = NOWHERE if out is None else _room(who, out, block, layout, given, type(x))
    found = kernels.rows_forward(block, gamma, beta, eps, rule, act, room[0], added, weight, True)
    y, mean, rstd, gamma_then, beta_then = found
    if added is not None:
        y, block = y
    order = None if layout.order is None and x.flags.c_contiguous else view.axes_in_memory(x)
    saved = RowSaved()
    saved.kernels, saved.x, saved.layout, saved.act = kernels, block, layout, act
    saved.mean, saved.rstd = mean, rstd
    saved.rule, saved.order = rule, order
    saved.weight, saved.residual = weight, added is not None
    saved.gamma, saved.beta = gamma_then, beta_then
    either = beta if gamma is None else gamma
    saved.parameter_shape = () if either is None else either.shape
    if out is None:
        out = view.ordered(view.restore(y, layout), order)
    elif room[1] is not None:
        _deliver(y, layout, room, x if added is None else None, saved)
    if added is None:
        return out, saved
    return (out, view.ordered(view.restore(block, layout), order)), saved


def _room(who: str, out: ndarray, block: ndarray, layout: view.Layout, given: overlap.Given, kind: type) -> Room:
    """Check `out`, which may be x. A kernel may write to most as they are, and the others need a closer look."""
    to = (ready if kind is ndarray else ready_there)(out, block, layout, given)
    return _looked_at(who, out, block, layout, given, kind, same="x") if to is None else (to, None, True)


def _looked_at(
    who: str, out: ndarray, block: ndarray, layout: view.Layout, given: overlap.Given, kind: type, same: str
) -> Room:
    """The closer look. same: the array that `out` may be, beside x."""
    dtype = checks.FLOAT64 if block.dtype.kind in "bui" else block.dtype
    target, to, apart = overlap.output(who, out, layout, dtype, given, kind, same=same)
    return to, target, apart


def _deliver(result: ndarray, layout: view.Layout, room: Room, x: ndarray | None, saved: Saved) -> None:
    """Copy a result to where it belongs, unless the kernel has written it there. `saved` forgets an overwritten x.

    Not called where `out` took no closer look.
    """
    to, target, apart = room
    if to is None:
        target[...] = view.restore(result, layout)
    if not apart and x is not None and overlap.same_memory(target, x):
        saved.x = None
