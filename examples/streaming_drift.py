"""A stream whose features drift and change scale, with three scalers before the same linear classifier.

    python examples/streaming_drift.py                     # some seconds; the picture goes to streaming_drift.png
    python examples/streaming_drift.py --plot drift.png    # to another file
    python examples/streaming_drift.py --quick             # a shorter stream, and no second one

Ten features decide the label, always in the same way; only their measurement changes. Their means drift over several
standard deviations and their scales grow and shrink, each feature at its own time. Every batch is first predicted and
then learned (progressive validation). StandardScaler remembers everything, so its statistics soon fit no part of the
stream. The two scalers that forget follow the drift, so SGDClassifier gets stationary features.

A second stream does not drift. There forgetting loses a little information, but the three are within a fifth of a
percent of each other, and none is always ahead.

Lines to copy:

    model = make_pipeline(BatchNormTransformer(halflife=100.0), SGDClassifier())
    partial_fit_pipeline(model, x, y, classes=[0, 1])    # scaler and classifier learn one batch
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from bnorm import BatchNormTransformer, partial_fit_pipeline

try:
    from matplotlib.figure import Figure
    from tqdm import tqdm
except ModuleNotFoundError as error:
    raise SystemExit(f"streaming_drift.py needs {error.name}: pip install matplotlib tqdm") from None

FEATURES, BATCH = 10, 50
SCALERS = {
    "StandardScaler()": StandardScaler,
    "BatchNormTransformer(momentum=0.1)": lambda: BatchNormTransformer(momentum=0.1),
    "BatchNormTransformer(halflife=100)": lambda: BatchNormTransformer(halflife=100.0),
}


def stream(rows, drift, seed):
    """Measurements, noisy labels, and the accuracy of the true rule."""
    rng = np.random.default_rng(seed)
    rule = rng.normal(size=FEATURES)
    z = rng.normal(size=(rows, FEATURES))
    evidence = z @ rule / np.linalg.norm(rule)
    labels = (evidence + rng.normal(0, 0.3, rows) > 0).astype(int)
    time = np.arange(rows)[:, None] / rows if drift else np.zeros((rows, 1))
    start = rng.uniform(0, 2 * np.pi, (2, FEATURES))
    mean = 5 * np.sin(3 * np.pi * time + start[0])
    scale = np.exp(1.5 * np.sin(2 * np.pi * time + start[1]))
    return z * scale + mean, labels, np.mean((evidence > 0) == labels)


def progressive(scaler, x, labels, seed, title):
    """Whether each row was predicted correctly before it was learned."""
    model = make_pipeline(scaler, SGDClassifier(loss="log_loss", random_state=seed))
    right = []
    for i in tqdm(range(0, len(x), BATCH), desc=title, unit="batch", leave=False):
        rows = slice(i, i + BATCH)
        if i:
            right.append(model.predict(x[rows]) == labels[rows])
        partial_fit_pipeline(model, x[rows], labels[rows], classes=[0, 1])
    return np.concatenate(right)


def smooth(right, window):
    """The accuracy over a moving window."""
    total = np.cumsum(np.r_[0, right])
    return (total[window:] - total[:-window]) / window


def plot(path, results, limits):
    """Plot the accuracy over time, one panel per stream."""
    figure = Figure(figsize=(1 + 5 * len(results), 3.8), layout="constrained")
    axes = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for ax, (name, found) in zip(axes, results.items(), strict=True):
        for scaler, right in found.items():
            window = len(right) // 20
            ax.plot(np.arange(window, len(right) + 1), smooth(right, window), label=scaler, linewidth=1)
        ax.axhline(limits[name], color="gray", linestyle=":", label="whoever knows the rule")
        ax.set(title=name, xlabel="row")
    axes[0].set_ylabel("accuracy, moving average")
    axes[-1].legend(fontsize="small", loc="lower right")
    figure.savefig(path, format="png", dpi=120)


def arguments():
    parser = argparse.ArgumentParser(description="Classify a drifting stream behind scalers that forget, or do not.")
    parser.add_argument("--plot", type=Path, default="streaming_drift.png", metavar="PATH", help="PNG of accuracies")
    parser.add_argument("--quick", action="store_true", help="a shorter stream, and no second one")
    parser.add_argument("--seed", type=int, default=0, help="of the streams and of the classifier")
    args = parser.parse_args()
    if not args.plot.parent.is_dir():
        parser.error(f"--plot: there is no folder {args.plot.parent}")
    return args


@threadpool_limits.wrap(limits=1)  # batches as small as these are slower on several
def main():
    args = arguments()
    rows = 8_000 if args.quick else 30_000
    results, limits = {}, {}
    for name in ["drift"] if args.quick else ["drift", "no drift"]:
        x, labels, limits[name] = stream(rows, name == "drift", args.seed)
        results[name] = {
            title: progressive(make(), x, labels, args.seed, f"{name}, {title}") for title, make in SCALERS.items()
        }
    print(f"Progressive accuracy on {rows} rows in batches of {BATCH}.\n")
    print(f"{'':36}" + "".join(f"{name:>10}" for name in results))
    for title in SCALERS:
        print(f"{title:36}" + "".join(f"{found[title].mean():10.1%}" for found in results.values()))
    print(f"{'whoever knows the rule':36}" + "".join(f"{limit:10.1%}" for limit in limits.values()))
    plot(args.plot, results, limits)
    print(f"\nAccuracy over time: {args.plot}")


if __name__ == "__main__":
    main()
