"""The pictures of the displays, drawn whenever the documentation is built, by the code that they show."""

import matplotlib as mpl
import numpy as np
import pandas as pd

from bnorm import BatchNormTransformer
from bnorm.plot import NormalizationDisplay, RunningStatsDisplay

NAMES = ["temperature", "pressure", "flow", "vibration", "voltage", "valve"]


def stream(batches=120, rows=200, seed=0):
    """Six features; the pressure drifts, and the vibration grows."""
    rng = np.random.default_rng(seed)
    mean, std = np.array([21.0, 1013.0, 3.2, 0.0, 230.0, 1.0]), np.array([1.5, 4.0, 0.8, 0.02, 2.0, 0.0])
    for time in np.linspace(0, 1, batches):
        drift = std * [0.3 * np.sin(9 * time), 2.5 * time**2, 0, 0, 0.2 * np.sin(5 * time), 0]
        yield mean + drift + std * [1, 1, 1, 1 + 3 * time, 1, 1] * rng.normal(size=(rows, len(NAMES)))


def draw(folder):
    """Both displays, as PNG files."""
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
