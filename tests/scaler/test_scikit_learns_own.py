"""scikit-learn's checks of estimators, and the tests of StandardScaler in its installed package, on the class here."""

import os
import re
from pathlib import Path

import pytest
import sklearn
from sklearn.utils.estimator_checks import parametrize_with_checks

import child
import substituted
from bnorm.sklearn import StandardScaler

KINDS = [
    StandardScaler(),
    StandardScaler(with_mean=False),
    StandardScaler(with_std=False),
]
SUITE = Path(sklearn.__file__).parent / "preprocessing" / "tests" / "test_data.py"
THEIRS = "(standard or Standard or scaler_) and not (MinMax or minmax or MaxAbs or maxabs or robust or Robust or cuda)"
CHECKS = parametrize_with_checks(KINDS)


@pytest.mark.parametrize(CHECKS.args[0], list(CHECKS.args[1]), **CHECKS.kwargs)  # scikit-learn 1.6 gives an iterator
def test_checks(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    if re.search("array_api.*cuda", str(check)):
        pytest.skip("the check asks for a GPU where only PyTorch's half of it may be installed")
    if "on_sparse_data" in str(check) and estimator.with_mean:
        pytest.skip("scikit-learn 1.6 gives sparse tables to estimators that say they take none")
    check(estimator)


@pytest.mark.skipif(not SUITE.exists(), reason="this scikit-learn was installed without its tests")
def test_their_suite():
    options = ["-q", "--assert=plain", "-p", "substituted", "-p", "no:cacheprovider", "-W", "ignore"]
    options += ["-c", os.devnull, "-k", THEIRS]
    support = os.pathsep.join([str(Path(substituted.__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = child.run("-m", "pytest", *options, SUITE, PYTHONPATH=support, SCIPY_ARRAY_API=1)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 150
