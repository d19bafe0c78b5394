"""Statistics of a climate data set, by the names of its dimensions.

    python examples/climate_statistics.py          # a second; it needs xarray

A weather model standardizes each variable at each level by its mean and deviation over time and the globe, where a grid
point near a pole counts less. `bnorm.xarray.moments` takes dimensions by name, and weights that broadcast by name, and
reads each Dask chunk once. Models that predict the change from one step to the next also need the statistics of these
changes: `bnorm.dataset_moments(..., delta=1)`.
"""

import argparse

import numpy as np
import xarray as xr

import bnorm
from bnorm.xarray import moments, normalize


def temperature(days: int = 60) -> xr.DataArray:
    """A made-up temperature in kelvin, at two levels, colder at the poles."""
    rng = np.random.default_rng(0)
    lat, lon = np.linspace(-88, 88, 45), np.arange(0, 360, 4)
    climate = 300 - 45 * np.abs(np.sin(np.deg2rad(lat)))[:, None] + np.zeros(len(lon))
    season = 8 * np.sin(2 * np.pi * np.arange(days) / 365)[:, None, None] * np.sign(lat)[:, None]
    surface = climate + season + rng.standard_normal((days, len(lat), len(lon))) * 2
    values = np.stack([surface, 0.8 * surface], axis=1).astype(np.float32)
    coords = {"time": np.arange(days), "level": [1000, 500], "lat": lat, "lon": lon}
    return xr.DataArray(values, dims=("time", "level", "lat", "lon"), coords=coords, name="t", attrs={"units": "K"})


def main() -> None:
    argparse.ArgumentParser(description="Statistics of a data set, by the names of its dimensions.").parse_args()
    t = temperature()
    weight = np.cos(np.deg2rad(t.lat))

    stats = moments(t, dim=("time", "lat", "lon"), weight=weight, minmax=True)
    print(stats, "\n")
    print(
        "Without weights the poles count for too much: the mean is", moments(t, ("time", "lat", "lon"))["mean"].values
    )

    y = normalize(t, stats)
    again = moments(y, ("time", "lat", "lon"), weight)
    print("Normalized, with all coordinates and attributes:", again["mean"].values, again["var"].values.round(6))

    field = moments(t, "time")  # a climatology: statistics of each grid point
    print("A climatology has the shape", dict(field["mean"].sizes))

    # Months as arrays, as they would be read from files.
    months = (t.isel(time=slice(i, i + 30)).values for i in (0, 30))
    values, changes = bnorm.dataset_moments(months, axis=1, delta=1)
    print(
        f"From one day to the next, at {t.level.values} hPa: mean {changes.mean.round(4)}, std {changes.std().round(3)}"
    )
    print(f"The values themselves have std {values.std().round(3)}")


if __name__ == "__main__":
    main()
