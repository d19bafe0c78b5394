"""Gradients of parameters on the stand-in for a GPU: added to those there are by one launch, where that is possible."""

import numpy as np
import pytest

import bnorm
from bnorm.kernels import gpu
from compare import assert_same
from emulated.device import needs_emulator
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401
from emulated.pairs import C, back, there

pytestmark = needs_emulator
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(7,), (3, 100), (0,)], ids=str)
@pytest.mark.parametrize("which", ["both", "total", "other", "neither"])
def test_one_launch(cupy, dtype, shape, which):
    totals, parts = RNG.standard_normal((2, *shape)).astype(dtype), RNG.standard_normal((2, *shape))
    wanted = [which in ("both", name) for name in ("total", "other")]
    arrays = [(there(t), there(p)) if w else (None, None) for t, p, w in zip(totals, parts, wanted, strict=True)]
    cupy.launched.clear()
    before = cupy.ufuncs
    with cupy.nothing_waits():
        gpu.add(*arrays[0], *arrays[1])
    assert cupy.launched == ["add_gradients"] * int(any(wanted) and np.prod(shape) > 0) and cupy.ufuncs == before
    for (got, _), total, part in zip(arrays, totals, parts, strict=True):
        if got is not None:
            assert_same(back(got), (total + part).astype(dtype))


@pytest.mark.parametrize("kind", ["strided", "float16", "two types"])
def test_gradients_that_somebody_has_put_there(cupy, kind):
    """CuPy adds to these, one after the other."""
    dtypes = {"strided": "f8 f8", "float16": "f2 f2", "two types": "f4 f8"}[kind].split()
    totals = [RNG.standard_normal(10).astype(dtype) for dtype in dtypes]
    parts, step = RNG.standard_normal((2, 5)), 2 if kind == "strided" else 1
    given = [there(t)[: 5 * step : step] for t in totals]
    cupy.launched.clear()
    gpu.add(given[0], there(parts[0]), given[1], there(parts[1]))
    assert not cupy.launched
    for got, total, part in zip(given, totals, parts, strict=True):
        assert_same(back(got), (total[: 5 * step : step] + part).astype(total.dtype))


@pytest.mark.parametrize(
    ("make", "shape", "launches"),
    [
        (lambda: bnorm.LayerNorm(C, device="cuda"), (6, C), ["rows_backward", "rows_params"]),
        (lambda: bnorm.BatchNorm1d(C, device="cuda"), (6, C), ["sums"]),
    ],
    ids=["LayerNorm", "BatchNorm1d"],
)
def test_a_backward_is_few_launches(cupy, make, shape, launches):
    layer = make()
    layer(there(RNG.standard_normal(shape)))
    cupy.launched.clear()
    before = cupy.ufuncs
    layer.backward(there(RNG.standard_normal(shape)))
    assert [name.split("<")[0] for name in cupy.launched] == [*launches, "add_gradients"] and cupy.ufuncs == before
