"""A linear forecaster in plain NumPy, with and without reversible instance norm, on series whose level changes.

    python examples/forecast_revin.py                       # some seconds; the picture goes to forecast_revin.png
    python examples/forecast_revin.py --plot forecast.png   # to another file
    python examples/forecast_revin.py --quick               # fewer steps

Seven series have a daily and a weekly rhythm, and a level that wanders about a mean. From the last 96 values of each, a
linear model forecasts the next 24. It is trained on the first part. Then level and spread change, as when a town grows
or a machine is reset, and the model is tested on the last part. Without RevIN it pulls every forecast to the old mean,
which it has learned by heart. With RevIN each window is standardized by its own level and spread, the model forecasts
what is left, and the inverse brings the forecast back. This costs a little where nothing changes.

Lines to copy into a forecaster of your own:

    rev = bnorm.RevIN(7)                                 # channels; x is (batch, time, channels)
    z = rev(x)                                           # forward
    y = rev.inverse(model(z))                            # the forecast, on the level of its series
    dz = model.backward(rev.inverse.backward(dy))        # backward, first through the inverse
    dx = rev.backward(dz)                                # adds to rev.gamma.grad and rev.beta.grad
"""

import argparse
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import bnorm

try:
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise SystemExit(f"forecast_revin.py needs {error.name}: pip install matplotlib") from None

PAST, FUTURE, CHANNELS = 96, 24, 7
BATCH = 64


def series(length, seed):
    """(time, channels): rhythms on a level that wanders about a mean; from 0.7 to 0.8 level and spread change."""
    rng = np.random.default_rng(seed)
    t = np.arange(length)[:, None]
    phases, sizes = rng.uniform(0, 2 * np.pi, (2, CHANNELS)), rng.uniform(1, 3, CHANNELS)
    rhythm = sizes * np.sin(2 * np.pi * t / 24 + phases[0]) + np.sin(2 * np.pi * t / 168 + phases[1])
    level = rng.normal(0, 0.5, (length, CHANNELS))
    for i in range(1, length):
        level[i] += 0.97 * level[i - 1]
    late = np.clip((t / length - 0.7) / 0.1, 0, 1)
    return ((rhythm + level) * (1 + late) + rng.uniform(10, 20, CHANNELS) * late).astype("float32")


class Linear:
    """The same linear map of the past to the future for every channel, trained by Adam."""

    def __init__(self, rng):
        self.weight = bnorm.Parameter(rng.normal(0, 0.01, (FUTURE, PAST)))
        self.bias = bnorm.Parameter(np.zeros((FUTURE, 1)))

    def __call__(self, x):
        self.x = x
        return self.weight.data @ x + self.bias.data

    def backward(self, dy):
        self.weight.grad += np.einsum("nsc,ntc->st", dy, self.x)
        self.bias.grad += dy.sum(axis=(0, 2))[:, None]
        return self.weight.data.T @ dy

    def parameters(self):
        return [self.weight, self.bias]


class Adam:
    """The optimizer of Kingma and Ba."""

    def __init__(self, parameters, rate=3e-3):
        self.parameters, self.rate, self.step_number = parameters, rate, 0
        self.moments = [(np.zeros(p.shape), np.zeros(p.shape)) for p in parameters]

    def step(self):
        self.step_number += 1
        for p, (m, v) in zip(self.parameters, self.moments, strict=True):
            m += 0.1 * (p.grad - m)
            v += 0.001 * (p.grad**2 - v)
            away = m / (1 - 0.9**self.step_number)
            p.data -= self.rate * away / (np.sqrt(v / (1 - 0.999**self.step_number)) + 1e-8)
            p.zero_grad()


class Forecaster:
    """A linear model, behind RevIN if there is one."""

    def __init__(self, rev, seed):
        self.rev, self.linear = rev, Linear(np.random.default_rng(seed))
        self.optimizer = Adam(self.linear.parameters() + (rev.parameters() if rev else []))

    def __call__(self, x):
        if self.rev is None:
            return self.linear(x)
        return self.rev.inverse(self.linear(self.rev(x)))

    def learn(self, x, y):
        error = self(x) - y
        dy = 2 * error / error.size
        if self.rev is None:
            self.linear.backward(dy)
        else:
            self.rev.backward(self.linear.backward(self.rev.inverse.backward(dy)))
        self.optimizer.step()


def windows(x, starts):
    """The past and the future of each window."""
    both = np.stack([x[s : s + PAST + FUTURE] for s in starts])
    return both[:, :PAST], both[:, PAST:]


def trained(rev, x, steps, seed):
    """A forecaster after so many steps on windows of x."""
    model, rng = Forecaster(rev, seed), np.random.default_rng(seed)
    for _ in range(steps):
        model.learn(*windows(x, rng.integers(0, len(x) - PAST - FUTURE, BATCH)))
    return model


def error_of(model, x):
    """The mean absolute error over all windows, one every six steps, divided by the spread of the series."""
    past, future = windows(x, range(0, len(x) - PAST - FUTURE, 6))
    return float(np.abs(model(past) - future).mean() / x.std(axis=0).mean())


def plot(path, models, test):
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    axes = figure.subplots(1, len(models), sharey=True)
    start = len(test) - PAST - FUTURE
    past, future = windows(test, [start])
    for ax, (name, model) in zip(axes, models.items(), strict=True):
        ax.plot(range(-PAST, 0), past[0, :, 0], color="0.5", linewidth=1, label="the past")
        ax.plot(range(FUTURE), future[0, :, 0], color="0.2", linestyle=":", label="what came")
        ax.plot(range(FUTURE), model(past)[0, :, 0], color="C1", label="the forecast")
        ax.set(title=name, xlabel="hours")
    axes[0].legend(fontsize="small", loc="upper left")
    figure.savefig(path, format="png", dpi=120)


def arguments():
    parser = argparse.ArgumentParser(description="Forecast series whose level changes, with and without RevIN.")
    parser.add_argument("--plot", type=Path, default="forecast_revin.png", metavar="PATH", help="PNG of a forecast")
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--seed", type=int, default=0, help="of the series and of the model")
    args = parser.parse_args()
    if not args.plot.parent.is_dir():
        parser.error(f"--plot: there is no folder {args.plot.parent}")
    return args


@threadpool_limits.wrap(limits=1)  # arrays as small as these are slower on several
def main():
    args = arguments()
    x = series(4000, args.seed)
    train, test = x[:2800], x[3100 - PAST :]
    mean, std = train.mean(axis=0), train.std(axis=0)  # as one does without RevIN: by the training part
    train, test = (train - mean) / std, (test - mean) / std
    steps = 100 if args.quick else 1500
    ways = {
        "without RevIN": None,
        "RevIN": bnorm.RevIN(CHANNELS),
        "RevIN, subtract_last": bnorm.RevIN(CHANNELS, subtract_last=True),
    }
    models = {name: trained(rev, train, steps, args.seed) for name, rev in ways.items()}
    print(f"Mean absolute error of {FUTURE} hours ahead, in standard deviations of the series, after {steps} steps.\n")
    print(f"{'':24}{'training part':>16}{'last part':>12}")
    for name, model in models.items():
        print(f"{name:24}{error_of(model, train):16.3f}{error_of(model, test):12.3f}")
    plot(args.plot, models, test)
    print(f"\nA forecast at the end: {args.plot}")


if __name__ == "__main__":
    main()
