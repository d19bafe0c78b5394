"""The kernel of RunningNorm against its reference, on the CPU and on the emulated device."""

import inspect
from itertools import product
from math import inf

import numpy as np
import pytest

import bnorm
from bnorm.kernels import cpu, gpu, reference_online
from bnorm.kernels.rule import spread
from bnorm.running import Statistics
from drawing import every_pair
from emulated.fake_cupy import fake_cupy  # noqa: F401  a fixture

SHAPES = [(8, 17), (1, 5), (17,), (300, 3), (2, 40, 70), (70_000, 2)]  # the last on several threads
DTYPES = ["float32", "float64", "uint8"]


def started(size, halflife):
    """Statistics that have seen something."""
    rng = np.random.default_rng(0)
    statistics = Statistics(np.zeros(size), np.ones(size), None, from_data=True, halflife=halflife)
    skipped = np.zeros(size, np.int64)
    reference_online.online(rng.normal(3, 2, size=(4, size)), statistics.rule, skipped, 1e-8)
    return statistics, skipped


def test_signatures():
    wanted = list(inspect.signature(reference_online.online).parameters)
    for module in (cpu, gpu):
        assert list(inspect.signature(module.online).parameters) == wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": np.zeros(4)}, "x: expected rows of 3 numbers"),
        ({"x": np.zeros((6, 2)).T}, "x: expected at least 0 axes, in contiguous memory"),
        ({"x": np.zeros(3, complex)}, "x: expected floats"),
        ({"skipped": np.zeros(3)}, "skipped: expected 3 numbers of int64"),
        ({"skipped": np.zeros(4, np.int64), "x": np.zeros(4)}, "mean: expected 4 numbers"),
        ({"skipped": np.zeros(0, np.int64)}, "x: expected rows of 0 numbers"),
        ({"weight": np.zeros(3)}, "weight: expected 2 numbers"),
    ],
)
def test_wrong_arrays_are_errors(given, message):
    statistics, skipped = started(3, None)
    before = [a.copy() for a in statistics.arrays().values()]
    x = given.get("x", np.zeros((2, 3)))
    with pytest.raises((TypeError, ValueError), match=message):
        cpu.online(x, statistics.rule, given.get("skipped", skipped), 1e-8, weight=given.get("weight"))
    for a, b in zip(statistics.arrays().values(), before, strict=True):
        np.testing.assert_array_equal(a, b)


@every_pair(["shape", "dtype"], product(SHAPES, DTYPES), halflife=[None, 50.0], bad=[False, True])
def test_cpu(shape, dtype, halflife, bad):
    x = np.random.default_rng(1).normal(100, 30, size=shape).astype(dtype)
    size, rows = shape[-1], x.size // shape[-1]
    if bad and dtype != "uint8":
        x.reshape(-1)[:: x.size // 3] = np.resize([np.nan, np.inf, -np.inf], len(x.reshape(-1)[:: x.size // 3]))
    weight = None if halflife is None else np.exp2(-np.arange(rows)[::-1] / halflife).reshape(rows, 1)
    results = []
    for module in (reference_online, cpu):
        statistics, skipped = started(size, halflife)
        z = module.online(x, statistics.rule, skipped, 1e-8, 2.0, True, True, weight)
        again = module.online(x, statistics.rule, skipped, 1e-8, inf, False)
        results.append((z, again, skipped, statistics))
    (z, again, skipped, statistics), (z2, again2, skipped2, statistics2) = results
    np.testing.assert_allclose(z2, z, atol=2e-6 if dtype == "float32" else 1e-12)
    np.testing.assert_allclose(again2, again, rtol=3e-7, atol=2e-6 if dtype == "float32" else 1e-12)
    np.testing.assert_array_equal(skipped2, skipped)
    for name, a in statistics.arrays().items():
        if name not in ("low", "pairs"):
            np.testing.assert_allclose(getattr(statistics2, name), a, rtol=1e-12, err_msg=name)
    np.testing.assert_array_equal(statistics2.counters, statistics.counters)


def test_bits_do_not_depend_on_threads(set_threads):
    x = np.random.default_rng(1).normal(size=(70_000, 3)).astype("f4")
    found = []
    for threads in (1, 2, 3):
        set_threads(threads)
        statistics, skipped = started(3, None)
        z = cpu.online(x, statistics.rule, skipped, 1e-8, 1.0)
        found.append((z.tobytes(), statistics.var.tobytes(), statistics.mean.tobytes()))
    assert len(set(found)) == 1


def test_one_rule_for_what_has_no_spread():
    """spread, in Python, and the compiled kernel agree on both sides of the bound."""
    e = 2.0**-52
    mean, std = np.array([1.0, 1.0, 0.0, 0.0, -2.0]), np.array([4 * e, 4.01 * e, 0.0, 1e-150, 8 * e])
    for eps in (0.0, 1e-8):
        for seen in (0.0, 5.0):
            statistics = Statistics(mean.copy(), std**2, None, from_data=True)
            statistics.seen[...] = seen
            by = spread(mean, std**2, statistics.seen, eps)
            z = cpu.online(mean + 1.0, statistics.rule, np.zeros(5, np.int64), eps, inf, False)
            np.testing.assert_allclose(z * by, (mean + 1.0) - mean, rtol=1e-12)
            assert (by == 1).tolist() == [True, seen == 0, True, seen == 0, True]


@pytest.mark.parametrize("way", [{}, {"halflife": 20.0}, {"momentum": 0.2}])
def test_device(cupy, way):
    rng = np.random.default_rng(2)
    here, there = bnorm.RunningNorm((2, 3), clip=2, **way), bnorm.RunningNorm((2, 3), clip=2, **way).to("cuda")
    for n in (4, 1, 7):
        x = rng.normal(5, 2, size=(n, 2, 3)).astype("f4")
        x[0, 0, 0] = np.inf
        there_x = cupy.asarray(x)
        np.testing.assert_allclose(there(there_x).get(), here(x), atol=2e-6)
    np.testing.assert_array_equal(there.skipped.get(), here.skipped)
    np.testing.assert_allclose(there.var.get(), here.var, rtol=1e-12)
    both = there + there.copy()
    np.testing.assert_allclose((both - there).var.get(), here.var, rtol=1e-11)
    np.testing.assert_allclose(there.denormalize(there.normalize(there_x)).get()[0, 1], x[0, 1], rtol=1e-6)
    with pytest.raises(TypeError, match=r"expected a CuPy array, as the RunningNorm is on the GPU"):
        there(x)
    with pytest.raises(ValueError, match="expected device 'cuda' on both sides, got 'cpu'"):
        there + here
    np.testing.assert_allclose(there.to("cpu").eval()(x), here.eval()(x), atol=2e-6)
