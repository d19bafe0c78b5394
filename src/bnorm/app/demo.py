"""`bnorm demo`: mini-batches give the statistics of a whole table, and the statistics normalize it."""

import numpy as np

from bnorm import functional as F

FEATURES = 8  # that many rows of the printed table say enough


def run(batch_size: int) -> None:
    """Stream a data set bundled with scikit-learn in batches of `batch_size` rows; print it before and after."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    x, names = data.data, data.feature_names
    batches = [x[start : start + batch_size] for start in range(0, len(x), batch_size)]

    stream = F.moments(batches[0])
    for batch in batches[1:]:
        stream += F.moments(batch)
    y = np.concatenate([F.batch_norm(batch, mean=stream.mean, var=stream.var(), eps=0)[0] for batch in batches])

    expected = (x - x.mean(axis=0)) / x.std(axis=0)
    print(f"scikit-learn's breast cancer data: {len(x)} rows of {x.shape[1]} features, batches of {batch_size} rows.")
    print(f"Statistics of {len(batches)} batches, merged:\n")
    print(f"{'':24}{'before':>24}{'after':>24}")
    print(f"{'feature':24}{'mean':>12}{'std':>12}{'mean':>12}{'std':>12}")
    table = zip(names, stream.mean, stream.std(), y.mean(axis=0), y.std(axis=0), strict=True)
    for name, *numbers in list(table)[:FEATURES]:
        print(f"{name:24}" + "".join(f"{number:z12.4f}" for number in numbers))
    print(f"... and {len(names) - FEATURES} more\n")
    print(f"Largest difference to NumPy's result on the whole table: {np.abs(y - expected).max():.1e}")
