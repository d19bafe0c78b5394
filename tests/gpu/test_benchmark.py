"""The benchmark on a GPU: what it compares with is right, and it says why it cannot run."""

import os
from pathlib import Path

import numpy as np
import pytest
from benchmarks import gpu as benchmark
from benchmarks.gpu_exact import EPS, exact_batch, exact_rows

import child
from bnorm.kernels import MEAN_SQUARE, VARIANCE, gpu, reference
from bnorm.kernels.gpu import plans
from compare import assert_close

pytestmark = pytest.mark.bench

RNG = np.random.default_rng(0)
LARGE = plans.Limits()


@pytest.mark.parametrize("shape", [(30, 4), (5, 3, 7)], ids=str)
def test_exact_batch(shape):
    x, dy = RNG.standard_normal((2, *shape))
    gamma, beta, mean = RNG.standard_normal((3, shape[1]))
    var = RNG.uniform(0.5, 2, shape[1])
    found = exact_batch(np, x, dy, gamma, beta, mean, var)
    y, stats, count, _ = reference.forward(x, gamma, beta, EPS)
    known = reference.forward(x, gamma, beta, EPS, mean, var)[0]
    want = {"forward": [y], "inference": [known], "backward": reference.backward(dy, x, stats, count)}
    for name, results in want.items():
        for got, result in zip(found[name], results, strict=True):
            assert_close(got, result, 1e-13, what=name)


@pytest.mark.parametrize("rule", [VARIANCE, MEAN_SQUARE])
@pytest.mark.parametrize("shape", [(6, 1, 9, 1), (4, 2, 3, 5)], ids=str)
def test_exact_rows(shape, rule):
    x, dy = RNG.standard_normal((2, *shape))
    gamma, beta = RNG.standard_normal((2, shape[1] * shape[2]))
    found = exact_rows(np, x, dy, gamma, beta, rule == MEAN_SQUARE)
    y, mean, rstd = reference.rows_forward(x, gamma, beta, EPS, rule)
    backward = reference.rows_backward(dy, x, mean, rstd, gamma, beta, rule)
    for got, want in zip([*found["forward"], *found["backward"]], (y, *backward), strict=True):
        assert_close(got, want, 1e-13, shape=shape)


def test_every_operation_has_its_passes():
    kinds = {case.kind for case in benchmark.CASES}
    assert kinds == {"batch_norm", "layer_norm", "rms_norm", "group_norm"}
    for case in benchmark.CASES:
        assert len(case.shape) == 4 if case.kind != "batch_norm" else len(case.shape) in (2, 3)
        assert case.dtype in benchmark.TOLERANCE


def test_the_floor_is_that_of_the_fewest_passes():
    def passes(kind, shape, dtype, limits=LARGE):
        return benchmark.fewest_passes(benchmark.Case(kind, shape, dtype), limits)

    images = 128, 256, 56 * 56
    assert passes("batch_norm", (65536, 1024), "float32") == {"forward": 3, "inference": 2, "backward": 5}
    assert passes("batch_norm", images, "float32") == {"forward": 2, "inference": 2, "backward": 5}
    assert passes("batch_norm", images, "bfloat16") == {"forward": 2, "inference": 2, "backward": 3}
    older = plans.Limits(clusters=False)
    assert passes("batch_norm", images, "bfloat16", older) == {"forward": 3, "inference": 2, "backward": 5}
    assert passes("batch_norm", (256, 64), "float32") == {"forward": 2, "inference": 2, "backward": 3}
    assert passes("group_norm", (64, 32, 8, 3136), "float32") == {"forward": 2, "backward": 3}


def test_it_says_why_it_cannot_run():
    if gpu.available() is None:
        pytest.skip("there is a device here")
    paths = [str(Path(__file__).parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    done = child.run("-m", "benchmarks.gpu", PYTHONPATH=os.pathsep.join(paths))
    assert done.returncode != 0
    assert done.stderr.strip() == gpu.available()
