"""Certified sums of squares of NIST: sets that ship with SciPy, and those that a line of arithmetic makes.

No arithmetic on doubles can be better than that of the exact numbers that they are, so it is from there that digits are
counted, and the certified ones are met where the doubles meet them.
"""

import re
from fractions import Fraction
from math import log10
from pathlib import Path

import numpy as np
import pytest

import bnorm
from bnorm import functional as F

scipy_stats = pytest.importorskip("scipy.stats", reason="SciPy has the sets")
FOLDER = Path(scipy_stats.__file__).parent / "tests" / "data" / "nist_anova"
FILES = sorted(FOLDER.glob("*.dat"))


def digits(value, wanted):
    """Leading digits in which a value agrees."""
    error = abs(Fraction(float(value)) - Fraction(wanted))
    return 16.0 if not error else min(16.0, -log10(error / abs(Fraction(wanted))))


def sum_of_squares(values):
    """sum (x - mean)^2 of the exact numbers that doubles are."""
    exact = [Fraction(float(v)) for v in values]
    total, squares = sum(exact), sum(v * v for v in exact)
    return squares - total * total / len(exact)


@pytest.mark.skipif(not FILES, reason="this SciPy came without its tests")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_analysis_of_variance(path):
    lines = path.read_text().splitlines()
    certified = {line.split()[0]: line.split()[3] for line in lines[40:47] if re.match(r"(Between|Within)", line)}
    rows = np.array([list(map(float, line.split())) for line in lines[60:] if line.strip()])
    groups = [rows[rows[:, 0] == group, 1] for group in np.unique(rows[:, 0])]
    parts = [F.moments(values[:, None]) for values in groups]
    within = sum(part.m2[0] for part in parts)
    exact_within = sum(map(sum_of_squares, groups))
    assert digits(within, exact_within) > 14
    assert digits(within, certified["Within"]) > digits(float(exact_within), certified["Within"]) - 0.5

    merged = bnorm.Moments.merge(parts)
    whole = F.moments(rows[:, 1:])
    exact = sum_of_squares(rows[:, 1])
    assert digits(merged.m2[0], exact) > 14
    assert digits(whole.m2[0], exact) > 14
    assert merged.count[0] == len(rows)


# The first number, the two that alternate after it, how often; mean and standard deviation as certified.
ACCURACY = {
    "NumAcc1": ([10000001, 10000003, 10000002], 10000002, 1),
    "NumAcc2": ([1.2, *[1.1, 1.3] * 500], 1.2, 0.1),
    "NumAcc3": ([1000000.2, *[1000000.1, 1000000.3] * 500], 1000000.2, 0.1),
    "NumAcc4": ([10000000.2, *[10000000.1, 10000000.3] * 500], 10000000.2, 0.1),
}


@pytest.mark.parametrize("name", ACCURACY)
def test_univariate(name):
    values, mean, std = ACCURACY[name]
    x = np.array(values, float)[:, None]
    m = F.moments(x)
    exact = sum_of_squares(x[:, 0]) / (len(x) - 1)
    assert digits(m.mean[0], str(mean)) > 14.5
    assert digits(m.var(ddof=1)[0], exact) > 14
    assert digits(m.std(ddof=1)[0], str(std)) > digits(float(exact) ** 0.5, str(std)) - 0.5
    pieces = bnorm.Moments.merge([F.moments(piece) for piece in np.array_split(x, 3)])
    assert digits(pieces.var(ddof=1)[0], exact) > 14


@pytest.mark.parametrize("name", ACCURACY)
def test_the_scaler_of_a_stream_is_as_good(name):
    values, _, std = ACCURACY[name]
    x = np.array(values, float)[:, None]
    t = bnorm.BatchNormTransformer(momentum=None, eps=0.0, ddof=1)
    for batch in np.array_split(x, 3):
        t.partial_fit(batch)
    exact = sum_of_squares(x[:, 0]) / (len(x) - 1)
    assert digits(t.var_[0], exact) > 14
    assert digits(t.scale_[0], str(std)) > digits(float(exact) ** 0.5, str(std)) - 0.5
