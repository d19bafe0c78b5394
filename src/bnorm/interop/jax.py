"""The norms of `functional` inside JAX: callbacks on the CPU, with first and second derivatives, under jit.

    y = batch_norm(x, gamma, beta, eps=1e-3)
    jax.grad(lambda x: (batch_norm(x) ** 3).sum())(x)

A callback converts arrays to NumPy and back, so this is for nets on the CPU. Only reverse mode works, as with any
`custom_vjp`.
"""

from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from bnorm import functional as F
from bnorm.interop.neighbors import differentiable, load

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]

ARRAYS = ("mean", "var", "weight")  # keywords that are arrays; derivatives treat them as constants


def batch_norm(x: Any, gamma: Any = None, beta: Any = None, **options: Any) -> Any:
    """Batch norm as `functional.batch_norm`, with derivatives for JAX.

    Parameters
    ----------
    x, gamma, beta : array_like
        As in `functional.batch_norm`; gamma and beta may be None.
    **options
        The keywords of `functional.batch_norm`, except `out`. mean, var and weight are constants to the gradient. They
        are used with all their digits, as they are now; only those that JAX traces have JAX's precision.

    Returns
    -------
    y : array
        With first and second derivatives by x, gamma and beta.
    """
    return _apply("batch_norm", x, gamma, beta, options)


def layer_norm(x: Any, gamma: Any = None, beta: Any = None, **options: Any) -> Any:
    """`functional.layer_norm`, as `batch_norm`."""
    return _apply("layer_norm", x, gamma, beta, options)


def rms_norm(x: Any, gamma: Any = None, **options: Any) -> Any:
    """`functional.rms_norm`, as `batch_norm`."""
    return _apply("rms_norm", x, gamma, None, options)


def group_norm(x: Any, num_groups: int, gamma: Any = None, beta: Any = None, **options: Any) -> Any:
    """`functional.group_norm`, as `batch_norm`."""
    return _apply("group_norm", x, gamma, beta, {**options, "num_groups": num_groups})


def instance_norm(x: Any, gamma: Any = None, beta: Any = None, **options: Any) -> Any:
    """`functional.instance_norm`, as `batch_norm`."""
    return _apply("instance_norm", x, gamma, beta, options)


def _apply(norm: str, x: Any, gamma: Any, beta: Any, options: dict[str, Any]) -> Any:
    jax = load("bnorm.interop.jax", "jax", "jax")
    jnp = jax.numpy
    differentiable("bnorm.interop.jax", norm, options)
    if options.get("out") is not None:
        raise TypeError(f"bnorm.interop.jax.{norm}: out: expected None, as JAX's arrays do not change, got an array")
    x, gamma, beta = (value if value is None else jnp.asarray(value) for value in (x, gamma, beta))
    if x.dtype.kind in "biu":
        x = x.astype(float)
    constants = {name: options[name] for name in ARRAYS if options.get(name) is not None}
    traced = {
        name: jnp.asarray(value, float)
        for name, value in constants.items()
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))
    }
    # The others are no arguments of the primitive, for which JAX would round float64 to float32 unless it has 64 bits.
    # They are copies, as a derivative reads them again.
    known = {name: np.array(value, subok=True) for name, value in constants.items() if name not in traced}
    fixed = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items() if name not in ARRAYS}
    _check(norm, x, {"gamma": gamma, "beta": beta, **traced}, known, fixed)
    return _normalize()(x, gamma, beta, traced, (norm, {**fixed, **known}))


Call = tuple[str, dict[str, Any]]  # the norm's name, and its keywords that JAX does not see


def _check(norm: str, x: Any, beside: dict[str, Any], known: dict[str, Any], fixed: dict[str, Any]) -> None:
    """Raise the error of the norm for these shapes, types, keywords and known values, if any.

    An error inside a callback is hard to read, and under jit it comes late. Few samples suffice, except for known
    weights, each of which may be wrong.
    """
    given = {name: np.ones(a.shape, a.dtype) for name, a in beside.items() if a is not None} | known
    at, rows = _few_samples(x.shape, fixed)
    few = given
    if x.ndim and "weight" in known:
        rows = x.shape[at]
    elif x.ndim and "weight" in given and given["weight"].shape[:1] == x.shape[at : at + 1]:
        few = {**given, "weight": given["weight"][:rows]}
    try:
        getattr(F, norm)(np.zeros((*x.shape[:at], rows, *x.shape[at + 1 :])[: x.ndim], x.dtype), **few, **fixed)
    except (TypeError, ValueError):
        getattr(F, norm)(np.zeros(x.shape, x.dtype), **given, **fixed)  # the same error, with the shape of x


def _few_samples(shape: tuple[int, ...], fixed: dict[str, Any]) -> tuple[int, int]:
    """Return the axis of the samples, and how many of them show every error: if each has one value of a channel, one
    sample is an error, and two are not; otherwise none are needed. Without such an axis: axis 0, and all of it."""
    rank, last, axis = len(shape), fixed.get("normalized_shape"), fixed.get("axis", 1)
    if last is not None:
        several = rank > (len(last) if isinstance(last, tuple) else 1)
        return 0, 0 if several else shape[0] if shape else 0
    if rank < 2 or not isinstance(axis, int) or not -rank <= axis < rank:
        return 0, shape[0] if shape else 0
    at = int(axis % rank == 0)
    return at, min(shape[at], 2) if prod(shape) == shape[at] * shape[axis] else 0


def _forward(call: Call, x: Any, gamma: Any, beta: Any, constants: Any) -> tuple[np.ndarray, F.Saved]:
    """Compute the forward on NumPy arrays. A derivative computes it again, as JAX can keep only arrays for it."""
    norm, options = call
    given = {"gamma": gamma, "beta": beta, **constants}
    given = {name: np.asarray(value) for name, value in given.items() if value is not None}
    result: tuple[np.ndarray, F.Saved] = getattr(F, norm)(np.asarray(x), **given, **options)
    return result


def _value(call: Call, *given: Any) -> np.ndarray:
    return _forward(call, *given)[0]


def _gradients(call: Call, dy: Any, *given: Any) -> Any:
    _, saved = _forward(call, *given)
    return _cast(F.backward(np.asarray(dy), saved), *given[:3])


def _second(call: Call, dd: Any, dy: Any, *given: Any) -> Any:
    _, saved = _forward(call, *given)
    ddx, ddgamma, ddbeta = (a if a is None else np.asarray(a) for a in dd)
    results = F.double_backward(ddx, saved, np.asarray(dy), ddgamma, ddbeta, dbeta=True)
    return _cast(results, dy, *given[:3])


def _cast(results: Any, *arrays: Any) -> Any:
    return tuple(a if a is None else np.asarray(r, a.dtype) for r, a in zip(results, arrays, strict=True))


@cache
def _normalize() -> Any:
    """The function. It needs JAX, so it is made when the first norm is called."""
    jax = load("bnorm.interop.jax", "jax", "jax")

    def like(*arrays: Any) -> Any:
        return tuple(a if a is None else jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays)

    def callback(function: Any, shapes: Any, *arrays: Any) -> Any:
        return jax.pure_callback(function, shapes, *arrays, vmap_method="sequential")

    def value(x: Any, gamma: Any, beta: Any, constants: Any, call: Call) -> Any:
        return callback(partial(_value, call), like(x)[0], x, gamma, beta, constants)

    def gradients(dy: Any, x: Any, gamma: Any, beta: Any, constants: Any, call: Call) -> Any:
        return callback(partial(_gradients, call), like(x, gamma, beta), dy, x, gamma, beta, constants)

    def second(dd: Any, dy: Any, x: Any, gamma: Any, beta: Any, constants: Any, call: Call) -> Any:
        return callback(partial(_second, call), like(dy, x, gamma, beta), dd, dy, x, gamma, beta, constants)

    def zeros(tree: Any) -> Any:
        return jax.tree.map(jax.numpy.zeros_like, tree)

    def by_value(call: Call, kept: Any, dy: Any) -> Any:
        return (*backward(dy, *kept, call), zeros(kept[3]))

    def by_gradients(call: Call, kept: Any, dd: Any) -> Any:
        dy, x, gamma, beta, constants = kept
        return (*second(dd, dy, x, gamma, beta, constants, call), zeros(constants))

    normalize = jax.custom_vjp(value, nondiff_argnums=(4,))
    backward = jax.custom_vjp(gradients, nondiff_argnums=(5,))
    # Each forward rule calls its own function, so that a second derivative goes through the rules again.
    normalize.defvjp(lambda *given: (normalize(*given), given[:-1]), by_value)
    backward.defvjp(lambda *given: (backward(*given), given[:-1]), by_gradients)
    return normalize
