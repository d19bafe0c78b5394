"""Gradients of parameters on the stand-in for a GPU: kernels of a backward add them to those there are, where that is
possible, or else one launch does."""

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
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


MAKERS = {  # a layer, the shape of its x, the function that it calls, and the launches of a backward
    "LayerNorm": (
        lambda **options: bnorm.LayerNorm(C, device="cuda", **options),
        (6, C),
        lambda x, gamma, beta: F.layer_norm(x, gamma, beta, normalized_shape=C),
        ["rows_backward"],
    ),
    "LayerNorm, one row": (
        lambda **options: bnorm.LayerNorm(C, device="cuda", **options),
        (1, C),
        lambda x, gamma, beta: F.layer_norm(x, gamma, beta, normalized_shape=C),
        ["rows_backward"],
    ),
    "GroupNorm": (
        lambda **options: bnorm.GroupNorm(2, C, device="cuda", **options),
        (5, C, 3),
        lambda x, gamma, beta: F.group_norm(x, 2, gamma, beta),
        None,
    ),
    "GroupNorm of vectors": (
        lambda **options: bnorm.GroupNorm(2, C, device="cuda", **options),
        (5, C),
        lambda x, gamma, beta: F.group_norm(x, 2, gamma, beta),
        ["row_channels", "rows_backward"],
    ),
    "BatchNorm1d": (
        lambda **options: bnorm.BatchNorm1d(C, device="cuda", **options),
        (6, C),
        F.batch_norm,
        ["sums"],
    ),
}
every_layer = pytest.mark.parametrize(("make", "shape", "function", "launches"), MAKERS.values(), ids=MAKERS)


@every_layer
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wanted", ["both", "gamma", "beta"])
def test_backwards_add_without_launches_of_their_own(cupy, make, shape, function, launches, dtype, wanted):
    """One by one, each rounded as NumPy rounds it, to the gradients that F.backward returns."""
    layer = make(dtype=dtype)
    sums = {}
    for name, p in layer.named_parameters():
        p.requires_grad = wanted in ("both", name)
        sums[name] = np.zeros(C, dtype)
    for _ in range(3):
        x, dy = there(RNG.standard_normal(shape)), there(RNG.standard_normal(shape))
        _, saved = function(x, layer.gamma.data.astype("f8"), layer.beta.data.astype("f8"))
        for name, part in zip(sums, F.backward(dy, saved)[1:], strict=True):
            sums[name] = (sums[name] + back(part)).astype(dtype) if wanted in ("both", name) else sums[name]
        layer(x)
        cupy.launched.clear()
        before = cupy.ufuncs
        layer.backward(dy)
        names = [name.split("<")[0] for name in cupy.launched]
        assert names == launches if launches else "add_gradients" not in names
        assert cupy.ufuncs == before and layer._saved is None
    for name, p in layer.named_parameters():
        assert_same(back(p.grad), sums[name])


@every_layer
def test_gradients_that_a_backward_reads_are_added_to_at_its_end(cupy, make, shape, function, launches):
    """Somebody has put both into one array."""
    layer, x = make(), RNG.standard_normal(shape)
    dy = there(np.zeros(shape))
    layer.gamma._grad = dy.reshape(-1)[:C]
    layer._settle()
    before = RNG.standard_normal(shape)
    dy[...] = there(before)
    _, saved = function(there(x), layer.gamma.data, layer.beta.data)
    want, dgamma, dbeta = (back(a) for a in F.backward(there(before), saved))
    layer(there(x))
    assert_same(back(layer.backward(dy)), want)
    assert_same(back(layer.gamma.grad), before.reshape(-1)[:C] + dgamma)
    assert_same(back(layer.beta.grad), dbeta)
