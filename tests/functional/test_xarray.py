"""Statistics of xarray objects: xarray's own on easy data, those of long double on hard data, in chunks too."""

import tracemalloc

import numpy as np
import pytest

import bnorm.functional as F

xr = pytest.importorskip("xarray")

from bnorm.xarray import moments, normalize  # noqa: E402

rng = np.random.default_rng(0)
LAT = np.linspace(-80, 80, 9)


def field(offset=0.0, dtype="float32", missing=0.1):
    values = (rng.standard_normal((20, 2, 9, 10)) * 3 + offset).astype(dtype)
    values[rng.random(values.shape) < missing] = np.nan
    coords = {"lat": LAT, "level": [500, 850], "time": np.arange(20), "area": ("lat", np.arange(9.0))}
    attrs = {"units": "K", "long_name": "temperature"}
    return xr.DataArray(values, dims=("time", "level", "lat", "lon"), coords=coords, name="t", attrs=attrs)


COSLAT = xr.DataArray(np.cos(np.deg2rad(LAT)), dims="lat", coords={"lat": LAT})
WEIGHTS = {
    "none": None,
    "coslat": COSLAT,
    "lat and level": (COSLAT * xr.DataArray([1.0, 2.0], dims="level", coords={"level": [500, 850]})),
    "every value": xr.DataArray(rng.random((9, 20, 10)), dims=("lat", "time", "lon")),
    "level": xr.DataArray([1.0, 0.5], dims="level"),
}
DIMS = [("time", "lat", "lon"), "time", ("lat", "lon"), ("lon", "level"), None, ("level", "lat")]


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("dim", DIMS, ids=str)
def test_those_of_xarray_itself(dim, weight):
    x, w = field(), WEIGHTS[weight]
    full = x.astype("float64")
    weighted = full.weighted(xr.ones_like(full, dtype=float) if w is None else w)
    for chunks in (None, {"time": 11, "lat": 5, "level": 1}):
        if chunks is not None:
            pytest.importorskip("dask")
            x = x.chunk(chunks)
        stats = moments(x, dim, w, minmax=True)
        dims = full.dims if dim is None else dim
        for name, want in (
            ("mean", weighted.mean(dims)),
            ("var", weighted.var(dims)),
            ("count", weighted.sum_of_weights(dims)),
        ):
            xr.testing.assert_allclose(stats[name], want.drop_attrs(), rtol=1e-11, atol=1e-11)
            assert stats[name].dims == want.dims
        if w is None or bool((w > 0).all()):
            np.testing.assert_array_equal(stats["max"].values, full.max(dims).values)
    assert stats["mean"].attrs == {"units": "K"} and stats["var"].attrs == {}
    left = set(stats["mean"].dims)
    assert set(stats.coords) == {name for name, c in x.coords.items() if set(c.dims) <= left}


@pytest.mark.parametrize("chunked", [False, True])
def test_right_where_the_mean_is_far_away(chunked):
    x = field(offset=1e5, missing=0.0)
    values = x.values.astype(np.longdouble)
    w = np.broadcast_to(COSLAT.values[:, None].astype(np.longdouble), values.shape)
    mean = (w * values).sum(axis=(0, 2, 3)) / w[:, 0].sum()
    var = (w * (values - mean[:, None, None]) ** 2).sum(axis=(0, 2, 3)) / w[:, 0].sum()
    if chunked:
        pytest.importorskip("dask")
        x = x.chunk({"time": 3})
    stats = moments(x, ("time", "lat", "lon"), COSLAT)
    np.testing.assert_allclose(stats["mean"], mean.astype(float), rtol=1e-15)
    np.testing.assert_allclose(stats["var"], var.astype(float), rtol=1e-11)


@pytest.mark.parametrize("dim", [("time",), ("time", "lat", "lon"), ("lat",), None], ids=str)
@pytest.mark.parametrize("chunked", [False, True])
def test_normalize_keeps_what_is_not_values(dim, chunked):
    x = field(offset=1e4)
    stats = moments(x, dim)
    want = (x.astype(float) - stats["mean"]) / np.sqrt(stats["var"])
    if chunked:
        pytest.importorskip("dask")
        x = x.chunk({"time": 6, "lat": 5})
    y = normalize(x, stats)
    assert y.dims == x.dims and y.name == "t" and y.attrs == x.attrs and y.dtype == np.float32
    assert (y.chunks is not None) == chunked
    xr.testing.assert_identical(y.coords.to_dataset(), x.coords.to_dataset())
    np.testing.assert_allclose(y.values, want.transpose(*x.dims).values, atol=2e-6)
    strided = x.isel(lon=slice(None, None, -2))
    np.testing.assert_allclose(normalize(strided, moments(strided, "time")).mean("time").values, 0, atol=1e-5)


@pytest.mark.parametrize("chunked", [False, True])
def test_encodings_are_those_after_arithmetic(chunked):
    """A file would pack the result into the integers of other values. x itself, and its coordinates, keep theirs."""
    x, packed = field(), {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0}
    if chunked:
        pytest.importorskip("dask")
        x = x.chunk({"time": 6})
    x.encoding, x["lat"].encoding = packed, {"dtype": "float32"}
    ds = xr.Dataset({"t": x, "name": ("time", ["x"] * 20, {}, {"dtype": "S1"})})
    for y in (normalize(x, moments(x, "time")), normalize(ds, moments(ds, "time"))["t"]):
        assert y.encoding == (x + 1).encoding == {} and y["lat"].encoding == (x + 1)["lat"].encoding
    assert normalize(ds, moments(ds, "time"))["name"].encoding == {"dtype": "S1"}
    assert x.encoding == ds["t"].encoding == packed


def test_datasets():
    a, b = field(), field(offset=5.0).rename("q")
    ds = xr.Dataset({"t": a, "q": b, "mask": a.isel(time=0, level=0, drop=True), "name": ("time", ["x"] * 20)})
    stats = moments(ds[["t", "q"]], ("time", "lat", "lon"))
    assert stats["mean"].dims == ("variable", "level") and stats["variable"].values.tolist() == ["t", "q"]
    np.testing.assert_allclose(stats["mean"].sel(variable="q"), moments(b, ("time", "lat", "lon"))["mean"])
    y = normalize(ds, stats)
    np.testing.assert_allclose(y["q"].mean(("time", "lat", "lon")), 0, atol=1e-6)
    xr.testing.assert_identical(y["mask"], ds["mask"])
    mixed = moments(ds, ("time", "lat"))  # other dimensions are left of mask
    assert mixed["mean_t"].dims == ("level", "lon") and mixed["var_mask"].dims == ("lon",)
    np.testing.assert_allclose(normalize(ds, mixed)["mask"].mean("lat"), 0, atol=1e-6)


def test_integers_skipna_and_empty_dimensions():
    x = xr.DataArray(np.arange(12, dtype=np.uint8).reshape(3, 4), dims=("a", "b"))
    assert moments(x)["mean"].item() == 5.5 and moments(x, ())["mean"].shape == (3, 4)
    y = normalize(x, moments(x, "b"))
    assert y.dtype == np.float64 and abs(y.mean("b")).max() < 1e-15
    bad = x.astype(float).where(x != 3)
    assert np.isnan(moments(bad, skipna=False)["mean"]) and moments(bad)["count"] == 11
    constant = xr.full_like(bad, 7.0)
    assert (normalize(constant, moments(constant, "a")) == 0).all()


@pytest.mark.parametrize("left", ["ab", "abc", "c", "b", "ac"])
@pytest.mark.parametrize(
    "chunks", [((0, 3), 2, 4), (3, (2, 0), 4), (3, 2, (4, 0, 0)), ((3, 0), (0, 2), (1, 0, 3))], ids=str
)
def test_chunks_without_values(chunks, left):
    da = pytest.importorskip("dask.array")
    values = np.arange(24.0).reshape(3, 2, 4)
    x, lazy = (xr.DataArray(a, dims=("a", "b", "c")) for a in (values, da.from_array(values, chunks=chunks)))
    stats = moments(x, set("abc") - set(left))
    xr.testing.assert_allclose(moments(lazy, set("abc") - set(left)), stats)
    for dims in ("a", "bc", "abc"):
        weight = xr.ones_like(x.isel({dim: 0 for dim in "abc" if dim not in dims}, drop=True)) / 2
        for w in (weight, weight.chunk(2)):
            weighted = moments(lazy, set("abc") - set(left), weight=w)
            xr.testing.assert_allclose(weighted, stats.assign(count=stats["count"] / 2))
    xr.testing.assert_allclose(normalize(lazy, stats, eps=1.0).compute(), normalize(x, stats, eps=1.0))
    none = normalize(x[:0], stats.isel(a=slice(0)) if "a" in left else stats)
    assert none.shape == (0, 2, 4)


@pytest.mark.parametrize("shape", [(), (3,), (3, 4)])
def test_byte_order(shape):
    """Statistics and results of swapped bytes are those of the machine's own."""
    x = xr.DataArray(np.arange(1.0, 1.0 + np.prod(shape, dtype=int)).reshape(shape))
    stats = moments(x.astype(">f4"))
    assert stats.identical(moments(x))
    for swapped in (x.astype(">f4"), *([x.astype(">f4").chunk(2)] if shape else [])):
        z = normalize(swapped, stats)
        assert z.dtype == z.compute().dtype == np.dtype("float32") and z.dtype.isnative
        np.testing.assert_allclose(z, normalize(x, stats), rtol=1e-6)


@pytest.mark.parametrize("dim", ["a", "b", "c"])
def test_what_is_too_large_becomes_infinite_without_a_warning(dim):
    x = xr.DataArray(np.full((2, 3, 4), 6e4, np.float16), dims=("a", "b", "c"))
    stats = moments(x * 0, dim)
    stats["var"][...] = 1e-4
    with np.errstate(all="raise"):
        assert (normalize(x, stats) == np.inf).all()


def test_weights_are_not_spread_in_memory():
    x = xr.DataArray(np.ones((50, 40, 300), np.float32), dims=("time", "lat", "lon"))
    w = xr.DataArray(np.linspace(0, 1, 40), dims="lat")
    peaks = []
    for dim in (None, "time", ("lat", "lon")):
        tracemalloc.start()
        moments(x, dim, w)
        peaks.append(tracemalloc.get_traced_memory()[1] / x.nbytes)
        tracemalloc.stop()
    assert peaks[0] < 0.2, peaks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": "x"}, r"xarray.moments: dim: expected some of the dimensions .* got 'x'"),
        ({"weight": np.ones(9)}, "xarray.moments: weight: expected a DataArray, got numpy.ndarray"),
        ({"weight": xr.DataArray(np.ones(3), dims="x")}, r"weight: expected some of the dimensions .* got \['x'\] too"),
        ({"weight": COSLAT.assign_coords(lat=LAT + 1)}, "weight: expected the coordinates of x, got others"),
        ({"weight": -COSLAT}, "xarray.moments: weight: expected finite values >= 0"),
        ({"skipna": None}, "skipna: expected True or False"),
    ],
)
def test_bad_calls(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        moments(field(), **arguments)
    if isinstance(arguments.get("weight"), np.ndarray):
        with pytest.raises(TypeError, match=message):
            moments(field().to_dataset(), **arguments)


def test_bad_statistics():
    x = field()
    with pytest.raises(TypeError, match=r"xarray.moments: x: expected a DataArray or Dataset, got numpy.ndarray"):
        moments(x.values)
    with pytest.raises(ValueError, match=r"stats: expected a result of moments, .* without \['mean', 'var'\]"):
        normalize(x, xr.Dataset())
    for data, other in ((x, F.moments(x.values)), (x.to_dataset(), {"mean_t": 0.0}), (x.to_dataset(), x)):
        with pytest.raises(
            TypeError, match=r"normalize: stats: expected a Dataset, got (\S*Moments|dict|\S*DataArray)$"
        ):
            normalize(data, other)
    stats = moments(x, "time")
    with pytest.raises(ValueError, match="stats: expected the coordinates of x, got others"):
        normalize(x.assign_coords(lat=LAT + 1), stats)
    with pytest.raises(ValueError, match=r"stats: expected statistics of dimensions of x, .* \['level', 'lat'\] too"):
        normalize(x.isel(lat=0, level=0, drop=True), stats)
    assert F.moments(x.values, axis=()).shape == ()


def test_a_dimension_or_a_coordinate_called_variable():
    a = xr.DataArray(np.arange(12.0).reshape(4, 3), dims=("time", "variable"))
    x = xr.Dataset({"a": a, "b": 2 * a + 1, "c": a.isel(variable=0) ** 2})
    along = x[["a", "b"]].rename(variable="x").assign_coords(variable=("x", [7, 8, 9]))
    for some in (x, x[["a", "b"]], along, along.isel(x=0)):
        xr.testing.assert_allclose(
            normalize(some, moments(some, "time")), (some - some.mean("time")) / some.std("time")
        )


@pytest.mark.parametrize("name", ["count", "mean", "var"])
def test_names_of_statistics_that_x_has_too(name):
    x = field()
    for odd in (x.rename(lat=name), x.rename(lon=name), x.assign_coords({name: 5}), x.assign_coords({name: x.area})):
        with pytest.raises(ValueError, match=rf"moments: x: expected .* of other names .* got \['{name}'\]: x.rename"):
            moments(odd, "time")
    assert moments(x.rename(lat=name), (name, "time"))["mean"].dims == ("level", "lon")
    odd = xr.Dataset({"a": x, "b": x.isel(lat=0, drop=True)}).assign_coords({f"{name}_b": ("lat", LAT)})
    with pytest.raises(ValueError, match=rf"moments: x: expected .* of other names .* got \['{name}_b'\]: x.rename"):
        moments(odd, "time")


def test_statistics_of_an_array_for_a_dataset():
    x = field()
    with pytest.raises(ValueError, match="stats: expected the statistics of a Dataset, as x is, got those of a Data"):
        normalize(x.to_dataset(), moments(x, "time"))
