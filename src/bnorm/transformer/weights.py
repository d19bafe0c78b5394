"""Sample weights: one for each row, not negative, with a sum that float64 can divide by."""

from typing import Any

import numpy as np
from numpy import ndarray

from bnorm import checks
from bnorm.kernels import BACKENDS, kernels_for, kind_of, moved, view

WHO = "BatchNormTransformer"


def sample_weights(sample_weight: Any, kind: type, x: Any, some: bool) -> Any:
    """Return weights of the rows of x, float64 (rows,) of type `kind`: not negative, and with `some` not all zero."""
    from bnorm.transformer.sklearn_private import check_sample_weight

    kernels_for(sample_weight, WHO, "sample_weight", kind)
    if isinstance(sample_weight, np.ma.MaskedArray):  # scikit-learn would ignore the mask
        raise TypeError(f"{WHO}: sample_weight: expected an array without a mask, got numpy.ma.MaskedArray")
    if kind is ndarray and _plainly_good(sample_weight, len(x)):
        return view.dense(sample_weight, np.float64)
    if not some or (kind is not ndarray and kind_of(sample_weight) is not None):
        return _weights_by_numbers(checks.real(WHO, "sample_weight", sample_weight, kind), len(x), some)
    w: ndarray = check_sample_weight(sample_weight, x if kind is ndarray else np.empty((len(x), 0)), dtype=np.float64)
    _check_weights(w.min(), w, some)
    return moved(view.dense(w, np.float64), kind)


def _plainly_good(given: Any, n: int) -> bool:
    """Whether weights are clearly valid for n rows: scikit-learn's check of a million weights takes a millisecond."""
    if type(given) is not ndarray or given.dtype not in (np.float64, np.float32) or given.shape != (n,) or not n:
        return False
    with np.errstate(over="ignore"):
        return bool(given.min() >= 0 and checks.LIGHTEST <= given.sum(dtype=np.float64) < np.inf)


def as_checked(given: Any, x: ndarray) -> bool:
    """Whether scikit-learn's check would return the weights of the rows of a table of numbers as they are."""
    return _plainly_good(given, len(x)) and given.dtype == (x.dtype if x.dtype.kind == "f" else np.float64)


@np.errstate(over="ignore")  # of the sum
def _weights_by_numbers(given: ndarray, n: int, some: bool) -> ndarray:
    """Return weights of n rows on a device, or of a block, in which all may be zero.

    For its error messages scikit-learn is called with a small array that has the same fault.
    """
    from bnorm.transformer.sklearn_private import check_sample_weight

    if given.shape != (n,):
        check_sample_weight(np.ones(given.shape), np.empty((n, 0)))
    w: ndarray = view.dense(given, np.float64)
    lowest, highest, total = BACKENDS[type(w)].numbers(w.min(), w.max(), w.sum())
    check_sample_weight(np.array([lowest, highest, 1.0]), np.empty((3, 0)))  # an error for NaN or infinity
    _check_weights(lowest, np.array(total), some)
    return w


def _check_weights(lowest: float, w: ndarray, some: bool) -> None:
    """Raise ValueError if weights are negative, or with `some` all zero. w: the weights, or their sum."""
    if lowest < 0:
        raise ValueError(f"Negative values in data passed to `sample_weight`: expected none, got {lowest}")
    if some:
        refuse_no_weight(w)


def refuse_no_weight(w: Any) -> None:
    """Raise ValueError if all weights, or their sum, are zero."""
    if not checks.total_weight(WHO, "sample_weight", np.asarray(w)):
        raise ValueError("Sample weights must contain at least one non-zero number.")
