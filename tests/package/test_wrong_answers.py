"""The table of wrong answers: what it calls right is right, and ours are."""

from fractions import Fraction

import numpy as np
import pytest
from benchmarks import wrong_answers

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def data():
    return wrong_answers.column()


def test_what_is_called_right_is_exact():
    x = wrong_answers.column().x[:200]
    data = wrong_answers.Column.of(x)
    values = [Fraction(float(value)) for value in x[:, 0]]
    mean = sum(values) / len(values)
    var = sum((value - mean) ** 2 for value in values) / len(values)
    assert abs(Fraction(data.mean) + 10**6 - mean) < Fraction(1, 10**14)
    assert abs(Fraction(data.var) - var) < Fraction(1, 10**13)
    exact = [float(value - mean) / float(var + Fraction(1, 1000)) ** 0.5 for value in values]
    np.testing.assert_allclose(data.normalized(1e-3)[:, 0], exact, rtol=1e-12, atol=1e-12)


def test_ours_are_right(data):
    for answer in wrong_answers.bnorm(data):
        assert abs(answer.got - answer.right) <= (2e-6 if answer.right == 0 else 1e-11 * answer.right)


def test_others_are_asked_what_they_offer(data):
    """Not that they are wrong, which a release may repair: that each gives a number. Keras gives NaN in some runs."""
    found, missing = wrong_answers.answers(data)
    assert not {"bnorm", "scikit-learn"} & set(missing)
    assert len(found) == 2 + len(wrong_answers.LIBRARIES) - len(missing)
    assert np.isfinite([answer.right for answer in found]).all()
    assert all(np.isfinite(a.got) or (a.library.startswith("Keras") and np.isnan(a.got)) for a in found)
    scaler = next(answer for answer in found if answer.library.startswith("scikit-learn"))
    assert scaler.got < 1
    lines = wrong_answers.table(found).splitlines()
    assert [line.count("|") for line in lines] == [5] * (2 + len(found))


def test_a_library_that_is_missing_is_named(data, monkeypatch):
    def absent(data):
        raise ImportError

    monkeypatch.setattr(wrong_answers, "LIBRARIES", {"absent": absent})
    assert wrong_answers.answers(data) == ([], ["absent"])
