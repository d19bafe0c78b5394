"""Statistics that move by kernels of a device, on the emulator: by the rules of the reference, in every mode."""

import numpy as np
import pytest

from bnorm.kernels import gpu, reference
from bnorm.running import Statistics
from compare import EPS, assert_close, assert_same
from drawing import together
from emulated.device import emulated_device, needs_emulator  # noqa: F401

pytestmark = [needs_emulator, pytest.mark.usefixtures("device")]

C = 300  # more than a block
MODES = {
    "a layer's average": {"momentum": 0.2},
    "a layer's pool": {"momentum": None},
    "an average from data": {"momentum": 0.2, "from_data": True},
    "a pool from data": {"momentum": None, "from_data": True},
    "a half-life": {"halflife": 7.0, "from_data": True},
    "a layer's half-life": {"halflife": 7.0},
}
every_mode = pytest.mark.parametrize("options", MODES.values(), ids=MODES)
every_rule = pytest.mark.parametrize("nonfinite", ["skip", "propagate", "raise"])


def statistics(options, dtype, ddof, nonfinite):
    rng = np.random.default_rng(0)
    mean, var = rng.standard_normal(C).astype(dtype), rng.random(C).astype(dtype)
    return Statistics(mean, var, ddof=ddof, nonfinite=nonfinite, **({"momentum": None} | options))


def batch(seed, rows, broken):
    """Some channels have no values, and some are not finite, or too large for float32."""
    rng = np.random.default_rng(seed)
    count = np.where(rng.random(C) < 0.2, 0.0, rng.integers(1, rows + 1, C).astype(float))
    mean, m2 = rng.standard_normal(C) * 3, rng.random(C) * count
    if broken:
        mean[5:8], m2[9] = (np.nan, np.inf, 1e300), np.inf
    parts = np.where(count > 0, np.stack([count, mean, m2, rng.standard_normal(C) * 1e-17]), 0)
    return parts, count * 1.5, count * (count - 1), np.full(C, 10.0 * seed)


def agree(got, want, dtype):
    assert_same(got.counters, want.counters)
    for (name, a), b in zip(got.arrays().items(), want.arrays().values(), strict=True):
        a, b = (np.where(np.isfinite(v), v, np.nan) for v in (a, b))
        unit = EPS[np.dtype(dtype if name in ("mean", "var") else "float64")]
        bound = unit * 32 * np.nan_to_num(np.fmax(np.abs(b), 8)) if name != "low" else 1e-14
        assert_close(a, b, bound, what=name)


@together(dtype=["float32", "float64"], ddof=[0, 1])
@every_rule
@every_mode
def test_moves_are_those_of_the_reference(options, nonfinite, dtype, ddof):
    got, want = statistics(options, dtype, ddof, nonfinite), statistics(options, dtype, ddof, nonfinite)
    for seed, rows in ((1, 9), (2, 1), (3, 100), (4, 20)):
        # The CPU refuses what a transformer cannot hold. A device would have to wait: there `save` refuses it.
        arguments = batch(seed, rows, broken=seed == 3 and not (nonfinite == "propagate" and got.from_data))
        left = []
        for kernels, moving in ((gpu, got), (reference, want)):
            try:
                left.append(int(kernels.move(moving.rule, *arguments, rows=rows, typical=5.0)))
            except FloatingPointError:
                left.append("raised")
        assert left[0] == left[1]
        if nonfinite == "raise" and seed == 3:
            assert left[0] == "raised"
        got.counters[1] = want.counters[1]  # a device tells later which batches left channels alone
        agree(got, want, dtype)


@every_mode
def test_replacing(options):
    got, want = (statistics(options, "float64", 0, "skip") for _ in range(2))
    for kernels, moving in ((gpu, got), (reference, want)):
        kernels.move(moving.rule, *batch(1, 9, False), rows=9)
        moving.counters[3] = 2
        kernels.move(moving.rule, *batch(2, 30, False), rows=30, typical=4.0, replace=True)
    got.counters[1] = want.counters[1]
    agree(got, want, "float64")


@pytest.mark.parametrize("many", [1, 2, 3, 8, 21])
def test_merging(many):
    sets = [batch(seed, 50, False)[0] for seed in range(many)]
    for parts in sets:
        parts[:, 3] = 0  # a channel without any value
    before = [parts.tobytes() for parts in sets]
    got, want = gpu.merge(sets), reference.merge(sets)
    assert [parts.tobytes() for parts in sets] == before
    assert_same(got[0], want[0])
    assert_close(got[1].astype("longdouble") + got[3], want[1].astype("longdouble") + want[3], 4e-15)
    assert_close(got[2], want[2], 1e-14 * np.abs(want[2]))
    assert np.isnan(got[1, 3]) and (got[2:, 3] == 0).all()
