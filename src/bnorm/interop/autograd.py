"""The norms of `functional` as primitives of HIPS autograd, with derivatives of first and second order.

    y = batch_norm(x, gamma, beta, eps=1e-3)
    grad(lambda x: np.sum(batch_norm(x) ** 3))(x)

Derivatives are by x, gamma and beta; all other arguments are constants.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from bnorm import functional as F
from bnorm.interop.neighbors import differentiable, load

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]


class _Call:
    """One call of a norm: its keywords, and the `saved` of its forward."""

    saved: F.Saved

    def __init__(self, norm: Callable[..., tuple[Any, F.Saved]], options: dict[str, Any]) -> None:
        differentiable("bnorm.interop.autograd", norm.__name__, options)
        tracer = load("bnorm.interop.autograd", "autograd.tracer", "autograd")
        for name, value in options.items():
            if tracer.isbox(value):
                raise TypeError(
                    f"bnorm.interop.autograd.{norm.__name__}: {name}: expected an array that needs no gradient, as "
                    f"there would be none of it, got one that does: autograd.tracer.getval({name}) is a constant"
                )
        self.norm, self.options = norm, options


def batch_norm(x: Any, gamma: Any = None, beta: Any = None, **options: Any) -> Any:
    """Batch norm as `functional.batch_norm`, with derivatives for HIPS autograd.

    Parameters
    ----------
    x, gamma, beta : array_like
        As in `functional.batch_norm`; gamma and beta may be None.
    **options
        The keywords of `functional.batch_norm`. mean, var and weight are constants to the gradient.

    Returns
    -------
    y : array
        With first and second derivatives by x, gamma and beta.
    """
    return _normalize()(x, gamma, beta, _Call(F.batch_norm, options))


def layer_norm(x: Any, gamma: Any = None, beta: Any = None, **options: Any) -> Any:
    """`functional.layer_norm`, as `batch_norm`."""
    return _normalize()(x, gamma, beta, _Call(F.layer_norm, options))


def rms_norm(x: Any, gamma: Any = None, **options: Any) -> Any:
    """`functional.rms_norm`, as `batch_norm`."""
    return _normalize()(x, gamma, None, _Call(F.rms_norm, options))


def group_norm(x: Any, num_groups: int, gamma: Any = None, beta: Any = None, **options: Any) -> Any:
    """`functional.group_norm`, as `batch_norm`."""
    return _normalize()(x, gamma, beta, _Call(F.group_norm, {**options, "num_groups": num_groups}))


def instance_norm(x: Any, gamma: Any = None, beta: Any = None, **options: Any) -> Any:
    """`functional.instance_norm`, as `batch_norm`."""
    return _normalize()(x, gamma, beta, _Call(F.instance_norm, options))


@cache
def _normalize() -> Any:
    """The primitive. It needs autograd, so it is made when the first norm is called."""
    extend = load("bnorm.interop.autograd", "autograd.extend", "autograd")

    def like(results: Any, *given: Any) -> Any:
        """Cast gradients to the types of their arrays, unless these are integers; zero without an array."""
        pairs = zip(results, map(np.asarray, given), strict=True)
        return tuple(
            np.zeros(()) if r is None else r if a.dtype.kind in "biu" else np.asarray(r, a.dtype) for r, a in pairs
        )

    @extend.primitive  # type: ignore[untyped-decorator]
    def normalize(x: Any, gamma: Any, beta: Any, call: _Call) -> Any:
        given = {name: value for name, value in (("gamma", gamma), ("beta", beta)) if value is not None}
        y, call.saved = call.norm(x, **given, **call.options)
        return y

    @extend.primitive  # type: ignore[untyped-decorator]
    def backward(dy: Any, x: Any, gamma: Any, beta: Any, call: _Call) -> Any:
        return like(F.backward(dy, call.saved), x, gamma, beta)

    @extend.primitive  # type: ignore[untyped-decorator]
    def double_backward(dd: Any, dy: Any, x: Any, gamma: Any, beta: Any, call: _Call) -> Any:
        ddx, *parameters = dd
        given = (p if np.ndim(p) else None for p in parameters)
        results = F.double_backward(ddx, call.saved, dy, *given, dbeta=True)
        return like(results, dy, x, gamma, beta)

    def of_normalize(i: int) -> Any:
        return lambda y, x, gamma, beta, call: lambda dy: backward(dy, x, gamma, beta, call)[i]

    def of_backward(i: int) -> Any:
        return lambda gradients, dy, x, gamma, beta, call: lambda dd: double_backward(dd, dy, x, gamma, beta, call)[i]

    extend.defvjp(normalize, *map(of_normalize, range(3)))  # by x, gamma and beta
    extend.defvjp(backward, *map(of_backward, range(4)))  # by dy, x, gamma and beta
    return normalize
