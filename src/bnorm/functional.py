"""Normalization as pure functions of arrays.

    y, saved = batch_norm(x, gamma, beta)
    dx, dgamma, dbeta = backward(dy, saved)

The functions agree in this:

x         a NumPy array, or what NumPy takes for one, of float16, float32, float64, or the bfloat16 of ml_dtypes; bools
          and integers become float64. Of 8 and 16 bits they are read where they lie by `batch_norm` and `moments`.
          A PyTorch tensor on the CPU is read where it lies, without a copy; what is returned are NumPy arrays.
          Or a CuPy array: then all others are CuPy arrays, lists or numbers, and what is
          returned are CuPy arrays. Nothing waits for the GPU, except once to validate `weight`.
gamma     scale, and beta, shift: real numbers, computed in float64. None: 1 and 0.
eps       stands inside the root: y = (x - mean) / sqrt(var + eps) gamma + beta, var being the mean squared difference.
axis      of the channels.
activation  None, "relu" or "leaky_relu", computed in the same pass; the latter has the slope `negative_slope` below 0,
          a number from 0 to below 1.
out       an array for the result, of the shape and dtype of y in any memory order: x itself, which then has no
          backward any more, or memory of its own. It is what the function returns.
y         has the shape, dtype and memory order of x, in the byte order of the machine.
saved     is for `backward`.

An argument that does not fit is a TypeError or ValueError that names the function and the parameter, and nothing has
changed then.
"""

from __future__ import annotations  # signatures print names, not what NumPy means by them

from functools import partial
from math import inf
from typing import Any

from numpy import ndarray
from numpy.typing import ArrayLike

from bnorm import checks
from bnorm.checks import FLOATS, array, vector
from bnorm.kernels import BACKENDS, MEAN_SQUARE, VARIANCE, lazy, view
from bnorm.moments import Moments
from bnorm.passes import Gradients, Saved, channel_forward, pull_back, row_forward
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

Shape = int | tuple[int, ...]


def batch_norm(
    x: ArrayLike,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    mean: ArrayLike | None = None,
    var: ArrayLike | None = None,
    eps: float = 1e-5,
    axis: int = 1,
    activation: str | None = None,
    negative_slope: float = 0.01,
    weight: ArrayLike | None = None,
    out: ndarray | None = None,
) -> tuple[ndarray, Saved]:
    """Normalize each channel by the mean and variance over all other axes: y and saved.

    gamma, beta, mean, var: shape (C,). mean and var given are used instead of those of the batch (inference), and are
    constants to the backward. A negative var is an error; on the GPU it is not validated, and gives NaN.
    weight: shape of x without the channel axis, or (N,), one per sample: finite and not negative, or a bool mask. How
    much a value counts in the statistics; at weight 0 it feeds nothing in, NaN included, and y is computed there all
    the same. Without any weight above 0, y is beta. In inference it has no effect.

    One value per channel has no variance: ValueError, unless mean and var are given.

    >>> y, saved = batch_norm([[1.0, 20.0], [3.0, 40.0]], eps=0)
    >>> y
    array([[-1., -1.],
           [ 1.,  1.]])
    """
    who = "batch_norm"
    given = None
    if out is not None:
        given = {"x": x, "gamma": gamma, "beta": beta, "mean": mean, "var": var, "weight": weight}
    if type(x) is not ndarray or x.dtype not in FLOATS:
        x = array(who, x, integers=True)
    if type(axis) is not int or not -(ndim := x.ndim) <= axis < ndim:
        axis = checks.channel_axis(who, axis, x.shape)
    shape = (x.shape[axis],)
    if gamma is not None:
        gamma = vector(who, "gamma", gamma, shape, type(x))
    if beta is not None:
        beta = vector(who, "beta", beta, shape, type(x))
    if mean is not None or var is not None:
        mean, var = checks.statistics(who, mean, var, shape, type(x))
    if type(eps) is not float or not 0.0 <= eps < inf:
        eps = checks.epsilon(who, eps)
    slope = 1.0
    if activation is not None or negative_slope != 0.01:
        slope = checks.slope(who, activation, negative_slope)
    return channel_forward(who, x, gamma, beta, mean, var, eps, axis, slope, weight, out, None, given)


def layer_norm(
    x: ArrayLike,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    normalized_shape: Shape,
    eps: float = 1e-5,
    activation: str | None = None,
    negative_slope: float = 0.01,
    out: ndarray | None = None,
) -> tuple[ndarray, Saved]:
    """Normalize each sample by the mean and variance over its last axes: y and saved.

    normalized_shape: the sizes of these axes, or the size of the last one. gamma, beta: of that shape. A sample of one
    value becomes beta.

    >>> y, saved = layer_norm([[1.0, 3.0], [20.0, 40.0]], normalized_shape=2, eps=0)
    >>> y
    array([[-1.,  1.],
           [-1.,  1.]])
    """
    return _over_last_axes(
        "layer_norm", x, gamma, beta, normalized_shape, eps, VARIANCE, activation, negative_slope, out
    )


def rms_norm(
    x: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    normalized_shape: Shape,
    eps: float = 1e-5,
    activation: str | None = None,
    negative_slope: float = 0.01,
    out: ndarray | None = None,
) -> tuple[ndarray, Saved]:
    """Divide each sample by the root of the mean square of its last axes, x / sqrt(mean(x^2) + eps) gamma: y and saved.

    normalized_shape: the sizes of these axes, or the size of the last one. gamma: of that shape.

    >>> y, saved = rms_norm([[1.0, 7.0]], normalized_shape=2, eps=0)
    >>> y
    array([[0.2, 1.4]])
    """
    return _over_last_axes(
        "rms_norm", x, gamma, None, normalized_shape, eps, MEAN_SQUARE, activation, negative_slope, out
    )


def group_norm(
    x: ArrayLike,
    num_groups: int,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    eps: float = 1e-5,
    axis: int = 1,
    activation: str | None = None,
    negative_slope: float = 0.01,
    out: ndarray | None = None,
) -> tuple[ndarray, Saved]:
    """Normalize each group of channels of each sample by its mean and variance: y and saved.

    The samples are on the first axis that is not `axis`. num_groups divides the number of channels; a group is a run
    of C / num_groups channels. gamma, beta: shape (C,).
    A group of one value becomes beta, as in PyTorch; ValueError where the whole batch has one value per group.

    >>> y, saved = group_norm([[1.0, 3.0, 20.0, 40.0]], 2, eps=0)
    >>> y
    array([[-1.,  1., -1.,  1.]])
    """
    return _over_groups("group_norm", x, num_groups, gamma, beta, eps, axis, activation, negative_slope, out)


def instance_norm(
    x: ArrayLike,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    eps: float = 1e-5,
    axis: int = 1,
    activation: str | None = None,
    negative_slope: float = 0.01,
    out: ndarray | None = None,
) -> tuple[ndarray, Saved]:
    """Normalize each channel of each sample by the mean and variance over its positions: y and saved.

    The samples are on the first axis that is not `axis`. gamma, beta: shape (C,).
    One value per channel and sample has no variance: ValueError.

    >>> y, saved = instance_norm([[[1.0, 3.0], [20.0, 40.0]]], eps=0)
    >>> y
    array([[[-1.,  1.],
            [-1.,  1.]]])
    """
    return _over_groups("instance_norm", x, None, gamma, beta, eps, axis, activation, negative_slope, out)


def backward(dy: ArrayLike, saved: Saved, out: ndarray | None = None) -> Gradients:
    """dx, dgamma and dbeta of the forward that returned `saved`, for dy, the gradient of its y. None where absent.

    The gradients are true derivatives, through the statistics too unless these were given. dx has the dtype of x;
    dgamma and dbeta are float64 of the shape of gamma and beta. dy, of the shape of x, is brought to its dtype.
    out: dy itself, or the x of the forward, which then has no backward any more, or memory of its own.

    >>> y, saved = batch_norm([[1.0], [3.0], [5.0]], [2.0])
    >>> dx, dgamma, dbeta = backward([[1.0], [1.0], [1.0]], saved)
    >>> dgamma, dbeta
    (array([0.]), None)
    """
    if not isinstance(saved, Saved):
        raise TypeError(f"backward: saved: expected what a forward returned beside y, got {type(saved).__name__}")
    return pull_back("backward", dy, saved, True, out)


def moments(x: ArrayLike, *, axis: int = 1, weight: ArrayLike | None = None, skipna: bool = False) -> Moments:
    """Count, mean and m2 per channel, to be merged with those of other data.

    weight: as in `batch_norm`. skipna: leave NaN out (infinity stays in); otherwise it makes its channel NaN.
    x may be a Dask array, and weight then too: every block is read once, where Dask has it, and the moments of blocks
    are merged as a tree.

    >>> m = moments([[1.0, 5.0], [3.0, float("nan")]], skipna=True)
    >>> m.count, m.mean, m.var()
    (array([2., 1.]), array([2., 5.]), array([1., 0.]))
    """
    who = "moments"
    skipna = checks.flag(who, "skipna", skipna)
    if lazy(x):
        return _moments_of_blocks(who, x, axis, weight, skipna)
    x = array(who, x, integers=True)
    block, layout = view.channels(x, checks.channel_axis(who, axis, x.shape))
    if weight is not None:
        weight, _, _ = checks.weights(who, weight, layout, type(x), keep=False)
    return Moments.from_parts(BACKENDS[type(x)].moments(block, weight, skipna))


def _moments_of_blocks(who: str, x: Any, axis: int, weight: Any, skipna: bool) -> Moments:
    """The same of a Dask collection, each block by itself."""
    from bnorm.distributed import dask

    x = dask.array_of(who, "x", x)
    array(who, x._meta)
    axis = checks.channel_axis(who, axis, x.shape) % x.ndim
    if weight is not None:
        weight = dask.aligned(who, "weight", weight, x, axis)
    columns = dask.blocks_of(partial(_moments_of, axis, skipna), x, axis, weight)
    return Moments.beside(dask.computed([dask.tree(parts, Moments.merge) for parts in columns]))


def _moments_of(axis: int, skipna: bool, block: ndarray, weight: ndarray | None = None) -> Moments:
    return moments(block, axis=axis, weight=weight, skipna=skipna)


def _over_last_axes(
    who: str,
    x: ArrayLike,
    gamma: ArrayLike | None,
    beta: ArrayLike | None,
    normalized_shape: Shape,
    eps: float,
    rule: int,
    activation: str | None,
    negative_slope: float,
    out: ndarray | None,
) -> tuple[ndarray, Saved]:
    given = None if out is None else {"x": x, "gamma": gamma, "beta": beta}
    if type(x) is not ndarray or x.dtype not in FLOATS:
        x = array(who, x)
    if type(normalized_shape) is int and x.shape[-1:] == (normalized_shape,):
        shape: tuple[int, ...] = (normalized_shape,)
    else:
        shape = checks.trailing_shape(who, normalized_shape, x.shape)
    if gamma is not None:
        gamma = vector(who, "gamma", gamma, shape, type(x))
    if beta is not None:
        beta = vector(who, "beta", beta, shape, type(x))
    if type(eps) is not float or not 0.0 <= eps < inf:
        eps = checks.epsilon(who, eps)
    slope = 1.0
    if activation is not None or negative_slope != 0.01:
        slope = checks.slope(who, activation, negative_slope)
    return row_forward(who, x, view.rows(x, len(shape)), gamma, beta, eps, rule, slope, out, given)


def _over_groups(
    who: str,
    x: ArrayLike,
    num_groups: int | None,  # None: every channel by itself
    gamma: ArrayLike | None,
    beta: ArrayLike | None,
    eps: float,
    axis: int,
    activation: str | None,
    negative_slope: float,
    out: ndarray | None,
) -> tuple[ndarray, Saved]:
    given = None if out is None else {"x": x, "gamma": gamma, "beta": beta}
    if type(x) is not ndarray or x.dtype not in FLOATS:
        x = array(who, x)
    if x.ndim < 2:
        raise ValueError(f"{who}: x: expected an axis of samples and one of channels, got shape {x.shape}")
    if type(axis) is not int or not -(ndim := x.ndim) <= axis < ndim:
        axis = checks.channel_axis(who, axis, x.shape)
    channels = x.shape[axis]
    each = num_groups is None
    num_groups = channels if num_groups is None else checks.groups(who, num_groups, channels)
    if gamma is not None:
        gamma = vector(who, "gamma", gamma, (channels,), type(x))
    if beta is not None:
        beta = vector(who, "beta", beta, (channels,), type(x))
    if type(eps) is not float or not 0.0 <= eps < inf:
        eps = checks.epsilon(who, eps)
    slope = 1.0
    if activation is not None or negative_slope != 0.01:
        slope = checks.slope(who, activation, negative_slope)
    rows = view.groups(x, num_groups, axis)
    checks.several_values(who, rows[0], x.shape, each)
    return row_forward(who, x, rows, gamma, beta, eps, VARIANCE, slope, out, given)
