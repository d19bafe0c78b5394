"""bnorm.sklearn.StandardScaler against scikit-learn's, one import changed: `python -m benchmarks.scaler`.

Every result is compared with scikit-learn's before it is timed.
"""

from functools import partial
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn import preprocessing

from bnorm.sklearn import StandardScaler

from .options import parser
from .text import aligned
from .timing import Calls, Effort, in_turns

TABLES = [(1000, 20), (100_000, 50)]
FRAMES = [(32, 20), (10_000, 20)]
SPARSE = (100_000, 1000, 0.01)
SCALERS = {"scikit-learn": preprocessing.StandardScaler, "bnorm": StandardScaler}
METHODS = ["fit", "partial_fit", "transform", "inverse_transform"]
EFFORT = Effort(processes=1, rounds=12, least=4, budget=2.0, sample=0.002)


def tables() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for dtype in ["float64", "float32"]:
        for shape in TABLES:
            found[f"{shape} {dtype}"] = rng.normal(3.0, 2.0, shape).astype(dtype)
        for shape in FRAMES:
            x = rng.normal(3.0, 2.0, shape).astype(dtype)
            found[f"{shape} {dtype}, pandas"] = pd.DataFrame(x, columns=[f"x{i}" for i in range(shape[1])])
        rows, columns, density = SPARSE
        x = sparse.random_array((rows, columns), density=density, rng=rng, format="csr").astype(dtype)
        found[f"{(rows, columns)} {dtype}, CSR"] = x
        found[f"{(rows, columns)} {dtype}, CSC"] = x.tocsc()
    return found


def check(x: Any) -> None:
    """Check that both libraries give the same results."""
    theirs, ours = (kind(with_mean=not sparse.issparse(x)).fit(x) for kind in SCALERS.values())
    tolerance = 1e-4 if theirs.transform(x).dtype == np.float32 else 1e-9
    np.testing.assert_allclose(ours.var_, theirs.var_, rtol=tolerance)
    for method in ["transform", "inverse_transform"]:
        a, b = (getattr(scaler, method)(x) for scaler in (ours, theirs))
        if sparse.issparse(a):
            a, b = a.data, b.data
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def main() -> None:
    rows = [["table", "method", "scikit-learn", "bnorm", "ratio"]]
    for name, x in tables().items():
        check(x)
        for method in METHODS:
            turns, samples = [], {}
            for label, kind in SCALERS.items():
                scaler = kind(with_mean=not sparse.issparse(x)).fit(x)
                turns.append(Calls({label: partial(getattr(scaler, method), x)}).turn)
            in_turns(turns, EFFORT, samples)
            theirs, ours = (1e6 * median(took for took, _ in samples[label]) for label in SCALERS)
            rows.append([name, method, f"{theirs:.0f}", f"{ours:.0f}", f"{theirs / ours:.1f}"])
    print("microseconds, medians of calls in turns")
    print("\n".join(aligned(rows, 2)))


if __name__ == "__main__":
    parser("scaler", __doc__).parse_args()
    main()
