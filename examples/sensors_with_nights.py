"""Sensors that are silent at night, and whose rows come late: forgetting by time, and a window of the last hours.

    python examples/sensors_with_nights.py                     # some seconds; a picture: sensors_with_nights.png
    python examples/sensors_with_nights.py --plot sensors.png  # to another file
    python examples/sensors_with_nights.py --quick             # fewer days

Four sensors drift slowly, as they age and as the weather changes. They measure at irregular times, are silent at night,
and one row in ten arrives up to two hours late. A linear model learns from their standardized values. Every batch is
first predicted and then learned, so the error is the one a user would have had (prequential evaluation). The scalers
that look back a few hours follow the drift; the one that remembers everything does not.

A half-life in rows forgets nothing in an hour without rows, and a lot in an hour with thousands. With a half-life in
time, a day-old row weighs the same whether the night was silent or not, and a late row has the weight of its own time.

Lines to copy:

    scaler = BatchNormTransformer(halflife="6h", history=200)  # or window="12h": the rows of the last 12 hours only
    model = make_pipeline(scaler, SGDRegressor())
    partial_fit_pipeline(model, x, y, times=times)             # time stamps, one for each row
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.linear_model import SGDRegressor
from sklearn.pipeline import make_pipeline

from bnorm import BatchNormTransformer, partial_fit_pipeline
from bnorm.plot import RunningStatsDisplay

try:
    import matplotlib as mpl
except ModuleNotFoundError as error:
    raise SystemExit(f"sensors_with_nights.py needs {error.name}: pip install matplotlib") from None

SENSORS, BATCH = 4, 50
START = np.datetime64("2024-03-01T00:00", "ns")
SCALERS = {
    "everything since the start": {"momentum": None},
    "half-life of 6 hours": {"halflife": "6h", "history": 200},
    "window of 12 hours": {"window": "12h"},
}


def measurements(days, seed=0):
    """Time stamps, readings and what they mean, in the order of their arrival."""
    rng = np.random.default_rng(seed)
    hours = np.sort(rng.uniform(0, 24 * days, 400 * days))
    hours = hours[(hours % 24 > 6) & (hours % 24 < 20)]  # silent at night
    state = rng.normal(size=(len(hours), SENSORS))
    drift = 8 * np.sin(hours[:, None] / (24 * days) * np.array([3, 5, 7, 9]) + np.arange(SENSORS))
    target = state @ np.array([1.0, -0.5, 0.8, 0.3]) + rng.normal(0, 0.1, len(hours))
    arrival = hours + (rng.random(len(hours)) < 0.1) * rng.uniform(0, 2, len(hours))
    order = np.argsort(arrival)
    times = START + (hours * 3.6e12).astype("m8[ns]")
    return times[order], (state * np.exp(drift / 8) + drift)[order], target[order]


def prequential(parameters, times, x, y):
    """The root mean squared error of predicting each batch before learning it, and the pipeline."""
    model = make_pipeline(BatchNormTransformer(**parameters), SGDRegressor(eta0=0.02, random_state=0))
    by_time = "momentum" not in parameters
    squares = []
    for i in range(0, len(x), BATCH):
        rows = slice(i, i + BATCH)
        if i:
            squares.append((model.predict(x[rows]) - y[rows]) ** 2)
        partial_fit_pipeline(model, x[rows], y[rows], times=times[rows] if by_time else None)
    errors = np.concatenate(squares)
    return np.sqrt(errors[len(errors) // 4 :].mean()), model


def main():
    """Run the stream with each scaler."""
    parser = argparse.ArgumentParser(description="Forget by time on a stream of sensors that pause at night.")
    parser.add_argument("--quick", action="store_true", help="fewer days")
    parser.add_argument("--plot", type=Path, default=Path("sensors_with_nights.png"), help="where the picture goes")
    args = parser.parse_args()
    if not args.plot.parent.is_dir():
        parser.error(f"--plot: there is no folder {args.plot.parent}")
    times, x, y = measurements(20 if args.quick else 60)
    print(f"{len(x)} rows of {SENSORS} sensors; predicting 0 has an error of {np.sqrt((y**2).mean()):.2f}")
    models = {}
    for name, parameters in SCALERS.items():
        error, models[name] = prequential(parameters, times, x, y)
        print(f"{name:28} error {error:.2f}")
    mpl.use("Agg")
    display = RunningStatsDisplay.from_estimator(models["half-life of 6 hours"][0])
    display.figure_.savefig(args.plot, dpi=100)
    print(f"the statistics over time are in {args.plot}")


if __name__ == "__main__":
    main()
