"""Sales of many stores, each on a level and a scale of its own, standardized by store before one linear model.

    python examples/per_store.py                    # a second; the picture goes to per_store.png
    python examples/per_store.py --plot sales.png   # to another file
    python examples/per_store.py --quick            # fewer stores

What a visitor buys depends on how busy and how expensive a day is compared with other days of the same store. So the
features are standardized by the statistics of their store. A third of the stores opened lately and have only four days.
Their deviations are guesses, and a prior, which merges one average day of all stores into each, improves them. Stores
never seen are standardized by the statistics of all rows, which does not help much, and by their own as soon as they
have some.

Lines to copy:

    scaler = GroupedTransformer(by="store", prior=1.0).set_output(transform="pandas")
    model = make_pipeline(scaler, Ridge()).fit(days, sales)       # "store" is no feature
    scaler.partial_fit(today)                                     # new stores may appear at any time
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bnorm import GroupedTransformer
from bnorm.plot import GroupsDisplay

try:
    import matplotlib as mpl
    import pandas as pd
except ModuleNotFoundError as error:
    raise SystemExit(f"per_store.py needs {error.name}: pip install matplotlib pandas") from None

FEATURES = ["visitors", "price"]
FEW, MANY = 4, 60  # days of a new and of an old store
KINDS = ["old", "new", "unseen"]


def stores(n, seed):
    """The level and the scale of both features for each store."""
    rng = np.random.default_rng(seed)
    level = rng.normal([500.0, 20.0], [90.0, 3.0], (n, 2))
    return level, [60.0, 2.0] * np.exp(rng.normal(0, 0.4, (n, 2)))


def days(level, scale, which, seed):
    """One row for each entry of `which`, the number of a store: its features, and sales relative to its usual ones."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(len(which), 2))
    table = pd.DataFrame(level[which] + scale[which] * z, columns=FEATURES)
    table.insert(0, "store", [f"store {i}" for i in which])
    return table, z @ [1.0, -0.5] + rng.normal(0, 0.3, len(which))


def kind_of(store, n):
    """Whether a store is old, new or unseen."""
    return KINDS[3 * store // n]


def main():
    parser = argparse.ArgumentParser(description="Scale sales by store, with a prior for new stores.")
    parser.add_argument("--quick", action="store_true", help="fewer stores")
    parser.add_argument("--plot", type=Path, default=Path("per_store.png"), metavar="FILE")
    args = parser.parse_args()
    if not args.plot.parent.is_dir():
        parser.error(f"--plot: there is no folder {args.plot.parent}")

    n = 90 if args.quick else 900
    level, scale = stores(n, seed=0)
    lengths = {"old": MANY, "new": FEW, "unseen": 0}
    train, sales = days(level, scale, np.repeat(np.arange(n), [lengths[kind_of(i, n)] for i in range(n)]), seed=1)
    test, wanted = days(level, scale, np.repeat(np.arange(n), 20), seed=2)
    kinds = np.repeat([kind_of(i, n) for i in range(n)], 20)

    scalers = {
        "all stores together": None,
        "by store": GroupedTransformer(by="store"),
        "by store, prior=1": GroupedTransformer(by="store", prior=1.0),
    }
    print(f"{'explained variance of the sales':<34}" + "".join(f"{kind:>10}" for kind in KINDS))
    for name, scaler in scalers.items():
        model = make_pipeline(StandardScaler() if scaler is None else scaler, Ridge())
        columns = FEATURES if scaler is None else ["store", *FEATURES]
        model.fit(train[columns], sales)
        predicted = model.predict(test[columns])
        scores = [r2_score(wanted[kinds == kind], predicted[kinds == kind]) for kind in KINDS]
        print(f"{name:<34}" + "".join(f"{score:10.2f}" for score in scores))

    seen = test[kinds == "unseen"].groupby("store").head(10)
    later = (kinds == "unseen") & ~test.index.isin(seen.index)
    scaler.partial_fit(seen)  # ten days of each
    score = r2_score(wanted[later], model.predict(test[later]))
    print(f"the unseen stores, ten days later: {score:.2f} of the variance, now in {len(scaler.groups_)} groups")

    mpl.use("agg")
    GroupsDisplay.from_estimator(scaler, most=20).figure_.savefig(args.plot, dpi=110)
    print(f"picture: {args.plot}")


if __name__ == "__main__":
    main()
