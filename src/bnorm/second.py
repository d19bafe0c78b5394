"""The derivative of `backward`, for a loss that depends on gradients, or for Hessian-vector products.

It is computed in float64, on the CPU, whatever the type of x.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike

from bnorm import checks
from bnorm.kernels import cpu, view
from bnorm.kernels.activation import IDENTITY, SMOOTH
from bnorm.kernels.cpu import second
from bnorm.kernels.cpu.entries import in_float64
from bnorm.passes import ChannelSaved, RowSaved, Saved

WHO = "double_backward"


Second = tuple[ndarray, ndarray, ndarray | None]


@overload
def double_backward(
    ddx: ArrayLike | None,
    saved: Saved,
    dy: ArrayLike,
    ddgamma: ArrayLike | None = ...,
    ddbeta: ArrayLike | None = ...,
    *,
    dbeta: Literal[False] = ...,
) -> Second: ...


@overload
def double_backward(
    ddx: ArrayLike | None,
    saved: Saved,
    dy: ArrayLike,
    ddgamma: ArrayLike | None = ...,
    ddbeta: ArrayLike | None = ...,
    *,
    dbeta: Literal[True],
) -> tuple[ndarray, ndarray, ndarray | None, ndarray | None]: ...


def double_backward(
    ddx: ArrayLike | None,
    saved: Saved,
    dy: ArrayLike,
    ddgamma: ArrayLike | None = None,
    ddbeta: ArrayLike | None = None,
    *,
    dbeta: bool = False,
) -> Any:
    """Return the gradients of a loss that depends on the results of `backward(dy, saved)`.

    The slope of a ReLU is treated as a constant: its derivative is zero wherever it exists.

    Parameters
    ----------
    ddx : array_like or None
        The gradient of the loss with respect to the result dx of `backward`. None means zero.
    saved : Saved
        The second result of the forward, on a NumPy array.
    dy : array_like
        The gradient of y, as in `backward`; dy alone after a forward with a residual too. There dh is only added to dx,
        so the gradient with respect to dh is ddx.
    ddgamma, ddbeta : array_like, optional
        The gradients with respect to its results dgamma and dbeta. None means zero.
    dbeta : bool, default False
        Whether to return the gradient with respect to beta too, which is zero unless the activation is smooth.

    Returns
    -------
    d_dy, dx : ndarray
        The gradients with respect to dy and to the x of the forward, of the dtype of x.
    dgamma : ndarray or None
        The gradient with respect to gamma, float64; None if the forward had no gamma.
    dbeta : ndarray or None
        Only with the argument `dbeta`: the gradient with respect to beta, float64; None if the forward had no beta.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or the forward was one of CuPy arrays.
    RuntimeError
        If `out` has overwritten the x of the forward.

    Examples
    --------
    >>> from bnorm.functional import backward, batch_norm
    >>> y, saved = batch_norm([[1.0], [3.0], [5.0]], [2.0], eps=0)
    >>> dy = [[1.0], [0.0], [0.0]]
    >>> d_dy, dx, dgamma = double_backward([[0.0], [1.0], [0.0]], saved, dy)
    >>> np.allclose(np.sum(d_dy * dy), backward(dy, saved)[0][1])  # dx is linear in dy
    True
    """
    has_gamma, has_beta, shape = _parameters(saved)
    x = saved.x
    if x is None:
        raise RuntimeError(f"{WHO}: x: expected it as it was in the forward, got one that out= overwrote")
    if type(x) is not ndarray:
        raise TypeError(f"{WHO}: saved: expected the forward of a NumPy array, got one of {checks.type_name(x)}")
    k = _vector("ddgamma", ddgamma, has_gamma, shape)
    q = _vector("ddbeta", ddbeta, has_beta, shape)
    wide: Any = cpu.widened(x)  # these kernels read float32 and float64
    v, g = (_like_x(name, value, saved, wide) for name, value in (("ddx", ddx), ("dy", dy)))
    bent: Any = np.empty_like(wide) if saved.act.kind in SMOOTH else None
    dx: Any
    weight: Any = saved.weight  # type: ignore[attr-defined]
    if weight is not None:
        weight = view.dense(weight, np.float64)
    if isinstance(saved, ChannelSaved):
        numbers = saved.stats, saved.count, weight
        d_dy, dx, dgamma = second.channels(v, g, wide, *numbers, saved.act, saved.frozen, k, q, bent)
    elif isinstance(saved, RowSaved):
        gamma, beta = in_float64((saved.gamma, saved.beta))
        row = saved.mean, saved.rstd, gamma, beta, saved.rule
        d_dy, dx, dgamma = second.rows(v, g, wide, *row, saved.act, k, q, bent, weight)
    of_beta = np.zeros_like(dgamma)
    if bent is not None:
        if isinstance(saved, ChannelSaved):
            more = cpu.backward(bent, wide, *numbers, IDENTITY, saved.frozen)
        else:
            more = cpu.rows_backward(bent, wide, *row, IDENTITY, weight=weight)
        with np.errstate(all="ignore"):  # infinity and NaN are data
            for gradient, part in zip((dx, dgamma, of_beta), more, strict=True):
                gradient += part
    results = _like_caller(d_dy, saved, x), _like_caller(dx, saved, x), dgamma.reshape(shape) if has_gamma else None
    return (*results, of_beta.reshape(shape) if has_beta else None) if dbeta else results


def _parameters(saved: Saved) -> tuple[bool, bool, tuple[int, ...]]:
    """Return whether the forward had gamma, whether it had beta, and their shape."""
    if isinstance(saved, ChannelSaved):
        return saved.has_gamma, saved.has_beta, saved.stats.shape[1:]
    if isinstance(saved, RowSaved):
        return saved.gamma is not None, saved.beta is not None, saved.parameter_shape
    raise TypeError(f"{WHO}: saved: expected what a forward of functional returned, got {type(saved).__name__}")


def _vector(name: str, value: Any, present: bool, shape: tuple[int, ...]) -> ndarray | None:
    if value is None:
        return None
    if not present:
        raise ValueError(f"{WHO}: {name}: expected None, as the forward had no such parameter, got {value!r}")
    return checks.vector(WHO, name, value, shape, ndarray).reshape(-1)


def _like_x(name: str, value: Any, saved: Saved, x: ndarray) -> ndarray:
    """Check that a value has the shape of the caller's x, and return it in the layout and dtype of x; None means 0."""
    if value is None:
        return np.zeros(x.shape, x.dtype)
    a = checks.real(WHO, name, value, ndarray)
    if a.shape != saved.layout.shape:
        raise ValueError(f"{WHO}: {name}: expected the shape of x, {saved.layout.shape}, got {a.shape}")
    block: Any = view.like(a, saved.layout)
    given: Any = saved.x
    if a.dtype == given.dtype and a.dtype != x.dtype:  # narrow: NumPy's conversion takes ten times as long
        block = cpu.widened(block)
    return checks.converted(block, x.dtype)


def _like_caller(a: ndarray, saved: Saved, x: ndarray) -> ndarray:
    """Return a kernel's result in the dtype, shape and memory order of the caller's x."""
    if x.dtype.itemsize == 2 and x.dtype.kind not in "bui":
        a = cpu.narrowed(a, x)
    ordered: ndarray = view.ordered(view.restore(a, saved.layout), saved.order)
    return ordered
