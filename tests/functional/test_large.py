"""More than 2**31 elements. What only reads runs always: memory that nobody wrote to is one page of zeros, on Linux."""

import sys
from pathlib import Path

import numpy as np
import pytest

import bnorm.functional as F
from bnorm.kernels import cpu

SIZE = 2**31 + 2**24
SHAPES = [(SIZE // 64, 64), (SIZE, 1), (2, 2, SIZE // 4), (SIZE // 49 // 8, 8, 49)]
GIGABYTE = 2**30

linux = pytest.mark.skipif(sys.platform != "linux", reason="zeros that were never written may take memory here")


def available():
    """Bytes of memory that are free or can be freed."""
    facts = Path("/proc/meminfo")
    if not facts.exists():
        return 0
    lines = dict(line.split(":") for line in facts.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def needs(gigabytes):
    """A test that takes so much memory, and is skipped where there is less of it."""

    def mark(test):
        lack = pytest.mark.skipif(
            available() < (gigabytes + 1) * GIGABYTE, reason=f"needs {gigabytes} GiB of memory and one to spare"
        )
        return pytest.mark.slow(lack(test))

    return mark


def pages_of_zeros(shape):
    try:
        return np.zeros(shape, "f4")
    except MemoryError:
        pytest.skip("this process may not reserve memory that it will not use")


# Reading --------------------------------------------------------------------------------------------------------------


@linux
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_moments_of_zeros_but_for_the_ends(shape):
    """A mean and a variance that come from the first value and the last of each channel alone."""
    x = pages_of_zeros(shape)
    n = x.size // shape[1]
    first = np.arange(shape[1]) + 1.0
    by_channel = np.moveaxis(x, 1, -1)
    by_channel[(0,) * (x.ndim - 1)] = first
    by_channel[(-1,) * (x.ndim - 1)] = -3
    m = F.moments(x)
    assert (m.count == n).all()
    np.testing.assert_allclose(m.mean, (first - 3) / n, rtol=1e-12, atol=1e-18)
    np.testing.assert_allclose(m.m2, first**2 + 9 - (first - 3) ** 2 / n, rtol=1e-6)


@linux
def test_gradient_sums_of_zeros_but_for_the_ends():
    x, dy = (pages_of_zeros(SHAPES[0]) for _ in range(2))
    dy[0], x[0], dy[-1], x[-1] = 2, 5, 7, 3
    sums, dots = cpu.grad_moments(dy, x, np.ones((5, 64)))
    assert (sums == 9).all() and (dots == 2 * 4 + 7 * 2).all()


# Writing --------------------------------------------------------------------------------------------------------------


def alternating(dtype):
    """Flat; as rows of 64, two rows alternate, and channel c has mean c + 1 and variance 1."""
    flat = np.empty(SIZE, dtype)
    columns = np.arange(64)
    flat.reshape(-1, 128)[:] = np.r_[columns, columns + 2]
    return flat


def assert_plus_minus_one(flat):
    """-1 for a row of 64, 1 for the next, and so on."""
    pattern = np.repeat(np.array([-1, 1], flat.dtype), 64)
    for rows in np.array_split(flat.reshape(-1, 128), 256):
        assert (rows == pattern).all()


@needs(9)
def test_float32_in_place():
    """Training, inference, layer norm and backward of the same nine gigabytes, one after the other."""
    flat = alternating("f4")
    x = flat.reshape(-1, 64)
    m = F.moments(x)
    assert (m.mean == np.arange(64) + 1).all() and (m.var() == 1).all()
    y, _ = F.batch_norm(x, eps=0, out=x)
    assert y is x
    assert_plus_minus_one(flat)
    for shape in SHAPES:
        if np.prod(shape) == SIZE:  # mean 0 and variance 1 whatever the channels: nothing changes
            view = flat.reshape(shape)
            F.batch_norm(view, eps=0, out=view)
            F.batch_norm(view, mean=np.ones(shape[1]), var=np.full(shape[1], 4.0), eps=0, out=view)  # 0 and -1
            F.batch_norm(view, mean=np.full(shape[1], -0.5), var=np.full(shape[1], 0.25), eps=0, out=view)
            assert_plus_minus_one(flat)
    rows = flat.reshape(-1, 1024)
    F.layer_norm(rows, np.ones(1024), np.zeros(1024), normalized_shape=1024, eps=0, out=rows)
    F.instance_norm(flat.reshape(2, 2, -1), eps=0, out=flat.reshape(2, 2, -1))
    assert_plus_minus_one(flat)
    _, saved = F.batch_norm(x, mean=np.zeros(64), var=np.ones(64), eps=0, out=x)
    with pytest.raises(RuntimeError, match="overwrote"):
        F.backward(x, saved)
    stats = np.stack([np.zeros(64), np.ones(64), np.ones(64), np.ones(64), np.zeros(64)])
    dx, dgamma, dbeta = cpu.backward(x, x, stats, SIZE / 64, out=x)  # dy = x: all of it through the statistics
    assert not dbeta.any() and (dgamma == SIZE / 64).all()
    for part in np.array_split(dx, 256):
        assert not part.any()


@needs(14)
def test_moments_of_float16():
    m = F.moments(alternating("f2").reshape(-1, 64))
    assert (m.mean == np.arange(64) + 1).all() and (m.var() == 1).all()


@needs(22)
def test_float16_in_place():
    flat = alternating("f2")
    x = flat.reshape(-1, 64)
    F.batch_norm(x, mean=np.arange(64) + 1.0, var=np.ones(64), eps=0, out=x)
    assert_plus_minus_one(flat)
