"""Weights that halve: powers of two and their means, which have the same bits on every machine (test_same_bits.py)."""

import numpy as np
import pytest

from bnorm.kernels import cpu, halved
from bnorm.streams.running import _age

LONG = np.longdouble
exact = pytest.mark.skipif(
    np.finfo(LONG).eps == np.finfo(float).eps, reason="long double, which is to be exact, is only a double here"
)


@exact
@pytest.mark.parametrize("least", [-1e-9, -1.0, -30.0, -1022.0])
def test_powers_of_two_are_within_two_units_in_the_last_place(least):
    x = np.random.default_rng(0).uniform(least, 0, 100_000)
    want = np.exp2(x.astype(LONG))
    assert (np.abs(halved(x) - want) < 2 * np.spacing(want.astype(float))).all()


def test_powers_of_integers_are_exact():
    ages = np.arange(1080)
    assert (halved(-ages.astype(float)) == np.ldexp(1.0, -ages)).all()


@exact
def test_powers_that_are_subnormal():
    x = np.random.default_rng(0).uniform(-1080, -1022, 10_000)
    assert (np.abs(halved(x) - np.exp2(x.astype(LONG))) <= 5e-324).all()


def test_powers_of_any_array():
    x = -np.arange(24.0).reshape(2, 3, 4)
    assert (cpu.halved(x.T[:, ::-1]) == np.exp2(x.T[:, ::-1])).all()
    assert cpu.halved(np.float32(-3)).shape == ()
    assert cpu.halved([]).shape == (0,)
    np.testing.assert_array_equal(cpu.halved([-np.inf, np.nan, 1.0, 5e-324, -1e300]), [0, 0, 1, 1, 0])


@exact
def test_mean_weights():
    """Of 2^(-a / h) and its square over ages a: by geometric series, within ten rounding errors."""
    rng = np.random.default_rng(0)
    for halflife, rows in zip(10 ** rng.uniform(-2, 12, 300), np.floor(10 ** rng.uniform(0, 7, 300)), strict=True):
        for k, found in enumerate(cpu.mean_weights(halflife, rows), 1):
            step = -k * np.log(LONG(2)) / LONG(halflife)
            want = np.expm1(step * LONG(rows)) / np.expm1(step) / LONG(rows)
            assert abs(found - want) <= 10 * 2.0**-53 * want, (halflife, rows)
    assert cpu.mean_weights(5.0, 1.0) == (1.0, 1.0)


@pytest.mark.parametrize("momentum", [1e-300, 1e-17, 1e-9, 0.01, 0.1, 0.999, 1 - 2**-53])
def test_the_half_life_of_a_momentum(momentum):
    want = -np.log(LONG(2)) / np.log1p(-LONG(momentum))
    assert abs(_age(momentum) - want) <= 2.0**-52 * want


def test_half_lives_that_are_known():
    assert [_age(momentum) for momentum in (0.5, 0.75, 1 - 2.0**-40)] == [1, 0.5, 0.025]
