"""Moments of groups of values: `functional.moments` with codes of groups."""

from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike

from bnorm import checks
from bnorm.kernels import view
from bnorm.kernels.cpu import groups as kernels
from bnorm.kernels.engines import engine_of
from bnorm.moments import Moments

MOST = 2**31 - 1  # the largest number of groups


def moments(
    who: str,
    x: Any,
    axis: Any,
    groups: ArrayLike,
    n_groups: int | None,
    weight: ArrayLike | None,
    skipna: bool,
    exact: bool,
) -> Moments:
    """Return moments of shape (G, C). The arguments are those of `functional.moments`."""
    if exact:
        raise ValueError(f"{who}: groups: expected None with exact=True, got codes: sums of groups are rounded")
    if (engine := engine_of(x)) is not None:
        raise TypeError(
            f"{who}: groups: expected None for a {engine.NAME} collection, got codes: call moments for each block, "
            "with one n_groups, and merge what it returns"
        )
    x = checks.array(who, x, integers=True)
    if type(x) is not ndarray:
        raise TypeError(
            f"{who}: groups: expected None for CuPy arrays, got codes: groups are summed on the CPU, and "
            "cupy.asnumpy(x) moves x there"
        )
    block, layout = view.channels(x, checks.channel_axis(who, axis, x.shape))
    codes, n = _codes(who, groups, n_groups, layout)
    w: ndarray | None = None
    if weight is not None:
        w, _ = checks.weights(who, weight, layout, ndarray, keep=False)
        w = view.dense(w, np.float64)
    try:
        return Moments._from_parts(kernels.moments(block, codes, n, w, skipna))
    except IndexError:
        raise ValueError(
            f"{who}: groups: expected codes from -1 to {n - 1}, that is n_groups - 1, "
            f"got {codes.min()} to {codes.max()}"
        ) from None


def _codes(who: str, groups: ArrayLike, n_groups: int | None, layout: view.Layout) -> tuple[ndarray, int]:
    """Return codes in the form that the kernels take, and the number of groups."""
    given = checks.real(who, "groups", groups, ndarray)
    if given.dtype.kind not in "ui" and given.size:
        raise TypeError(f"{who}: groups: expected integers, got dtype {given.dtype}")
    if given.dtype == np.uint64 and given.size and given.max() > MOST:
        raise ValueError(f"{who}: groups: expected codes below {MOST}, got {given.max()}")
    codes = checks.placed(who, view.codes, given, layout)
    if n_groups is None:
        n = max(0, int(codes.max()) + 1) if codes.size else 0
    else:
        n = checks.integer(who, "n_groups", n_groups)
    if not 0 <= n <= MOST:
        raise ValueError(f"{who}: n_groups: expected 0 to {MOST}, got {n}")
    return codes, n
