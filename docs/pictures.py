"""The pictures of displays and examples, drawn whenever the documentation is built, by the code that they show."""

import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnorm import BatchNorm1d, BatchNormTransformer, dataset_moments, functional
from bnorm.plot import NormalizationDisplay, RunningStatsDisplay

NAMES = ["temperature", "pressure", "flow", "vibration", "voltage", "valve"]


def stream(batches=120, rows=200, seed=0):
    """Six features; the pressure drifts, and the vibration grows."""
    rng = np.random.default_rng(seed)
    mean, std = np.array([21.0, 1013.0, 3.2, 0.0, 230.0, 1.0]), np.array([1.5, 4.0, 0.8, 0.02, 2.0, 0.0])
    for time in np.linspace(0, 1, batches):
        drift = std * [0.3 * np.sin(9 * time), 2.5 * time**2, 0, 0, 0.2 * np.sin(5 * time), 0]
        yield mean + drift + std * [1, 1, 1, 1 + 3 * time, 1, 1] * rng.normal(size=(rows, len(NAMES)))


def run(example, folder):
    """The picture of an example, under its name."""
    script = Path(__file__).parents[1] / "examples" / f"{example}.py"
    before, sys.argv = sys.argv, [str(script), "--plot", str(folder / f"{example}.png")]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = before


def draw(folder):
    """Both displays, the pictures of examples that are not run for the gallery, and that of padded batches."""
    mpl.use("agg")
    t = BatchNormTransformer(halflife=2000, history=60)
    for batch in stream():
        frame = pd.DataFrame(batch, columns=NAMES)
        t.partial_fit(frame)
    RunningStatsDisplay.from_estimator(t).figure_.savefig(folder / "running_stats.png", dpi=110)
    frame.loc[7, "flow"] = 60.0
    chosen = ["temperature", "pressure", "flow", "valve"]
    display = NormalizationDisplay.from_estimator(t.fit(frame), frame, features=chosen)
    display.figure_.savefig(folder / "normalization.png", dpi=110)
    for example in ("cartpole_statistics", "forecast_revin"):
        run(example, folder)
    padding(folder / "padding.png")
    tables(folder)
    images(folder / "image_statistics.png")
    climate(folder / "climate_statistics.png")
    processes(folder / "mpi_sync.png")


def tables(folder):
    """The columns of the examples for Dask and Spark, before and after."""
    rng, i = np.random.default_rng(0), np.arange(12)
    for name, scale, middle in (("dask_table", 10.0 ** (i / 2 - 3), i**2), ("spark_table", i + 1, 1e5 * i)):
        x = rng.standard_normal((2000, len(i))) * scale + middle
        display = NormalizationDisplay.from_estimator(BatchNormTransformer(momentum=None).fit(x), x)
        display.figure_.savefig(folder / f"{name}.png", dpi=110)


def images(path):
    """The deviation of all pixels, and the mean of the deviations of single images."""
    rng = np.random.default_rng(0)
    pixels = [rng.uniform(20, 230, 3) + rng.standard_normal((4000, 3)) * 15 for _ in range(60)]
    right = dataset_moments(pixels, axis=1).std()
    wrong = np.mean([functional.moments(one, axis=1).std() for one in pixels], axis=0)
    figure = Figure(figsize=(6, 4), layout="constrained")
    ax, places = figure.subplots(), np.arange(3)
    ax.bar(places - 0.2, right, 0.38, color="#0072b2", label="of all pixels")
    ax.bar(places + 0.2, wrong, 0.38, color="#d55e00", label="mean over images: too small")
    ax.set_xticks(places, ["red", "green", "blue"])
    ax.set(ylabel="standard deviation", title="60 images, some dark and some bright", ylim=(0, 1.25 * right.max()))
    ax.legend()
    figure.savefig(path, dpi=110)


def climate(path):
    """Statistics over time of each point of a made-up temperature."""
    rng, days = np.random.default_rng(0), np.arange(365)
    lat, lon = np.deg2rad(np.linspace(-88, 88, 45)), np.deg2rad(np.arange(0, 360, 4))
    still = 300 - 45 * np.abs(np.sin(lat))[:, None] + 4 * np.sin(2 * lon) * np.cos(lat)[:, None]
    season = 8 * np.sin(2 * np.pi * days / 365)[:, None, None] * np.sin(lat)[:, None]
    m = functional.moments(still + season + rng.standard_normal((365, 45, 90)) * 2, axis=(1, 2))
    figure = Figure(figsize=(6, 6), layout="constrained")
    for ax, field, word in zip(figure.subplots(2), (m.mean, m.std()), ("mean", "standard deviation"), strict=True):
        drawn = ax.imshow(field, extent=(0, 360, -90, 90), origin="lower", cmap="viridis")
        figure.colorbar(drawn, ax=ax, label=f"{word}, K")
        ax.set(xlabel="longitude", ylabel="latitude", xticks=range(0, 361, 90), yticks=range(-90, 91, 45))
    figure.savefig(path, dpi=110)


def processes(path):
    """What two processes learn from halves of a batch: alone, and with the sums of both."""
    rng, steps = np.random.default_rng(0), 60
    alone, both = (BatchNorm1d(1, 0, 0.1), BatchNorm1d(1, 0, 0.1)), BatchNorm1d(1, 0, 0.1)
    means = np.empty((3, steps))
    for i in range(steps):
        halves = rng.normal(2, 1, (4, 1)), rng.normal(5, 1, (4, 1))
        for layer, x in zip((*alone, both), (*halves, np.concatenate(halves)), strict=True):
            layer(x)
        means[:, i] = [layer.running_mean[0] for layer in (*alone, both)]
    figure = Figure(figsize=(6, 4), layout="constrained")
    ax = figure.subplots()
    for mean, name in zip(means, ("process 0 alone", "process 1 alone", "both, by comm="), strict=True):
        ax.plot(mean, label=name)
    ax.set(xlabel="step", ylabel="running mean", title="Two processes with different data")
    ax.legend()
    figure.savefig(path, dpi=110)


def padding(path):
    """What batch norm learns from padded batches, with and without a mask."""
    rng, batches = np.random.default_rng(0), 200
    layers = {"without mask": BatchNorm1d(1, 0, 0.05), "weight=mask": BatchNorm1d(1, 0, 0.05)}
    means = {name: np.empty(batches) for name in layers}
    for i in range(batches):
        mask = np.arange(40) < rng.integers(2, 10 + 30 * (i % 100 < 50), size=16)[:, None]
        x = np.where(mask, rng.normal(5, 2, size=mask.shape), 0)[:, None, :]
        for name, layer in layers.items():
            layer(x, weight=None if name == "without mask" else mask)
            means[name][i] = layer.running_mean[0]
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    ax = figure.subplots()
    for name, mean in means.items():
        ax.plot(mean, label=name)
    ax.axhline(5, color="gray", linestyle=":", label="mean of the values")
    ax.set(xlabel="batch", ylabel="running mean", title="Sequences are long, short, long, short")
    ax.legend()
    figure.savefig(path, dpi=110)
