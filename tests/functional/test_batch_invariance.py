"""What a row or a sample comes to does not depend on what else is in the call: no bit of y or of dx.

Norms of rows (layer and RMS norm, with a residual too; group norm, with weights too; instance norm), and all norms by
known statistics, in float16, float32 and float64: any part of a batch, anywhere in another batch, on any number of
threads, at any place in memory, past the caches or through them.
"""

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from bnorm.kernels.cpu import entries
from drawing import together
from placing import moved

ROWS = 53  # several of everything that is worked on together, and some left over
SHAPES = {  # of one sample, and why
    (5,): "rows shorter than a vector",
    (16,): "a line of float32",
    (33,): "short rows that are no whole lines",
    (255,): "rows that end within a vector",
    (1024,): "long rows",
    (6, 7): "groups of a few short runs",
    (8, 64): "groups of runs that are whole vectors",
    (12, 300): "groups of long runs",
}


def layer_norm(x, gamma, beta):
    return F.layer_norm(x.reshape(len(x), -1), gamma, beta, normalized_shape=gamma.size)


def rms_norm(x, gamma, beta):
    return F.rms_norm(x.reshape(len(x), -1), gamma, normalized_shape=gamma.size)


def residual(x, gamma, beta):
    rows = x.reshape(len(x), -1)
    return F.layer_norm(rows, gamma, beta, normalized_shape=gamma.size, residual=rows[:, ::-1])


def rms_residual(x, gamma, beta):
    rows = x.reshape(len(x), -1)
    return F.rms_norm(rows, gamma, normalized_shape=gamma.size, residual=rows[:, ::-1])


def group_norm(x, gamma, beta):
    return F.group_norm(x, 2 if x.shape[1] % 2 == 0 else 1, gamma[: x.shape[1]], beta[: x.shape[1]])


def masked(x, gamma, beta):
    weight = np.maximum(x[:, 0].astype("f4") - 2, 0)  # some are 0
    return F.group_norm(x, 2 if x.shape[1] % 2 == 0 else 1, gamma[: x.shape[1]], beta[: x.shape[1]], weight=weight)


def instance_norm(x, gamma, beta):
    return F.instance_norm(x, gamma[: x.shape[1]], beta[: x.shape[1]])


def batch_norm(x, gamma, beta):
    C = x.shape[1]
    return F.batch_norm(x, gamma[:C], beta[:C], mean=beta[:C] + 3, var=gamma[:C] ** 2)


def relu(x, gamma, beta):
    C = x.shape[1]
    return F.batch_norm(x, gamma[:C], beta[:C], mean=beta[:C] + 3, var=gamma[:C] ** 2, activation="relu")


CASES = [
    (norm, shape)
    for norm in (layer_norm, rms_norm, residual, rms_residual, group_norm, masked, instance_norm, batch_norm, relu)
    for shape in SHAPES
    if (norm in (layer_norm, rms_norm, residual, rms_residual) and len(shape) == 1)
    or (norm in (group_norm, masked, instance_norm) and len(shape) == 2)
    or norm in (batch_norm, relu)
]


def result(norm, x, dy, gamma, beta):
    """y and dx, and h if there is one, as the bytes of each sample."""
    y, saved = norm(x, gamma, beta)
    ys = y if saved.residual else (y,)
    dy = dy.reshape(ys[0].shape)
    dx = F.backward((dy, dy[:, ::-1]) if saved.residual else dy, saved)[0]
    return np.stack([a.reshape(len(x), -1) for a in (*ys, dx)]).view(np.uint8)


@pytest.fixture(params=[False, True], ids=["through the caches", "past the caches"])
def caches(request):
    """Results of any size go past the caches, or none."""
    threads = bnorm.get_num_threads()
    size = 0 if request.param else 1 << 40
    names = "stream", "stream_one", "stream_two", "far", "far_maps", "far_rows", "beside", "early", "paired"
    before = entries.use_sizes(**dict.fromkeys(names, size))
    yield
    entries.use_sizes(**before)
    bnorm.set_num_threads(threads)


@together(dtype=["float16", "float32", "float64"])
@pytest.mark.parametrize(("norm", "shape"), CASES, ids=[f"{norm.__name__}-{shape}" for norm, shape in CASES])
def test_any_part_of_a_batch(norm, shape, dtype, caches):
    rng = np.random.default_rng(len(shape) * 1000 + shape[-1])
    x, dy = (rng.normal(mean, 2, (ROWS, *shape)).astype(dtype) for mean in (3, 0))
    gamma, beta = rng.normal(1, 0.3, int(np.prod(shape))), rng.normal(0, 0.3, int(np.prod(shape)))
    bnorm.set_num_threads(1)
    whole = result(norm, x, dy, gamma, beta)
    parts = [slice(0, 1), slice(ROWS - 1, ROWS), slice(7, 10), slice(3, 36), rng.permutation(ROWS), np.arange(41) % 5]
    for i, part in enumerate(parts):
        bnorm.set_num_threads(1 + i % 3)
        found = result(norm, moved(x[part], i), moved(dy[part], 2 * i), gamma, beta)
        np.testing.assert_array_equal(found, whole[:, part], err_msg=f"{part}, {1 + i % 3} threads")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("norm", "shape"), [(layer_norm, (33,)), (residual, (768,)), (instance_norm, (8, 64))])
def test_a_sample_of_a_large_batch(norm, shape, dtype):
    """With many tasks, on several threads."""
    rng = np.random.default_rng(0)
    n = (1 << 18) // int(np.prod(shape))
    x, dy = (rng.normal(mean, 2, (n, *shape)).astype(dtype) for mean in (3, 0))
    gamma, beta = rng.normal(1, 0.3, int(np.prod(shape))), rng.normal(0, 0.3, int(np.prod(shape)))
    whole = result(norm, x, dy, gamma, beta)
    for i in rng.integers(0, n, 8):
        alone = result(norm, x[i : i + 1], dy[i : i + 1], gamma, beta)
        np.testing.assert_array_equal(alone, whole[:, i : i + 1])
