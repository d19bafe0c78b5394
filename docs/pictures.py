"""The pictures of displays and examples, drawn whenever the documentation is built, by the code that they show."""

import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnorm import BatchNorm1d, BatchNormTransformer
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
    """Both displays, the pictures of two examples, and that of padded batches, as PNG files."""
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
