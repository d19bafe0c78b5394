"""Every kernel of every backend against the reference, over every case and type, and in place."""

import inspect
from functools import partial
from itertools import product

import numpy as np
import pytest

from backends import ACTIVATIONS, CUDA_RUNS, SWITCH, each_backend, on_backends, parametrized
from bnorm.kernels import MEAN_SQUARE, VARIANCE, cpu, gpu, reference
from bnorm.kernels.activation import IDENTITY, RELU
from cases import CASES, DTYPES
from compare import assert_close, assert_same, sum_error
from drawing import every_pair, pairwise
from emulated import rows as gpu_rows
from kernel_checks import (
    as_block,
    assert_backward,
    assert_forward,
    assert_moments,
    assert_rows,
    away_from_zero,
    channel,
    every_case,
    every_dtype,
    map_error,
    problem,
    rows_of,
    stats_of,
)

NAMES = [name for name, f in inspect.getmembers(reference, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("kernels", [cpu, gpu], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", NAMES)
def test_signatures_are_those_of_the_reference(name, kernels):
    def shape(function):
        parameters = inspect.signature(function).parameters.values()
        return [(p.name, p.default, p.kind) for p in parameters]

    assert shape(getattr(kernels, name)) == shape(getattr(reference, name))


# The pieces --------------------------------------------------------------------------------------------------------


@on_backends(weighted=SWITCH, skipna=SWITCH)
def test_moments(backend, case, dtype, weighted, skipna):
    p = problem(case, dtype)
    x = p.x.copy()
    if skipna:
        x[np.random.default_rng(0).random(x.shape) < 0.2] = np.nan
    got, want = backend.both("moments", x, p.weight if weighted else None, skipna)
    assert_moments(got, want, dtype, weighted, case=case.name, skipna=skipna)


def some_statistics(case, dtype):
    p = problem(case, dtype)
    rng = np.random.default_rng(9)
    mean = reference.moments(p.x)[1] + rng.standard_normal(case.num_channels) * 0.1
    return p, stats_of(mean, p.gamma * 1.5, p.beta)


@on_backends(act=ACTIVATIONS)
def test_normalize(backend, case, dtype, act):
    p, stats = some_statistics(case, dtype)
    mean, _, _, scale, shift = stats
    got, want = backend.both("normalize", p.x, stats, act)
    terms = (as_block(p.x) - channel(mean)) * channel(scale), channel(shift)
    allowed = map_error(dtype, as_block(want, dtype), *terms).reshape(p.x.shape)
    assert got.dtype == p.x.dtype
    assert_close(got, want, allowed, case=case.name, dtype=dtype, act=act)


@on_backends(weighted=SWITCH, act=ACTIVATIONS)
def test_grad_moments(backend, case, dtype, act, weighted):
    p, stats = some_statistics(case, dtype)
    dy = away_from_zero(p.dy, p.x, dtype, stats)
    got, want = backend.both("grad_moments", dy, p.x, stats, p.weight if weighted else None, act)
    wide_dy, t = as_block(dy), as_block(p.x) - channel(stats[0])
    for g, w, terms in zip(got, want, (wide_dy, wide_dy * t), strict=True):
        assert_close(g, w, sum_error(dtype, terms, (0, 2)), case=case.name, dtype=dtype, act=act)


@on_backends(weighted=SWITCH, act=ACTIVATIONS)
def test_grad_input(backend, case, dtype, act, weighted):
    p, stats = some_statistics(case, dtype)
    dy = away_from_zero(p.dy, p.x, dtype, stats)
    coefficients = np.random.default_rng(4).standard_normal((3, case.num_channels))
    a, b, c = coefficients
    got, want = backend.both("grad_input", dy, p.x, stats, coefficients, p.weight if weighted else None, act)
    w = p.weight[:, None] if weighted else 1.0
    terms = as_block(dy), w * channel(b) * (as_block(p.x) - channel(stats[0])), w * channel(c)
    allowed = map_error(dtype, as_block(want, dtype), *(channel(a) * term for term in terms)).reshape(p.x.shape)
    assert got.dtype == p.x.dtype
    assert_close(got, want, allowed, case=case.name, dtype=dtype, act=act, weighted=weighted)


# Batch norm ---------------------------------------------------------------------------------------------------------


@on_backends(weighted=SWITCH, act=ACTIVATIONS)
def test_forward(backend, case, dtype, weighted, act):
    p = problem(case, dtype)
    options = {"weight": p.weight} if weighted else {}
    got, want = backend.both("forward", p.x, p.gamma, p.beta, 1e-5, act=act, **options)
    if backend.name != "cpu" and weighted and not case.num_channels:
        want = *want[:2], 0.0, want[3]  # nothing is launched, and so no weight is seen
    assert_forward(got, want, p, dtype, weighted, case=case.name, act=act)


@each_backend(dtype=DTYPES, scaled=SWITCH, shifted=SWITCH, given=SWITCH)
def test_forward_without_gamma_or_beta(backend, dtype, scaled, shifted, given):
    p = problem(CASES[0], dtype)
    statistics = (p.beta, p.gamma**2) if given else ()
    vectors = p.gamma if scaled else None, p.beta if shifted else None
    got, want = backend.both("forward", p.x, *vectors, 1e-5, *statistics)
    assert_forward(got, want, p, dtype, False, scaled=scaled, shifted=shifted, given=given)


@on_backends(act=ACTIVATIONS)
def test_inference(backend, case, dtype, act):
    p = problem(case, dtype)
    mean, var = reference.moments(p.x)[1] + 0.5, np.linspace(0.5, 2.0, case.num_channels)
    got, want = backend.both("forward", p.x, p.gamma, p.beta, 1e-5, mean, var, act=act, weight=p.weight)
    assert_forward(got, want, p, dtype, False, case=case.name, act=act)


@on_backends(weighted=SWITCH, act=ACTIVATIONS, frozen=SWITCH)
def test_backward(backend, case, dtype, weighted, act, frozen):
    p = problem(case, dtype)
    weight = p.weight if weighted else None
    _, stats, count, _ = reference.forward(p.x, p.gamma, p.beta, 1e-5, weight=weight)
    dy = away_from_zero(p.dy, p.x, dtype, stats)
    given = np.array(count) if weighted and backend.name != "cpu" else count  # CUDA has the sum of weights there
    got, want = backend.both("backward", dy, p.x, stats, given, weight, act, frozen)
    assert_backward(got, want, dy, p.x, stats, count, weight, frozen, dtype, case=case.name, act=act)


@each_backend()
def test_backward_without_params(backend):
    p = problem(CASES[0], "float32")
    _, stats, count, _ = backend("forward", p.x, p.gamma, p.beta, 1e-5)
    for frozen in (False, True):
        dx, dgamma, dbeta = backend("backward", p.dy, p.x, stats, count, frozen=frozen, params=False)
        assert dgamma is None and dbeta is None
        assert_same(dx, backend("backward", p.dy, p.x, stats, count, frozen=frozen)[0], frozen=frozen)


# Rows ---------------------------------------------------------------------------------------------------------------

ROWS = [  # (N, G, K, L)
    (5, 1, 7, 1),  # layer norm
    (20, 1, 768, 1),  # a transformer's
    (3, 1, 2049, 1),  # one value more than the buffer
    (2, 2, 2100, 1),  # group norm of (N, C) with long groups
    (1, 1, 16500, 1),  # longer than a block
    (4, 1, 1, 1),  # one feature
    (300, 1, 33, 1),  # many short rows, several pieces
    (17, 3, 5, 1),  # group norm of (N, C)
    (3, 4, 2, 49),  # group norm of 7x7 images
    (1, 2, 2, 16500),  # runs longer than a block
    (2, 5, 1, 1025),  # instance norm
    (130, 6, 1, 16),
    (70, 1, 100, 1),  # several batches of short rows, the last one not full
    (150, 1, 8, 1),  # batches of as many rows as there may be
    (5, 1, 300, 1),  # sums of the row for long ones, statistics for short ones
    (21, 1, 1100, 1),  # long rows, some together, the last of them fewer; three chunks of columns, the last one ragged
    (6, 3, 700, 1),  # the same in groups
    (3, 2, 1, 196),  # instance norm of 14x14 images
    (2, 3, 2, 300),
    (9, 1, 64, 1),  # whole vectors
    (6, 70, 2, 1),  # many groups
    (2, 1, 3, 64),  # one group: all of a sample
    (0, 1, 8, 1),
    (3, 1, 0, 1),
    (3, 2, 2, 0),
    (3, 0, 0, 5),
]
RULES, AFFINE = [VARIANCE, MEAN_SQUARE], [False, True]
ROW_RUNS = {
    "cpu": list(dict.fromkeys(pairwise(list(product(ROWS, DTYPES)), AFFINE, RULES, ACTIVATIONS) + gpu_rows.EVERY)),
    "emulator": gpu_rows.DRAWN,
    "device": gpu_rows.EVERY,
}
EVERY_ROW_RUN = {"cpu": list(product(ROWS, DTYPES, AFFINE, RULES, ACTIVATIONS)), "emulator": gpu_rows.EVERY}


@parametrized(["shape", "dtype", "affine", "rule", "act"], ROW_RUNS, **EVERY_ROW_RUN)
def test_rows(backend, shape, dtype, affine, rule, act):
    tags = {"shape": shape, "dtype": dtype, "affine": affine, "rule": rule, "act": act}
    args, _, want, of_dx = assert_rows(backend, *rows_of(shape, dtype, affine), rule, act, tags)
    dx, dgamma, dbeta = backend("rows_backward", *args, params=False)
    assert dgamma is None and dbeta is None
    assert_close(dx, want[0], of_dx, what="dx without params", **tags)


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("act", [IDENTITY, RELU], ids=["", "relu"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 1, 7, 1), (4, 1, 2100, 1), (17, 3, 5, 1), (3, 4, 2, 49), (0, 1, 8, 1)])
def test_float32_parameters_are_those_of_float64(shape, dtype, act, weighted):
    rng = np.random.default_rng(shape)
    x, dy = rng.standard_normal((2, *shape)).astype(dtype)
    weight = rng.uniform(size=(shape[0], shape[3])) if weighted else None
    wide = rng.uniform(0.5, 2, (2, shape[1] * shape[2])).astype("float32").astype("float64")

    def results(gamma, beta):
        y, mean, rstd, *copies = cpu.rows_forward(x, gamma, beta, 1e-5, act=act, weight=weight, copies=True)
        of_copies, of_given = (
            cpu.rows_backward(dy, x, mean, rstd, *p, act=act, weight=weight) for p in (copies, (gamma, beta))
        )
        for a, b in zip(of_copies, of_given, strict=True):
            assert_same(a, b, shape=shape)
        return y, mean, rstd, *of_given

    def parameters(dtypes):
        return [None if t is None else p.astype(t) for p, t in zip(wide, dtypes, strict=True)]

    for given in product([None, "float32", "float64"], repeat=2):
        want = results(*parameters([t and "float64" for t in given]))
        for a, b in zip(results(*parameters(given)), want, strict=True):
            assert_same(a, b, shape=shape, given=given)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gamma_is_copied_as_the_rows_read_it(dtype):
    x, g = np.ones((2, 1, 6, 1), dtype), np.linspace(0.1, 1, 6)
    wide = dtype == "float64"
    *_, gamma, beta = cpu.rows_forward(x, g, g, 1e-5, act=RELU, copies=True)
    assert gamma.dtype == beta.dtype == ("float64" if wide else "float32")
    assert_same(gamma, g.astype(gamma.dtype))
    assert_same(beta, gamma)
    for shape in [(1, 1, 5000, 1), (3, 1, 2100, 1), (40, 1, 2100, 1), (0, 1, 2100, 1)]:
        many, g_, b_ = np.ones(shape, dtype), *np.random.default_rng(shape).random((2, shape[2]))
        *_, gamma, beta = cpu.rows_forward(many, g_, b_, 1e-5, act=RELU, copies=True)
        assert_same(gamma, g_.astype(gamma.dtype), shape=shape)
        assert_same(beta, b_.astype(gamma.dtype), shape=shape)
    for options in ({"x": x.reshape(2, 1, 3, 2)}, {"x": x[:, :, :3].copy(), "weight": np.ones((2, 1))}):
        *_, gamma, beta = cpu.rows_forward(gamma=g[:3], beta=g[3:], eps=1e-5, act=RELU, copies=True, **options)
        assert_same(gamma, g[:3])
        assert_same(beta, g[3:])


def surrounded(row, by):
    return np.concatenate([by, row] * 11 + [by])


A_ROW = [(1, 7, 1), (1, 33, 1), (2, 100, 1), (1, 300, 1), (1, 1100, 1), (1, 2300, 1), (3, 2, 49)]


@every_pair(["shape", "dtype"], product(A_ROW, ["float32", "float64"]), affine=AFFINE, rule=RULES, act=ACTIVATIONS)
def test_a_row_is_its_own(shape, dtype, affine, rule, act):
    """Its bits are those that it has alone, whatever stands in the rows around it."""
    rng = np.random.default_rng(shape)
    g, k, _ = shape
    gamma, beta = rng.standard_normal((2, g * k)) if affine else (None, None)
    x, dy = rng.standard_normal((2, 1, *shape)).astype(dtype)
    alone = cpu.rows_forward(x, gamma, beta, 1e-5, rule, act)
    dx, _, _ = cpu.rows_backward(dy, x, *alone[1:], gamma, beta, rule, act)
    for other in (np.nan, np.inf, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal):
        among = partial(surrounded, by=np.full((1, *shape), other, dtype))
        many = cpu.rows_forward(among(x), gamma, beta, 1e-5, rule, act)
        all_dx, _, _ = cpu.rows_backward(among(dy), among(x), *many[1:], gamma, beta, rule, act)
        for i in range(1, 22, 2):
            assert many[0][i].tobytes() == alone[0].tobytes(), (other, i)
            assert many[1][i * g : (i + 1) * g].tobytes() == alone[1].tobytes(), (other, i)
            assert many[2][i * g : (i + 1) * g].tobytes() == alone[2].tobytes(), (other, i)
            assert all_dx[i].tobytes() == dx.tobytes(), (other, i)


# out ----------------------------------------------------------------------------------------------------------------


@on_backends(cuda=[run for run in CUDA_RUNS if run[1] == "float32"][::4])
def test_in_place(backend, case, dtype):
    """out may be x, or dy, and is what is returned; the numbers are those without it."""
    p, k = problem(case, dtype), backend.kernels
    x, dy, gamma, beta, weight = map(backend.up, p)
    _, stats, count, _ = k.forward(x, gamma, beta, 1e-5)
    mean, var = stats[:2]
    coefficients = stats[2:]
    calls = [
        (0, lambda x, dy, out: k.normalize(x, stats, out=out)),
        (0, lambda x, dy, out: k.forward(x, gamma, beta, 1e-5, out=out)[0]),
        (0, lambda x, dy, out: k.forward(x, gamma, beta, 1e-5, mean, var, out=out)[0]),
        (0, lambda x, dy, out: k.grad_input(dy, x, stats, coefficients, weight, RELU, out)),
        (1, lambda x, dy, out: k.grad_input(dy, x, stats, coefficients, weight, RELU, out)),
        (0, lambda x, dy, out: k.backward(dy, x, stats, count, act=RELU, out=out)[0]),
        (1, lambda x, dy, out: k.backward(dy, x, stats, count, act=RELU, out=out)[0]),
    ]
    for i, (which, call) in enumerate(calls):
        want = backend.down(call(x, dy, None))
        fresh = backend.up(np.full_like(p.x, np.nan))
        assert call(x, dy, fresh) is fresh
        arrays = x.copy(), dy.copy()
        assert call(*arrays, arrays[which]) is arrays[which]
        assert_same(backend.down(fresh), want, call=i, case=case.name, dtype=dtype)
        assert_same(backend.down(arrays[which]), want, call=i, case=case.name, dtype=dtype)


@every_dtype
@every_case
def test_rows_in_place(case, dtype):
    p, k = problem(case, dtype), cpu  # of CUDA in tests/gpu/test_rows.py
    shape = p.x.shape[0], 1, int(np.prod(p.x.shape[1:])), 1
    rows, dy = p.x.reshape(shape), p.dy.reshape(shape)
    want, row_mean, row_rstd = k.rows_forward(rows, None, None, 1e-5)
    x = rows.copy()
    assert k.rows_forward(x, None, None, 1e-5, out=x)[0] is x
    assert_same(x, want, call="rows_forward", case=case.name, dtype=dtype)
    want = k.rows_backward(dy, rows, row_mean, row_rstd, None, None)[0]
    for which in (0, 1):
        arrays = dy.copy(), rows.copy()
        got = k.rows_backward(*arrays, row_mean, row_rstd, None, None, out=arrays[which])[0]
        assert got is arrays[which]
        assert_same(got, want, call="rows_backward", case=case.name, dtype=dtype)


@each_backend(dtype=DTYPES, rule=[VARIANCE, MEAN_SQUARE], params=SWITCH)
def test_rows_with_a_residual(backend, dtype, rule, params):
    """As an addition and a norm; its backward, as a backward and an addition."""
    rng = np.random.default_rng(1)
    x, r, dy, dh = rng.normal(size=(4, 5, 1, 40, 1)).astype(dtype)
    gamma, beta = rng.normal(size=(2, 40))
    (y, h), mean, rstd = backend("rows_forward", x, gamma, beta, 1e-5, rule, IDENTITY, None, r)
    wanted, *statistics = backend("rows_forward", x + r, gamma, beta, 1e-5, rule)
    for got, want in zip((y, h, mean, rstd), (wanted, x + r, *statistics), strict=True):
        assert_same(got, want, backend=backend.name, dtype=dtype)
    dx, *sums = backend("rows_backward", dy, h, mean, rstd, gamma, beta, rule, IDENTITY, params, None, dh)
    plain, *wanted = backend("rows_backward", dy, h, mean, rstd, gamma, beta, rule, IDENTITY, params)
    unit = float(np.finfo(dtype).eps)
    assert_close(
        dx, plain.astype("f8") + dh, 2 * unit * (np.abs(plain) + np.abs(dh)), backend=backend.name, dtype=dtype
    )
    for got, want in zip(sums, wanted, strict=True):
        assert (got is None) == (want is None) == (not params)
        if params:
            assert_same(got, want, backend=backend.name, dtype=dtype)
