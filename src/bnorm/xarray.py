"""Statistics of xarray objects over named dimensions, and standardization by these statistics.

    stats = moments(da, dim=("time", "lat", "lon"), weight=np.cos(np.deg2rad(da.lat)))
    y = normalize(da, stats)

The statistics are a Dataset, with the coordinates of the remaining dimensions.
"""

from __future__ import annotations  # signatures print names

from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm import checks, reductions
from bnorm.kernels import BACKENDS
from bnorm.kernels.activation import IDENTITY
from bnorm.kernels.engines import engine_of
from bnorm.moments import Moments

try:
    import xarray as xr
except ImportError as error:
    raise checks.missing(__name__, "xarray", "xarray", error) from error

__all__ = ["moments", "normalize"]
__dir__ = __all__.copy  # without what is imported here

Names = tuple[Hashable, ...]
VARIABLE = "variable"  # the dimension of the statistics of several variables


def moments(
    x: xr.DataArray | xr.Dataset,
    dim: Hashable | Iterable[Hashable] | None = None,
    weight: xr.DataArray | None = None,
    skipna: bool = True,
    *,
    minmax: bool = False,
) -> xr.Dataset:
    """Return count, mean and variance over some dimensions, computed in one pass.

    Parameters
    ----------
    x : DataArray or Dataset
        The data, in memory or in Dask chunks; each chunk is read once, by the worker that has it. Of a Dataset, all
        variables of numbers are used that have any of the dimensions.
    dim : name or names, optional
        The dimensions to reduce; by default all of them.
    weight : DataArray, optional
        How much each value counts: finite, not negative, with any dimensions of x. It is broadcast by their names,
        without a copy of the full size.
    skipna : bool, default True
        Whether to ignore NaN. Otherwise statistics with NaN are NaN.
    minmax : bool, default False
        Whether to find the least and the greatest value too.

    Returns
    -------
    Dataset
        Variables count, mean and var, and with minmax min and max, all float64, computed at once, not lazily. For a
        Dataset they have one more dimension, "variable", if all its variables have the same remaining dimensions, and
        neither these nor coordinates along them have that name; otherwise they are named count_a, mean_a and so on for
        a variable a. var is the mean squared difference from the mean.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from bnorm.xarray import moments
    >>> da = xr.DataArray(np.array([[1.0, 10.0], [3.0, 30.0]]), dims=("time", "x"), coords={"x": [5, 6]})
    >>> stats = moments(da, "time")
    >>> stats["mean"].values, stats["var"].values
    (array([ 2., 20.]), array([  1., 100.]))
    """
    who = "xarray.moments"
    skipna, minmax = checks.flags(who, skipna=skipna, minmax=minmax)
    if weight is not None:
        _check_type(who, "weight", weight, xr.DataArray)
    if isinstance(x, xr.DataArray):
        return _of_array(who, x, _dims(who, dim, x.dims), weight, skipna, minmax)
    _check_type(who, "x", x, xr.DataArray, xr.Dataset)
    dims = _dims(who, dim, tuple(x.dims))
    found = {}
    for name, a in x.data_vars.items():
        own = tuple(d for d in dims if d in a.dims)
        if a.dtype.kind in "buif" and own:
            if weight is not None and set(weight.dims) - set(a.dims):
                raise ValueError(
                    f"{who}: weight: expected dimensions of the variable {name!r}, {a.dims}, got {weight.dims}"
                )
            found[name] = _of_array(who, a, own, weight, skipna, minmax)
    if not found:
        raise ValueError(f"{who}: x: expected a variable of numbers with one of the dimensions {dims}, got none")
    if len({s["mean"].dims for s in found.values()}) == 1 and not any(map(_has_variable, found.values())):
        return xr.concat(list(found.values()), xr.IndexVariable(VARIABLE, [str(name) for name in found]), join="exact")
    taken = {name for s in found.values() for name in (*s.dims, *s.coords)}
    _refuse_taken(who, [f"{key}_{name}" for name, s in found.items() for key in s.data_vars], taken)
    return xr.merge(
        [s.rename({key: f"{key}_{name}" for key in s.data_vars}) for name, s in found.items()], join="exact"
    )


def normalize(x: xr.DataArray | xr.Dataset, stats: xr.Dataset, *, eps: float = 0.0) -> Any:
    """Normalize x: (x - mean) / sqrt(var + eps), with the dimensions, coordinates, attributes and name of x.

    What has been normalized has no encoding, as after xarray's own arithmetic: that of x, such as packed integers, is
    for other values.

    Parameters
    ----------
    x : DataArray or Dataset
        float16, float32 and float64 keep their type; all other types become float64. The result for Dask chunks is
        lazy. Variables of a Dataset without statistics are left as they are.
    stats : Dataset
        A result of `moments`, for dimensions of x. It is aligned with x by its coordinates, which must be those of x.
    eps : float, default 0.0
        Added to the variance. With 0, a constant has scale 1, as in BatchNormTransformer.

    Returns
    -------
    DataArray or Dataset

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> da = xr.DataArray(np.array([[1.0, 10.0], [3.0, 30.0]]), dims=("time", "x"), coords={"x": [5, 6]})
    >>> normalize(da, moments(da, "time")).values
    array([[-1., -1.],
           [ 1.,  1.]])
    """
    who = "xarray.normalize"
    eps = checks.epsilon(who, eps)
    _check_type(who, "stats", stats, xr.Dataset)
    if isinstance(x, xr.DataArray):
        return _normalized(who, x, stats, "", eps)
    _check_type(who, "x", x, xr.DataArray, xr.Dataset)
    result = x.copy()
    together = "mean" in stats  # otherwise each variable has its own statistics
    if together and VARIABLE not in stats["mean"].dims:
        raise ValueError(f"{who}: stats: expected the statistics of a Dataset, as x is, got those of a DataArray")
    for name, a in x.data_vars.items():
        if together:
            if str(name) in stats[VARIABLE].values:
                result[name] = _normalized(who, a, stats.sel({VARIABLE: str(name)}, drop=True), "", eps)
        elif f"mean_{name}" in stats:
            result[name] = _normalized(who, a, stats, f"_{name}", eps)
    return result


def _dims(who: str, dim: Any, dims: Names) -> Names:
    """Return the dimensions to reduce."""
    if dim is None or dim is ...:
        return dims
    given = (dim,) if isinstance(dim, str) or not isinstance(dim, Iterable) else tuple(dim)
    for one in given:
        if one not in dims:
            raise ValueError(f"{who}: dim: expected some of the dimensions {dims}, got {one!r}")
    return tuple(d for d in dims if d in given)


def _of_array(
    who: str, x: xr.DataArray, dim: Names, weight: xr.DataArray | None, skipna: bool, minmax: bool
) -> xr.Dataset:
    left = tuple(d for d in x.dims if d not in dim)
    coords = {name: c for name, c in x.coords.items() if set(c.dims) <= set(left)}
    names = ("count", "mean", "var", *(("min", "max") if minmax else ()))
    _refuse_taken(who, names, {*left, *coords})
    w = None if weight is None else _weight(who, x, weight)
    m = _moments(who, x, left, w, skipna, minmax)
    values = (m.count, m.mean, m.var(), *((m.min, m.max) if minmax else ()))
    stats = xr.Dataset({name: (left, np.array(value)) for name, value in zip(names, values, strict=True)}, coords)
    for name in stats.data_vars:
        if name not in ("count", "var") and "units" in x.attrs:
            stats[name].attrs["units"] = x.attrs["units"]
    return stats


def _has_variable(stats: xr.Dataset) -> bool:
    """Whether statistics have a dimension "variable", or a coordinate of that name with a dimension."""
    return VARIABLE in stats.dims or (VARIABLE in stats.coords and stats.coords[VARIABLE].ndim > 0)


def _refuse_taken(who: str, names: Iterable[str], taken: Collection[Hashable]) -> None:
    """Raise ValueError for names of statistics that dimensions or coordinates have."""
    if both := [name for name in names if name in taken]:
        raise ValueError(
            f"{who}: x: expected dimensions and coordinates of other names than those of the statistics, got "
            f"{both}: x.rename can give them others"
        )


def _check_type(who: str, name: str, value: object, *kinds: type) -> None:
    if not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{who}: {name}: expected a {expected}, got {checks.type_name(value)}")


def _weight(who: str, x: xr.DataArray, weight: xr.DataArray) -> xr.DataArray:
    """Return weights with dimensions of x, aligned with x."""
    if unknown := [d for d in weight.dims if d not in x.dims]:
        raise ValueError(f"{who}: weight: expected some of the dimensions {x.dims}, got {unknown} too")
    return _aligned(who, "weight", weight, x).transpose(*(d for d in x.dims if d in weight.dims))


def _aligned(who: str, name: str, a: xr.DataArray, x: xr.DataArray) -> xr.DataArray:
    """Return an array, which must have the labels of x; ValueError if it has others."""
    try:
        xr.align(x, a, join="exact", copy=False)
    except ValueError as error:
        raise ValueError(f"{who}: {name}: expected the coordinates of x, got others: {error}") from None
    return a


def _moments(
    who: str, x: xr.DataArray, left: Names, weight: xr.DataArray | None, skipna: bool, minmax: bool
) -> Moments:
    axes = tuple(x.dims.index(d) for d in left)
    if (engine := engine_of(x.data)) is not None:
        of_block = partial(_of_block, who, axes, skipna, minmax)
        beside = [] if weight is None else [_chunked(engine, x, weight)]
        found = engine.reduced(of_block, Moments.merge, x.data, axes, *beside)
        return reductions.assembled(found, tuple(x.data.numblocks[axis] for axis in axes))
    w = None if weight is None else np.asarray(_full(x.dims, weight))
    return _of_block(who, axes, skipna, minmax, x.values, w)


def _full(dims: Sequence[Hashable], a: xr.DataArray) -> Any:
    """Return an array with all dimensions, in order, of length 1 where it did not have the dimension."""
    return a.data.reshape([a.sizes.get(d, 1) for d in dims])


def _chunked(engine: Any, x: xr.DataArray, a: xr.DataArray) -> Any:
    """Return a lazy array in the chunks of x; it has one chunk along the axes of length 1."""
    chunks = [own if d in a.dims else (1,) for d, own in zip(x.dims, x.data.chunks, strict=True)]
    return engine.chunked(_full(x.dims, a), tuple(chunks))


def _of_block(
    who: str, axes: tuple[int, ...], skipna: bool, minmax: bool, x: ndarray, weight: ndarray | None = None
) -> Moments:
    """Return the moments of an array. weight: has all axes, some of length 1; it may vary along kept axes."""
    x = checks.array(who, x, integers=True)
    if weight is None or not x.size:
        return reductions.of_axes(who, x, axes, None, skipna, False, minmax)
    kept = [axis for axis in axes if weight.shape[axis] > 1]
    if not kept:
        w = weight.reshape([n for axis, n in enumerate(weight.shape) if axis not in axes])
        return reductions.of_axes(who, x, axes, w, skipna, False, minmax)
    axis = kept[0]
    found = []
    for i in range(x.shape[axis]):
        at = tuple(slice(i, i + 1) if a == axis else slice(None) for a in range(x.ndim))
        found.append(_of_block(who, axes, skipna, minmax, x[at], weight[at]))
    return reductions.assembled(found, tuple(x.shape[a] if a == axis else 1 for a in axes))


def _normalized(who: str, x: xr.DataArray, stats: xr.Dataset, suffix: str, eps: float) -> xr.DataArray:
    wanted = [f"{name}{suffix}" for name in ("mean", "var")]
    if missing := [name for name in wanted if name not in stats]:
        raise ValueError(f"{who}: stats: expected a result of moments, got a Dataset without {missing}")
    if unknown := [d for d in stats[wanted[0]].dims if d not in x.dims]:
        raise ValueError(f"{who}: stats: expected statistics of dimensions of x, {x.dims}, got {unknown} too")
    own = [_aligned(who, "stats", stats[name], x) for name in wanted]
    mean, var = (a.transpose(*(d for d in x.dims if d in a.dims)) for a in own)
    dtype = x.dtype.newbyteorder("=") if x.dtype.kind == "f" else np.dtype(np.float64)
    if (engine := engine_of(x.data)) is not None:
        beside = [_chunked(engine, x, a) for a in (mean, var)]
        y = x.copy(data=engine.blockwise(partial(_mapped, who, eps), dtype, x.data, *beside))
    else:
        y = x.copy(data=_mapped(who, eps, x.values, _full(x.dims, mean), _full(x.dims, var)))
    y.encoding = {}  # as in xarray's arithmetic: the integers of a packed file cannot hold these values
    return y


@np.errstate(all="ignore")  # as in the kernels: what is too large for a type becomes infinite
def _mapped(who: str, eps: float, x: ndarray, mean: ndarray, var: ndarray) -> ndarray:
    """Return (x - mean) / sqrt(var + eps); mean and var have length 1 along axes on which they do not depend."""
    x = checks.array(who, x, integers=True)
    x = x.astype(x.dtype.newbyteorder("="), copy=False)
    kernels = BACKENDS[type(x)]
    flat = [np.ascontiguousarray(a, np.float64).reshape(-1) for a in (mean, var)]
    stats = kernels.known(*flat, None, None, eps)
    differs = [axis for axis, n in enumerate(mean.shape) if n > 1]
    begin, end = (differs[0], differs[-1] + 1) if differs else (0, 0)
    if x.flags.c_contiguous and mean.shape[begin:end] == x.shape[begin:end]:
        block = x.reshape(prod(x.shape[:begin]), flat[0].size, prod(x.shape[end:]))
        return kernels.normalize(block, stats, IDENTITY).reshape(x.shape)  # type: ignore[no-any-return]
    y = np.empty(x.shape, x.dtype if x.dtype.kind == "f" else np.float64)
    center, scale = stats[0].reshape(mean.shape), stats[3].reshape(mean.shape)
    for i in range(len(x)):
        at = slice(i, i + 1)
        own = [a[at] if len(a) > 1 else a for a in (center, scale)]
        y[at] = (x[at] - own[0]) * own[1]  # in float64
    return y
