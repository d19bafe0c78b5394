"""The forward and backward passes: array to view, kernels, and what is saved in between.

Functions and layers both call `channel_forward`, `row_forward` and `pull_back`. These trust the arguments that their
caller has checked, and check weight, out and dy, which come with every call. `who` is the caller's name in messages.
"""

from types import ModuleType
from typing import Any

from numpy import ndarray

from bnorm import checks, overlap
from bnorm.kernels import BACKENDS, view
from bnorm.kernels.activation import Activation
from bnorm.kernels.cpu.entries import ready
from bnorm.kernels.rule import Rule

Gradients = tuple[ndarray, ndarray | None, ndarray | None]


class Saved:
    """What a forward saves for its backward: x, the weights if there were any, and small vectors.

    x is not copied: changing it before the backward changes the gradient. Parameters, statistics, weights and mode are
    those of the forward. A backward does not change this object, so there may be several backwards for one forward,
    unless `out` overwrote x: then x is None.

    The forward sets the attributes itself: an `__init__` of so many arguments takes a tenth of a small forward.
    """

    __slots__ = ("act", "kernels", "layout", "x")

    kernels: ModuleType  # the backend of the forward
    x: ndarray | None  # as the kernels see it; integers become float64 at the first backward
    layout: view.Layout  # how it was made from the caller's x
    act: Activation
    order: tuple[int, ...] | None = None  # memory order of the axes of a result, if `layout` would give another
    shared: Any = None  # the kernels of a batch that several ranks share

    def gradients(self, dy: ndarray, params: bool, out: ndarray | None) -> Gradients:
        """dx, dgamma, dbeta for dy in the layout of x; without `params` dgamma and dbeta may be None."""
        raise NotImplementedError


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

    def gradients(self, dy: ndarray, params: bool, out: ndarray | None) -> Gradients:
        params = params and (self.has_gamma or self.has_beta)
        dx, dgamma, dbeta = self.kernels.backward(
            dy, self.x, self.stats, self.count, self.weight, self.act, self.frozen, params, out
        )
        return dx, dgamma if self.has_gamma else None, dbeta if self.has_beta else None


class SharedSaved(ChannelSaved):
    """For statistics of several ranks."""

    __slots__ = ("shared",)


class RowSaved(Saved):
    """For statistics per row: mean and rstd are float64, one value per row."""

    __slots__ = ("beta", "gamma", "mean", "order", "parameter_shape", "rstd", "rule")

    mean: ndarray
    rstd: ndarray
    gamma: ndarray | None  # flat, and a copy
    beta: ndarray | None
    rule: int  # VARIANCE or MEAN_SQUARE
    parameter_shape: tuple[int, ...]

    def gradients(self, dy: ndarray, params: bool, out: ndarray | None) -> Gradients:
        gamma, beta = self.gamma, self.beta
        params = params and not (gamma is None and beta is None)
        dx, dgamma, dbeta = self.kernels.rows_backward(
            dy, self.x, self.mean, self.rstd, gamma, beta, self.rule, self.act, params, out
        )
        if not params:
            return dx, None, None
        shape = self.parameter_shape
        return (
            dx,
            None if gamma is None else dgamma.reshape(shape),
            None if beta is None else dbeta.reshape(shape),
        )


def channel_forward(
    who: str,
    x: ndarray,
    gamma: ndarray | None,
    beta: ndarray | None,
    mean: ndarray | None,
    var: ndarray | None,
    eps: float,
    axis: int,
    act: Activation,
    weight: Any = None,
    out: ndarray | None = None,
    running: Rule | None = None,
    given: overlap.Given = (),
    shared: Any = None,
) -> tuple[ndarray, ChannelSaved]:
    """Batch norm, y and saved, by the statistics of the batch or by given mean and var.

    The caller has checked that x comes from `checks.array`, that `axis` is one of its axes, and that gamma, beta, mean
    and var come from `checks.vector` and have the size of the channels.
    running: the argument of the kernels' `forward`: the rule of the statistics that the caller will update.
    given: needed with `out`: every array that is read or updated, as its owner has it. `out` may be x, and must not
    overlap any other.
    shared: the kernels of a batch that several ranks share, a `distributed.sync.Shared`.
    SingleValueError if the batch has one value per channel. Nothing has changed then, and a layer may call again with
    its running statistics as mean and var.
    """
    kernels = BACKENDS[type(x)] if shared is None else shared
    block, layout = view.channels(x, axis, False)
    positive: float = 2
    if weight is not None:
        weight, _, positive = checks.weights(who, weight, layout, type(x))
    frozen = mean is not None
    if frozen:
        weight = None
    elif shared is None and block.size and (block.size == layout.block[1] if weight is None else positive == 1):
        raise checks.SingleValueError(
            f"{who}: x: expected more than one value per channel to take statistics of, got shape {x.shape}"
            f"{'' if weight is None else ' with one weight above zero'}; normalize a larger batch, or by known "
            "statistics (mean= and var=), or each sample by itself (layer_norm)"
        )
    target = to = None
    apart = True
    if out is not None and (to := ready(out, block, layout, given)) is None:
        dtype = checks.FLOAT64 if block.dtype.kind in "bui" else block.dtype
        target, to, apart = overlap.output(who, out, layout, dtype, given, type(x))
    y, stats, count, left = kernels.forward(block, gamma, beta, eps, mean, var, weight, act, running, to)
    if shared is None:
        saved = ChannelSaved()
        if not positive:
            count = 0.0  # known here; reading it from a device would synchronize
    else:
        saved = SharedSaved()
        saved.shared = shared
    saved.kernels, saved.x, saved.layout, saved.act = kernels, block, layout, act
    saved.stats, saved.count, saved.left, saved.weight = stats, count, left, weight
    saved.frozen, saved.has_gamma, saved.has_beta = frozen, gamma is not None, beta is not None
    if out is None:
        return view.restore(y, layout), saved
    if target is not None:
        _deliver(y, layout, to, target, None if apart else x, saved)
    return out, saved


def row_forward(
    who: str,
    x: ndarray,
    rows: tuple[ndarray, view.Layout],
    gamma: ndarray | None,
    beta: ndarray | None,
    eps: float,
    rule: int,
    act: Activation,
    out: ndarray | None = None,
    given: overlap.Given = (),
) -> tuple[ndarray, RowSaved]:
    """Normalization of each row, y and saved; `rows` is `view.rows` or `view.groups` of x.

    The rest is as in `channel_forward`. gamma and beta have the same shape, and are copied here.
    """
    kernels = BACKENDS[type(x)]
    block, layout = rows
    target = to = None
    apart = True
    if out is not None and (to := ready(out, block, layout, given)) is None:
        target, to, apart = overlap.output(who, out, layout, block.dtype, given, type(x))
    y, mean, rstd = kernels.rows_forward(block, gamma, beta, eps, rule, act, to)
    order = None if layout.order is None and x.flags.c_contiguous else view.axes_in_memory(x)
    saved = RowSaved()
    saved.kernels, saved.x, saved.layout, saved.act = kernels, block, layout, act
    saved.mean, saved.rstd, saved.rule, saved.order = mean, rstd, rule, order
    # Copied here and not before: cores that have read a copy would slow the next one down.
    saved.gamma = saved.beta = None
    saved.parameter_shape = ()
    if gamma is not None:
        saved.gamma, saved.parameter_shape = gamma.flatten(), gamma.shape
    if beta is not None:
        saved.beta, saved.parameter_shape = beta.flatten(), beta.shape
    if out is None:
        return view.ordered(view.restore(y, layout), order), saved
    if target is not None:
        _deliver(y, layout, to, target, None if apart else x, saved)
    return out, saved


def pull_back(
    who: str,
    dy: Any,
    saved: Saved,
    params: bool = True,
    out: ndarray | None = None,
    given: overlap.Given = (),
) -> Gradients:
    """dx, dgamma, dbeta of the forward that made `saved`; without `params` no dgamma and dbeta.

    given: more arrays that `out` must not overlap.
    """
    if saved.shared is not None and saved.shared.open is None:
        with saved.shared.turn("backward"):
            return pull_back(who, dy, saved, params, out, given)
    x, layout = saved.x, saved.layout
    if x is None:
        raise RuntimeError(f"{who}: saved: expected a forward whose x is still there, got one whose x out= overwrote")
    if x.dtype.kind in "bui":
        x = saved.x = checks.floating(x)
    mine, kind = dy, type(x)
    if type(dy) is not kind or dy.dtype != x.dtype or dy.shape != layout.shape:
        dy = checks.gradient(who, dy, layout.shape, x.dtype, kind)
    if out is None:
        dx, dgamma, dbeta = saved.gradients(view.like(dy, layout), params, None)
        return view.ordered(view.restore(dx, layout), saved.order), dgamma, dbeta
    if (to := ready(out, x, layout, ({"dy": mine, "x": x}, *given))) is not None:
        _, dgamma, dbeta = saved.gradients(view.like(dy, layout), params, to)
        return out, dgamma, dbeta
    whole = view.restore(x, layout)
    given = ({"dy": mine, "x": whole}, *given)
    target, to, apart = overlap.output(who, out, layout, x.dtype, given, kind, same="dy")
    dx, dgamma, dbeta = saved.gradients(view.like(dy, layout), params, to)
    _deliver(dx, layout, to, target, None if apart else whole, saved)
    return out, dgamma, dbeta


def _deliver(
    result: ndarray, layout: view.Layout, to: ndarray | None, target: ndarray, x: ndarray | None, saved: Saved
) -> None:
    """Copy a result to `target`, unless the kernel has written it there (`to`). `saved` forgets an overwritten x."""
    if to is None:
        target[...] = view.restore(result, layout)
    if x is not None and overlap.same_memory(target, x):
        saved.x = None
