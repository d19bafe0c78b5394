"""Folding of a batch norm in inference into the linear layer or convolution before it, which saves one layer.

    y = (W x + b) scale + shift = (W scale) x + (b scale + shift)

Products and sums are computed in float64 and rounded once, to the dtype of W (to bfloat16 by way of float32). An
activation of the batch norm is not folded: apply it to the result.
"""

from __future__ import annotations

from typing import Any

from numpy import ndarray
from numpy.typing import ArrayLike

from bnorm import checks
from bnorm.kernels import moved
from bnorm.layers.batch import BatchNorm

__all__ = ["fold_conv", "fold_linear"]


def fold_linear(bn: BatchNorm, W: ArrayLike, b: ArrayLike | None = None) -> tuple[ndarray, ndarray]:
    """Fold a batch norm into the linear layer y = W x + b before it.

    Parameters
    ----------
    bn : BatchNorm1d, BatchNorm2d or BatchNorm3d
        With running statistics.
    W : array_like of shape (channels, inputs)
        The weight in PyTorch's layout; it may be a tensor on the CPU.
    b : array_like of shape (channels,), optional
        The bias. None means 0.

    Returns
    -------
    W, b : ndarray
        Those of the folded layer, of the dtype of W; float64 if that is an integer type.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or bn has no running statistics.

    Examples
    --------
    >>> from bnorm import BatchNorm1d
    >>> bn = BatchNorm1d(1, eps=0.0)
    >>> bn.running_mean, bn.running_var = [1.0], [4.0]
    >>> fold_linear(bn, [[2.0, 6.0]], [3.0])
    (array([[1., 3.]]), array([1.]))
    """
    who = "fold_linear"
    weight = _weight(who, bn, W, (2, 2))
    _expect(who, weight, 0, bn.num_features)
    return _folded(who, bn, weight, b, (-1, 1))


def fold_conv(
    bn: BatchNorm, W: ArrayLike, b: ArrayLike | None = None, transposed: bool = False, groups: int = 1
) -> tuple[ndarray, ndarray]:
    """Fold a batch norm into the convolution before it.

    Parameters
    ----------
    bn : BatchNorm1d, BatchNorm2d or BatchNorm3d
        With running statistics.
    W : array_like of shape (channels, inputs / groups, ...)
        The weight in PyTorch's layout, with one, two or three kernel axes; of a transposed convolution (inputs,
        channels / groups, ...). It may be a tensor on the CPU.
    b : array_like of shape (channels,), optional
        The bias. None means 0.
    transposed : bool, default False
        Whether it is a transposed convolution.
    groups : int, default 1
        The number of groups of the convolution.

    Returns
    -------
    W, b : ndarray
        Those of the folded convolution, of the dtype of W; float64 if that is an integer type.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or bn has no running statistics.

    Examples
    --------
    >>> import numpy as np
    >>> from bnorm import BatchNorm2d
    >>> bn = BatchNorm2d(1, eps=0.0)
    >>> bn.running_mean, bn.running_var = [1.0], [4.0]
    >>> W, b = fold_conv(bn, np.full((1, 2, 3, 3), 6.0))
    >>> W[0, 0, 0], b
    (array([3., 3., 3.]), array([-0.5]))
    """
    who = "fold_conv"
    transposed = checks.flag(who, "transposed", transposed)
    weight, channels = _weight(who, bn, W, (3, 5)), bn.num_features
    groups = checks.positive(who, "groups", groups)
    if channels % groups:
        raise ValueError(f"{who}: groups: expected a divisor of the {channels} channels, got {groups}")
    kernel = (1,) * (weight.ndim - 2)
    if not transposed:
        _expect(who, weight, 0, channels)
        return _folded(who, bn, weight, b, (-1, 1, *kernel))
    _expect(who, weight, 1, channels // groups)
    if weight.shape[0] % groups:
        raise ValueError(f"{who}: W: expected a multiple of {groups} groups on axis 0, got shape {weight.shape}")
    inputs = weight.shape[0] // groups
    split = weight.reshape(groups, inputs, *weight.shape[1:])
    folded, bias = _folded(who, bn, split, b, (groups, 1, channels // groups, *kernel))
    return folded.reshape(weight.shape), bias


def _folded(who: str, bn: BatchNorm, weight: ndarray, b: Any, along: tuple[int, ...]) -> tuple[ndarray, ndarray]:
    """Folded weight and bias. `along` is the shape of a channel vector that broadcasts with the weight."""
    scale, shift = (moved(a, ndarray) for a in bn.as_affine())
    bias = shift if b is None else checks.vector(who, "b", _detached(b), shift.shape, ndarray) * scale + shift
    return (weight * scale.reshape(along)).astype(weight.dtype), bias.astype(weight.dtype)


def _weight(who: str, bn: Any, W: Any, ranks: tuple[int, int]) -> ndarray:
    if not isinstance(bn, BatchNorm):
        raise TypeError(f"{who}: bn: expected a BatchNorm1d, BatchNorm2d or BatchNorm3d, got {type(bn).__name__}")
    weight = checks.real(who, "W", _detached(W), ndarray)
    weight = checks.floating(weight)
    if not ranks[0] <= weight.ndim <= ranks[1]:
        expected = " to ".join(map(str, sorted(set(ranks))))
        raise ValueError(f"{who}: W: expected {expected} dimensions, got shape {weight.shape}")
    return weight


def _expect(who: str, weight: ndarray, axis: int, channels: int) -> None:
    if weight.shape[axis] != channels:
        raise ValueError(f"{who}: W: expected {channels} channels on axis {axis}, got shape {weight.shape}")


def _detached(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value
