"""Normalization as pure functions of arrays.

    y, saved = batch_norm(x, gamma, beta)
    dx, dgamma, dbeta = backward(dy, saved)

y = (x - mean) / sqrt(var + eps) gamma + beta, where var is the mean squared difference from the mean.

Arrays are NumPy arrays, or whatever NumPy converts to one; or CuPy arrays, and then so are the results. The functions
never synchronize with the GPU, except once to validate `weight`. Every forward serves the same `backward`.
"""

from __future__ import annotations  # signatures print names, not what NumPy means by them

from math import inf
from typing import Any, Literal, overload

from numpy import ndarray
from numpy.typing import ArrayLike

from bnorm import checks, grouping, overlap, reductions
from bnorm.checks import FLOATS, array, vector
from bnorm.documents import OF_SAMPLES, normalizes
from bnorm.exact import ExactMoments
from bnorm.kernels import BACKENDS, MEAN_SQUARE, VARIANCE, view
from bnorm.kernels.activation import IDENTITY, Name
from bnorm.moments import Moments
from bnorm.passes import Gradients, Saved, batch_forward, known_forward, row_forward
from bnorm.second import double_backward

__all__ = [
    "Saved",
    "backward",
    "batch_norm",
    "double_backward",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "moments",
    "rms_norm",
]
__dir__ = __all__.copy  # without what is imported here

Shape = int | tuple[int, ...] | list[int]


@normalizes()
def batch_norm(
    x: ArrayLike,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    mean: ArrayLike | None = None,
    var: ArrayLike | None = None,
    eps: float = 1e-5,
    axis: int = 1,
    activation: Name = None,
    negative_slope: float = 0.01,
    weight: ArrayLike | None = None,
    out: ndarray | None = None,
) -> tuple[ndarray, Saved]:
    """Normalize each channel by the mean and variance over all other axes.

    A batch of one value per channel has no variance, and is a ValueError unless mean and var are given.

    Examples
    --------
    >>> y, saved = batch_norm([[1.0, 20.0], [3.0, 40.0]], eps=0)
    >>> y
    array([[-1., -1.],
           [ 1.,  1.]])
    """
    who = "batch_norm"
    given: overlap.Given = ()
    if out is not None:
        given = ({"x": x, "gamma": gamma, "beta": beta, "mean": mean, "var": var, "weight": weight},)
    a: Any = x
    if type(a) not in BACKENDS or a.dtype not in FLOATS:
        a = array(who, x, integers=True)
    if type(axis) is not int or not -(ndim := a.ndim) <= axis < ndim:
        axis = checks.channel_axis(who, axis, a.shape)
    shape = (a.shape[axis],)
    if gamma is not None:
        gamma = vector(who, "gamma", gamma, shape, type(a), single=type(a) is not ndarray)
    if beta is not None:
        beta = vector(who, "beta", beta, shape, type(a), single=type(a) is not ndarray)
    if mean is not None or var is not None:
        mean, var = checks.statistics(who, mean, var, shape, type(a))
    if type(eps) is not float or not 0.0 <= eps < inf:
        eps = checks.epsilon(who, eps)
    act = IDENTITY
    if activation is not None or type(negative_slope) is not float or negative_slope != 0.01:
        act = checks.activation(who, activation, negative_slope)
    seen = view.channels(a, axis, False)
    if mean is None:
        return batch_forward(who, a, seen, gamma, beta, eps, act, weight, out, given)
    return known_forward(who, a, seen, gamma, beta, (mean, var), eps, act, weight, out, given)


@normalizes(
    gamma="The scale, of shape normalized_shape. None means 1.", beta="The shift, of that shape too. None means 0."
)
def layer_norm(
    x: ArrayLike,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    normalized_shape: Shape,
    eps: float = 1e-5,
    activation: Name = None,
    negative_slope: float = 0.01,
    residual: ArrayLike | None = None,
    out: ndarray | None = None,
) -> tuple[ndarray | Any, Saved]:
    """Normalize each sample by the mean and variance over its last axes.

    A sample of one value becomes beta. With a residual the results are (y, h) and saved, where h = x + residual.

    Examples
    --------
    >>> y, saved = layer_norm([[1.0, 3.0], [20.0, 40.0]], normalized_shape=2, eps=0)
    >>> y
    array([[-1.,  1.],
           [-1.,  1.]])
    """
    return _over_last_axes(
        "layer_norm", x, gamma, beta, normalized_shape, eps, VARIANCE, activation, negative_slope, residual, out
    )


@normalizes(
    gamma="The scale, of shape normalized_shape. None means 1.", eps="Added to the mean square, inside the root."
)
def rms_norm(
    x: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    normalized_shape: Shape,
    eps: float = 1e-5,
    activation: Name = None,
    negative_slope: float = 0.01,
    residual: ArrayLike | None = None,
    out: ndarray | None = None,
) -> tuple[ndarray | Any, Saved]:
    """Divide each sample by the root of its mean square: y = x / sqrt(mean(x^2) + eps) gamma.

    With a residual the results are (y, h) and saved, where h = x + residual.

    Examples
    --------
    >>> y, saved = rms_norm([[1.0, 7.0]], normalized_shape=2, eps=0)
    >>> y
    array([[0.2, 1.4]])
    """
    return _over_last_axes(
        "rms_norm", x, gamma, None, normalized_shape, eps, MEAN_SQUARE, activation, negative_slope, residual, out
    )


@normalizes(weight=OF_SAMPLES)
def group_norm(
    x: ArrayLike,
    num_groups: int,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    eps: float = 1e-5,
    axis: int = 1,
    activation: Name = None,
    negative_slope: float = 0.01,
    weight: ArrayLike | None = None,
    out: ndarray | None = None,
) -> tuple[ndarray, Saved]:
    """Normalize each group of channels of each sample by its mean and variance.

    The samples are on the first axis that is not `axis`. As in PyTorch, a group of one value becomes beta, and a batch
    that has only one value per group in all is a ValueError.

    Examples
    --------
    >>> y, saved = group_norm([[1.0, 3.0, 20.0, 40.0]], 2, eps=0)
    >>> y
    array([[-1.,  1., -1.,  1.]])
    """
    return _over_groups("group_norm", x, num_groups, gamma, beta, eps, axis, activation, negative_slope, weight, out)


@normalizes(weight=OF_SAMPLES)
def instance_norm(
    x: ArrayLike,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    eps: float = 1e-5,
    axis: int = 1,
    activation: Name = None,
    negative_slope: float = 0.01,
    weight: ArrayLike | None = None,
    out: ndarray | None = None,
) -> tuple[ndarray, Saved]:
    """Normalize each channel of each sample by the mean and variance over all other axes.

    The samples are on the first axis that is not `axis`. One value per channel and sample has no variance, and is a
    ValueError.

    Examples
    --------
    >>> y, saved = instance_norm([[[1.0, 3.0], [20.0, 40.0]]], eps=0)
    >>> y
    array([[[-1.,  1.],
            [-1.,  1.]]])
    """
    return _over_groups("instance_norm", x, None, gamma, beta, eps, axis, activation, negative_slope, weight, out)


def backward(dy: ArrayLike | tuple[ArrayLike, ArrayLike | None], saved: Saved, out: ndarray | None = None) -> Gradients:
    """Return the gradients of the forward that returned `saved`.

    They include the derivatives of the statistics, unless mean and var were given. Several backwards may use the same
    `saved`.

    Parameters
    ----------
    dy : array_like, or a pair of them
        The gradient of y, of the shape of x. It is converted to the dtype of x. After a forward with a residual the
        pair (dy, dh): the gradients of y and h. dh may be None, for zero.
    saved : Saved
        The second result of the forward.
    out : ndarray, optional
        An array for dx, of the shape and dtype of x. It may be dy; the x of the forward (after a residual h),
        which then has no further backward; or an array that overlaps no argument.

    Returns
    -------
    dx : ndarray
        The gradient of x, of the dtype of x. The gradient of a residual is the same.
    dgamma, dbeta : ndarray or None
        The gradients of gamma and beta, in their shape, float64; None if the forward had no such parameter.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    RuntimeError
        If `out` has overwritten the x of the forward.

    Examples
    --------
    >>> y, saved = batch_norm([[1.0], [3.0], [5.0]], [2.0])
    >>> dx, dgamma, dbeta = backward([[1.0], [1.0], [1.0]], saved)
    >>> dgamma, dbeta
    (array([0.]), None)
    """
    if not isinstance(saved, Saved):
        raise TypeError(f"backward: saved: expected what a forward returned with y, got {type(saved).__name__}")
    return saved.pull_back("backward", dy, True, out)


@overload
def moments(
    x: ArrayLike, *, exact: Literal[True], axis: Shape = 1, weight: ArrayLike | None = None, skipna: bool = False,
    groups: None = None, n_groups: None = None, minmax: bool = False, scale: float = 1.0,
) -> ExactMoments: ...  # fmt: skip
@overload
def moments(
    x: ArrayLike, *, axis: Shape = 1, weight: ArrayLike | None = None, skipna: bool = False, exact: bool = False,
    groups: ArrayLike | None = None, n_groups: int | None = None, minmax: bool = False, scale: float = 1.0,
) -> Moments: ...  # fmt: skip
def moments(
    x: ArrayLike,
    *,
    axis: int | tuple[int, ...] | list[int] = 1,
    weight: ArrayLike | None = None,
    skipna: bool = False,
    exact: bool = False,
    groups: ArrayLike | None = None,
    n_groups: int | None = None,
    minmax: bool = False,
    scale: float = 1.0,
) -> Moments:
    """Return count, mean and m2 per channel, or per channel and group. They can be merged with those of other data.

    Parameters
    ----------
    x : array_like, Dask array or DataFrame
        The data. Each block of a Dask collection is read once, by the worker that has it, and the moments of the
        blocks are merged as a tree.
    axis : int or tuple of int, default 1
        The axis of the channels. With several axes every position along them is a channel, and the statistics have the
        shape of these axes, in the order given; with none, (), all values are one channel.
    weight : array_like or Dask array, optional
        How much each value counts, as in `batch_norm`. With several axes its shape is that of all others, or (N,).
    skipna : bool, default False
        Whether to ignore NaN. Otherwise a channel with NaN has mean and m2 NaN. Infinity is never ignored.
    exact : bool, default False
        Whether to keep the sums as integers, which are rounded once, at the end. Then the result does not depend on the
        order of the values, and can be subtracted. Weights must be a mask or integers. Arrays on a GPU are copied.
    groups : array_like of integers, optional
        The group of each value, 0 to n_groups - 1, or -1 for none, in the shape of weights. Then count, mean and m2
        have the shape (n_groups, C). x must be in the machine's memory, and exact False.
    n_groups : int, optional
        The number of groups; by default the largest value of `groups` plus 1.
    minmax : bool, default False
        Whether to record the least and the greatest value of each channel too.
    scale : float, default 1.0
        Return the moments of x times this positive number, such as 1 / 255 for uint8, without computing the products.
        Each statistic of x is multiplied once, so it is rounded once more; with exact=True nothing is rounded before
        the end, as if the products were exact.

    Returns
    -------
    Moments

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.

    Examples
    --------
    >>> m = moments([[1.0, 5.0], [3.0, float("nan")]], skipna=True)
    >>> m.count, m.mean, m.var()
    (array([2., 1.]), array([2., 5.]), array([1., 0.]))
    >>> moments([[1.0], [3.0], [20.0]], groups=[0, 0, 1]).mean
    array([[ 2.],
           [20.]])
    >>> moments([[[1.0, 2.0]], [[3.0, 6.0]]], axis=(1, 2), minmax=True).max
    array([[3., 6.]])
    """
    who = "moments"
    if groups is None:
        if n_groups is not None:
            raise ValueError(f"{who}: n_groups: expected None, as groups is None, got {n_groups!r}")
        return reductions.moments(who, x, axis, weight, skipna, exact, minmax, scale)
    skipna, exact, minmax = checks.flags(who, skipna=skipna, exact=exact, minmax=minmax)
    if minmax:
        raise ValueError(f"{who}: minmax: expected False with groups, whose extremes are not recorded, got True")
    factor = checks.factor(who, "scale", scale)
    m = grouping.moments(who, x, axis, groups, n_groups, weight, skipna, exact)
    return m if factor == 1.0 else m.scaled(factor)


def _over_last_axes(
    who: str,
    x: Any,
    gamma: ArrayLike | None,
    beta: ArrayLike | None,
    normalized_shape: Shape,
    eps: float,
    rule: int,
    activation: Name,
    negative_slope: float,
    residual: ArrayLike | None,
    out: ndarray | None,
) -> tuple[Any, Saved]:
    given = () if out is None else ({"x": x, "gamma": gamma, "beta": beta, "residual": residual},)
    if type(x) not in BACKENDS or x.dtype not in FLOATS:
        x = array(who, x)
    if type(normalized_shape) is int and (sizes := x.shape) and sizes[-1] == normalized_shape:
        shape: tuple[int, ...] = (normalized_shape,)
    else:
        shape = checks.trailing_shape(who, normalized_shape, x.shape)
    if gamma is not None:
        gamma = vector(who, "gamma", gamma, shape, type(x), single=True)
    if beta is not None:
        beta = vector(who, "beta", beta, shape, type(x), single=True)
    if type(eps) is not float or not 0.0 <= eps < inf:
        eps = checks.epsilon(who, eps)
    act = IDENTITY
    if activation is not None or type(negative_slope) is not float or negative_slope != 0.01:
        act = checks.activation(who, activation, negative_slope)
    return row_forward(who, x, view.rows(x, len(shape)), gamma, beta, eps, rule, act, out, given, residual)


def _over_groups(  # num_groups: None means that every channel is by itself
    who: str, x: Any, num_groups: int | None, gamma: ArrayLike | None, beta: ArrayLike | None, eps: float,
    axis: int, activation: Name, negative_slope: float, weight: ArrayLike | None, out: ndarray | None,
) -> tuple[ndarray, Saved]:  # fmt: skip
    given = () if out is None else ({"x": x, "gamma": gamma, "beta": beta, "weight": weight},)
    if type(x) not in BACKENDS or x.dtype not in FLOATS:
        x = array(who, x)
    if x.ndim < 2:
        raise ValueError(f"{who}: x: expected an axis of samples and one of channels, got shape {x.shape}")
    if type(axis) is not int or not -(ndim := x.ndim) <= axis < ndim:
        axis = checks.channel_axis(who, axis, x.shape)
    channels = x.shape[axis]
    each = num_groups is None
    num_groups = channels if num_groups is None else checks.groups(who, num_groups, channels)
    if gamma is not None:
        gamma = vector(who, "gamma", gamma, (channels,), type(x), single=type(x) is not ndarray)
    if beta is not None:
        beta = vector(who, "beta", beta, (channels,), type(x), single=type(x) is not ndarray)
    if type(eps) is not float or not 0.0 <= eps < inf:
        eps = checks.epsilon(who, eps)
    act = IDENTITY
    if activation is not None or type(negative_slope) is not float or negative_slope != 0.01:
        act = checks.activation(who, activation, negative_slope)
    rows = view.groups(x, num_groups, axis)
    checks.several_values(who, rows[0], x.shape, each)
    return row_forward(who, x, rows, gamma, beta, eps, VARIANCE, act, out, given, None, weight)
