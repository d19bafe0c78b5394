"""Checks of arguments, shared by functions and layers.

All messages have the same form, `batch_norm: gamma: expected shape (64,), got (32,)`: the function, the parameter, what
was expected, what was given. No argument is changed here.
"""

import math
import numbers
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.kernels import BACKENDS, cpu, kernels_for, view
from bnorm.kernels.activation import NAMES, Activation, named

# NumPy's own, in the machine's byte order; and bfloat16, once an array of it has been checked: its name takes 0.6 µs.
FLOATS = set(map(np.dtype, ("float16", "float32", "float64")))
FLOAT32, FLOAT64 = np.dtype("float32"), np.dtype("float64")
OF_OBJECTS = {"toarray": "toarray() is dense", "astype": "astype(float) converts numbers"}  # advice, by method
LIGHTEST = 1e-290  # the smallest sum of weights above 0 that float64 can divide by


def user_level() -> int:
    """Return the stacklevel with which a warning of the caller names the line of the user's code."""
    frame, level = sys._getframe(1), 1
    passed = "bnorm", "contextlib"  # which ends the blocks of this package
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in passed:
        frame, level = frame.f_back, level + 1
    return level


class SingleValueError(ValueError):
    """There is only one value per channel of a training batch, or per group of a sample, so there is no variance."""


class NonFiniteError(FloatingPointError, ValueError):
    """Batch statistics are not finite, and the layer has nonfinite="raise"."""


def real(who: str, name: str, value: object, kind: type | None = None, beside: str = "x") -> ndarray:
    """Return a value as a base-class array of bools, integers or floats; TypeError if that is impossible.

    kind, beside: the type and the name of the array that it must match, as in `kernels_for`.
    """
    kernels = kernels_for(value, who, name, kind, beside)
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{who}: {name}: expected an array without a mask, got {type_name(value)}: filled() returns one, and "
            "weight= of batch, group and instance norm leaves values out"
        )
    try:
        a: ndarray = kernels.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{who}: {name}: expected an array of real numbers, got {type_name(value)}: {error}") from error
    if a.dtype.kind not in "buif" and a.dtype.name not in kernels.FLOATS:
        ways = OF_OBJECTS.items() if a.dtype == object else ()
        way = next((f": {name}.{way}" for method, way in ways if hasattr(value, method)), "")
        raise TypeError(f"{who}: {name}: expected real numbers, got dtype {a.dtype} from {type_name(value)}{way}")
    return a


def array(who: str, x: Any, kind: type | None = None, beside: str = "x", *, integers: bool = False) -> ndarray:
    """Return x as an array of a dtype that its backend has kernels for, in either byte order.

    Bools and integers become float64. integers: do not convert the types that channel kernels can read.
    """
    if type(x) in BACKENDS and x.dtype in FLOATS and (kind is None or type(x) is kind):
        taken: ndarray = x
        return taken
    a = real(who, "x", x, kind, beside)
    if a.dtype in FLOATS:
        return a
    if a.dtype.kind in "bui":
        return a if integers and a.dtype.name in BACKENDS[type(a)].INTEGERS else a.astype(FLOAT64)
    floats = BACKENDS[type(a)].FLOATS
    if a.dtype.name not in floats:
        raise TypeError(f"{who}: x: expected {', '.join(floats[:-1])} or {floats[-1]}, got dtype {a.dtype}")
    if a.dtype.isnative:
        FLOATS.add(a.dtype)
    return a


def floating(a: Any) -> ndarray:
    """Return an array of bools or integers as float64, and any other as it is."""
    result: ndarray = a.astype(FLOAT64) if a.dtype.kind in "bui" else a
    return result


def gradient(
    who: str, dy: object, shape: tuple[int, ...], dtype: np.dtype[Any], kind: type, name: str = "dy"
) -> ndarray:
    """Return dy in the dtype of x. It must have the shape of x."""
    a = real(who, name, dy, kind)
    if a.shape != shape:
        raise ValueError(f"{who}: {name}: expected the shape of x, {shape}, got {a.shape}")
    return converted(a, dtype)


@np.errstate(over="ignore", under="ignore")
def converted(a: Any, dtype: np.dtype[Any]) -> ndarray:
    """Return a in this dtype. What is too large becomes infinite, and what is too small 0, never with a warning."""
    result: ndarray = a.astype(dtype, copy=False)
    return result


def gradients(who: str, dy: object) -> tuple[Any, Any]:
    """Return (dy, dh), the gradients of both results of a forward with a residual."""
    if not isinstance(dy, tuple) or len(dy) != 2:
        got = f"a tuple of {len(dy)}" if isinstance(dy, tuple) else type_name(dy)
        raise TypeError(f"{who}: dy: expected (dy, dh), as the forward had a residual and returned (y, h), got {got}")
    return dy


def residual(who: str, value: Any, x: ndarray) -> ndarray:
    """Return the residual, which must have the shape and dtype of x. Bools and integers become float64 first."""
    kind = type(x)
    if type(value) is kind and value.dtype == x.dtype:
        a: ndarray = value
    else:
        a = floating(real(who, "residual", value, kind))
    if a.shape != x.shape:
        raise ValueError(f"{who}: residual: expected the shape of x, {x.shape}, got {a.shape}")
    if a.dtype.name != x.dtype.name:
        raise TypeError(f"{who}: residual: expected the dtype of x, {x.dtype}, got {a.dtype}")
    return a


def vector(
    who: str, name: str, value: Any, shape: tuple[int, ...], kind: type, beside: str = "x", single: bool = False
) -> ndarray:
    """Return a parameter or statistic as a contiguous float64 array; the array itself if it is one already.

    single: float32 arrays of this kind are returned as they are too.
    """
    like_x = type(value) is kind
    if like_x and ((dtype := value.dtype) is FLOAT64 or dtype is FLOAT32) and value.shape == shape:
        given: ndarray = value
        if given.flags.carray if kind is ndarray else given.flags.c_contiguous:
            return given if dtype is FLOAT64 or single else given.astype(FLOAT64)
    a = real(who, name, value, kind, beside)
    if a.dtype.kind == "b":
        raise TypeError(f"{who}: {name}: expected numbers, got bools")
    if a.shape != shape:
        raise ValueError(f"{who}: {name}: expected shape {shape}, got {a.shape}")
    dense: ndarray = view.dense(a, FLOAT64)
    return dense


def statistics(who: str, mean: object, var: object, shape: tuple[int, ...], kind: type) -> tuple[ndarray, ndarray]:
    """Return given mean and var as vectors. Both must be given, and var must not be negative.

    NaN is allowed, and propagates to y. On a GPU a negative variance is not detected, as the test would synchronize; y
    is then NaN.
    """
    if mean is None or var is None:
        missing, given = ("mean", "var") if mean is None else ("var", "mean")
        raise ValueError(f"{who}: {missing}: expected an array of shape {shape}, as {given} is given, got None")
    there = kind is not ndarray  # whose kernels read float32 too
    mean, var = (vector(who, name, value, shape, kind, single=there) for name, value in (("mean", mean), ("var", var)))
    if kind is ndarray and np.count_nonzero(var < 0):
        raise ValueError(f"{who}: var: expected no negative values, got {np.nanmin(var)}")
    return mean, var


def integer(who: str, name: str, value: Any) -> int:
    """Return an int or a NumPy integer as an int; a bool is an error."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{who}: {name}: expected an integer, got {value!r}")


def channel_axis(who: str, axis: object, shape: tuple[int, ...]) -> int:
    """Return the axis as an int between -ndim and ndim - 1."""
    axis = integer(who, "axis", axis)
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"{who}: axis: expected an axis of x, which has shape {shape}, got {axis}")
    return axis


def trailing_shape(who: str, normalized_shape: object, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return normalized_shape, an int or several, as a tuple. It must be the end of the shape of x."""
    if isinstance(normalized_shape, tuple | list):
        sizes = tuple(integer(who, "normalized_shape", n) for n in normalized_shape)
    else:
        sizes = (integer(who, "normalized_shape", normalized_shape),)
    if not sizes or sizes != shape[-len(sizes) :]:
        raise ValueError(f"{who}: normalized_shape: expected the last axes of x, which has shape {shape}, got {sizes}")
    return sizes


def groups(who: str, num_groups: object, channels: int) -> int:
    """Return num_groups, which must be at least 1 and a divisor of the number of channels."""
    num_groups = integer(who, "num_groups", num_groups)
    if num_groups < 1 or channels % num_groups:
        raise ValueError(f"{who}: num_groups: expected a divisor of the {channels} channels, got {num_groups}")
    return num_groups


def number(who: str, name: str, value: object) -> float:
    """Return a real number as a float, infinite if it is too large."""
    if isinstance(value, bool | np.timedelta64) or not isinstance(value, numbers.Real):  # NumPy calls a time an integer
        raise TypeError(f"{who}: {name}: expected a real number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def epsilon(who: str, eps: object) -> float:
    """Return eps, which must be finite and not negative."""
    value = number(who, "eps", eps)
    if not 0 <= value < math.inf:
        raise ValueError(f"{who}: eps: expected a finite number >= 0, got {eps!r}")
    return value


def ddof(who: str, ddof: object) -> float:
    """Return ddof, which is subtracted from a count and must be finite."""
    value = number(who, "ddof", ddof)
    if not math.isfinite(value):
        raise ValueError(f"{who}: ddof: expected a finite number, got {ddof!r}")
    return value


def momentum(who: str, momentum: object) -> float | None:
    """Return the weight of a new batch, which must be from 0 to 1, or None."""
    if momentum is None:
        return None
    value = number(who, "momentum", momentum)
    if not 0 <= value <= 1:
        raise ValueError(f"{who}: momentum: expected a number from 0 to 1, or None, got {value}")
    return value


def flag(who: str, name: str, value: object) -> bool:
    """Return True or False; truthy values of other types are an error."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{who}: {name}: expected True or False, got {value!r}")
    return bool(value)


def flags(who: str, **values: object) -> list[bool]:
    """Return several flags."""
    return [value if type(value) is bool else flag(who, name, value) for name, value in values.items()]


def factor(who: str, name: str, value: object) -> float:
    """Return a number, which must be finite and above 0."""
    found = number(who, name, value)
    if not 0 < found < math.inf:
        raise ValueError(f"{who}: {name}: expected a finite number above 0, got {value!r}")
    return found


def positive(who: str, name: str, value: object) -> int:
    """Return an integer, which must be above 0."""
    n = integer(who, name, value)
    if n < 1:
        raise ValueError(f"{who}: {name}: expected a positive integer, got {value!r}")
    return n


def choice(who: str, name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """Return a value, which must be one of the choices. All choices have the same type."""
    kind = type(choices[0])
    if isinstance(value, bool) or not isinstance(value, kind | np.integer if kind is int else kind):
        raise TypeError(f"{who}: {name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
    if value not in choices:
        raise ValueError(f"{who}: {name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
    return kind(value)


def parameter_dtype(who: str, dtype: Any) -> np.dtype[Any]:
    """Return the dtype of parameters and running statistics, which must be float64 or float32."""
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError):
        raise TypeError(f"{who}: dtype: expected float64 or float32, got {dtype!r}") from None
    if dtype is None or kind.char not in "fd" or not kind.isnative:
        raise ValueError(f"{who}: dtype: expected float64 or float32, got {dtype!r}")
    return kind


def activation(who: str, name: object, negative_slope: object) -> Activation:
    """Return the activation of this name, in the form that the kernels take."""
    below = negative_slope if type(negative_slope) is float else number(who, "negative_slope", negative_slope)
    if not 0 <= below < 1:
        raise ValueError(f"{who}: negative_slope: expected a number from 0 to below 1, got {negative_slope!r}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{who}: activation: expected None or a name, got {type_name(name)}")
    if name not in NAMES:
        raise ValueError(f"{who}: activation: expected None or one of {', '.join(filter(None, NAMES))}, got {name!r}")
    return named(name, below + 0.0)  # turns -0.0 into 0.0


def weights(who: str, weight: object, layout: view.Layout, kind: type, keep: bool = True) -> tuple[ndarray, float]:
    """Return weights in the form that the kernels take, and the number of weights above 0; any number above 1 means
    several. On the CPU float32 and masks, of bool or uint8, keep their type.

    On a device this synchronizes once. With `keep` the weights are a copy if they would share the caller's memory: a
    backward needs the weights of its forward, and a mask is often reused.
    """
    given = real(who, "weight", weight, kind)
    w = placed(who, view.weights, given, layout)
    shared = keep and given.dtype == w.dtype and np.may_share_memory(w, given)
    if kind is not ndarray:
        positive = check_weights(who, w)
        return w.copy() if shared else w, positive
    kept, total, positive = cpu.keep_weights(w, shared)
    if total and not LIGHTEST <= total < math.inf:
        check_weights(who, w)
    return kept, positive


def placed(who: str, order: Callable[[Any, view.Layout], ndarray], given: ndarray, layout: view.Layout) -> ndarray:
    """Return weights or codes of groups in the order of a layout, by `view.weights` or `view.codes`."""
    try:
        return order(given, layout)
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from None


def check_weights(who: str, w: ndarray, times: int = 1) -> float:
    """Make the other checks of `weights`, which say what is wrong: they are finite, not negative, and have a sum within
    float64. times: how often each counts in the sum. On a device this synchronizes once.

    Return the number of weights above 0.
    """
    if not w.size:
        return 0.0
    with np.errstate(over="ignore"):
        some = w.min(), w.max(), w.sum(dtype=np.float64), np.count_nonzero(w)
    lowest, highest, total, positive = BACKENDS[type(w)].numbers(*some)
    if not (lowest >= 0 and highest < math.inf):
        raise ValueError(f"{who}: weight: expected finite values >= 0, got values from {lowest} to {highest}")
    _divisor(who, "weight", total * times)
    return float(positive)


def total_weight(who: str, name: str, w: ndarray) -> float:
    """Return the sum of weights, which must be 0 or a number by which statistics can be divided."""
    with np.errstate(over="ignore"):
        return _divisor(who, name, float(w.sum()))


def _divisor(who: str, name: str, total: float) -> float:
    if total and not LIGHTEST <= total < math.inf:
        raise ValueError(f"{who}: {name}: expected a sum that float64 can divide by, or 0, got {total}")
    return total


def several_values(who: str, rows: ndarray, shape: tuple[int, ...], each: bool) -> None:
    """Check, for group and instance norm of (N, G, K, L), that there is more than one value per row, if there are rows.

    As in PyTorch, instance norm (`each`) requires several values per group in each sample, and group norm only in the
    full batch: groups of one value become beta, unless there is only one sample.
    """
    samples, groups, channels, positions = rows.shape
    if rows.size and channels * positions * (1 if each else samples) == 1:
        raise SingleValueError(
            f"{who}: x: expected more than one value per group (of channels, in one sample) for statistics, "
            f"got shape {shape} in {groups} groups"
        )


def missing(who: str, package: str, extra: str, error: ImportError) -> ImportError:
    """Return the error for a library that cannot be imported. It names the extra of bnorm that installs it."""
    kind = ModuleNotFoundError if isinstance(error, ModuleNotFoundError) else ImportError
    return kind(f"{who}: expected {package} to be installed, got {error}: pip install 'bnorm[{extra}]'")


def differ(value: Any, default: Any) -> bool:
    """Whether a setting is known to differ from its default. Of arrays it is not: they compare element by element."""
    try:
        different = value != default
    except (TypeError, ValueError):  # arrays of different shapes, or arrays in tuples
        return False
    return isinstance(different, bool | np.bool_) and bool(different)


def type_name(value: object) -> str:
    """Return the name of a value's type for messages."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
