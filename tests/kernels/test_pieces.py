"""The pieces of batch norm, with something between them and without: reduce, finish, map, forward and backward."""

import numpy as np
import pytest

from backends import ACTIVATIONS, SWITCH, Backend, each_backend, on_backends
from bnorm import Moments
from bnorm.kernels import cpu, reference
from bnorm.kernels.activation import IDENTITY, RELU, leaky
from compare import EPS, assert_close, assert_same
from kernel_checks import every_activation, on_off, problem


@on_backends(weighted=SWITCH, act=ACTIVATIONS)
def test_pieces_are_the_whole(backend, case, dtype, act, weighted):
    """With nothing between them they give the bits of `forward` and `backward`; the statistics do so of float64.

    Of float32 `moments` makes more exact ones than `forward`; and a GPU adds up in another order where it keeps x.
    """
    p, cuda = problem(case, dtype), backend.name != "cpu"
    weight = p.weight if weighted else None
    y, stats, count, _ = backend("forward", p.x, p.gamma, p.beta, 1e-5, weight=weight, act=act)
    found = backend("finish", backend("moments", p.x, weight), p.gamma, p.beta, 1e-5)
    otherwise = not weighted and backend.adds_otherwise("moments", "normalize", p.x)
    otherwise_back = not weighted and backend.adds_otherwise("sums", "gradient", p.x)
    if (dtype == "float64" and not otherwise) or (weighted and not cuda):
        assert found.tobytes() == stats.tobytes()
    std, eps = np.sqrt(stats[1]), EPS[np.dtype(dtype)]
    assert_close(found[0], stats[0], 4 * eps * std + EPS[np.dtype("float64")] * np.abs(stats[0]), case=case.name)
    assert_close(found[1], stats[1], 16 * eps * stats[1], case=case.name)
    found = stats
    assert backend("normalize", p.x, found, act).tobytes() == y.tobytes()
    dx, dgamma, dbeta = backend("backward", p.dy, p.x, stats, count, weight, act)
    if otherwise_back:
        return
    sums = backend("grad_moments", p.dy, p.x, found, weight, act)
    assert sums[0].tobytes() == dbeta.tobytes()
    assert (stats[2] * sums[1]).tobytes() == dgamma.tobytes()
    coefficients = backend("finish_gradients", sums, found, count)
    assert backend("grad_input", p.dy, p.x, found, coefficients, weight, act).tobytes() == dx.tobytes()


@each_backend(eps=[0.0, 1e-5], scaled=SWITCH, shifted=SWITCH)
def test_finish(backend, eps, scaled, shifted):
    """Of channels with a variance, without one, and without any value."""
    parts = np.array([[3.0, 3.0, 0.0], [1.5, -2.0, 0.0], [6.0, 0.0, 0.0], [1e-17, 0.0, 0.0]])
    gamma, beta = (np.array([2.0, -3.0, 5.0]) if given else None for given in (scaled, shifted))
    got, want = backend.both("finish", parts, gamma, beta, eps)
    assert_close(got, want, 4 * EPS[np.dtype("float64")] * np.abs(want), scaled=scaled, shifted=shifted, eps=eps)
    assert_same(got[:2], [[1.5, -2.0, 0.0], [2.0, 0.0, 0.0]])
    assert got[2, 1] == (1.0 if eps == 0 else 1 / np.sqrt(eps))
    assert_same(got[2:4, 2], [0, 0])


@each_backend(count=[7.0, 7, 0.0, np.array(7.0), np.array([7.0, 2.5, 0.0])])
def test_finish_gradients(backend, count):
    if backend.name == "cpu" and np.ndim(count) == 0:
        count = float(count)  # no other kind is there
    rng = np.random.default_rng(0)
    sums, stats = rng.standard_normal((2, 3)), rng.uniform(0.5, 2, (5, 3))
    got, want = backend.both("finish_gradients", sums, stats, count)
    assert_close(got, want, 8 * EPS[np.dtype("float64")] * np.abs(want))
    assert_same(got[0], stats[3])
    assert_same(got[1:, np.broadcast_to(count, 3) == 0], 0 * got[1:, np.broadcast_to(count, 3) == 0])
    if np.ndim(count):
        for c, n in enumerate(count):
            assert_same(got[:, c], backend("finish_gradients", sums, stats, float(n))[:, c], channel=c)


@every_activation
@on_off("weighted")
@pytest.mark.parametrize("kernels", [cpu, reference], ids=["cpu", "reference"])
def test_a_batch_in_parts(kernels, act, weighted):
    """What workers do that see a part of the batch each: their moments are merged, and their sums added."""
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((2, 90, 5, 4)) + 3
    weight = rng.uniform(0.5, 2, (90, 4)) * (rng.random((90, 4)) > 0.3) if weighted else None
    gamma, beta = rng.standard_normal((2, 5))
    y, stats, count, _ = kernels.forward(x, gamma, beta, 1e-5, weight=weight, act=act)
    dx, dgamma, dbeta = kernels.backward(dy, x, stats, count, weight, act)

    parts = [slice(0, 20), slice(20, 21), slice(21, 90)]
    of = [None if weight is None else weight[rows] for rows in parts]
    merged = Moments.merge(
        Moments._from_parts(kernels.moments(x[rows], w)) for rows, w in zip(parts, of, strict=True)
    )._parts
    found = kernels.finish(merged, gamma, beta, 1e-5)
    assert_close(found, stats, 1e-14 * np.maximum(1, np.abs(stats)))
    sums = sum(kernels.grad_moments(dy[rows], x[rows], found, w, act) for rows, w in zip(parts, of, strict=True))
    assert_close([found[2] * sums[1], sums[0]], [dgamma, dbeta], 1e-11)
    coefficients = kernels.finish_gradients(sums, found, merged[0])
    for rows, w in zip(parts, of, strict=True):
        assert_close(kernels.normalize(x[rows], found, act), y[rows], 1e-13)
        assert_close(kernels.grad_input(dy[rows], x[rows], found, coefficients, w, act), dx[rows], 1e-12)


@each_backend(dtype=["float32", "float64"])
def test_activations_of_what_is_not_finite(backend, dtype):
    """ReLU of minus infinity is 0 and its gradient there selects 0; NaN stays, and lets its gradient pass."""
    x = np.array([[-np.inf], [-2.0], [-0.0], [0.0], [3.0], [np.inf], [np.nan]], dtype)
    stats, dy = np.array([[0.0], [1], [1], [1], [0]]), np.array([[np.inf]] * 2 + [[7.0]] * 5, dtype)
    gradients = {IDENTITY: [np.inf, np.inf, 7, 7, 7, 7, 7], RELU: [0, 0, 0, 0, 7, 7, 7]}
    gradients[leaky(0.25)] = [np.inf, np.inf, 7 / 4, 7 / 4, 7, 7, 7]
    for act, want_dx in gradients.items():
        below = [0, 0] if act == RELU else [-np.inf, -2 * act.slope]
        for run in (backend, Backend("reference", reference)):
            y = run("normalize", x, stats, act)
            assert_same(y.ravel(), [*below, 0, 0, 3, np.inf, np.nan], act=act, kernels=run.name)
            dx = run("backward", dy, x, stats, 7.0, act=act, frozen=True, params=False)[0]
            assert_same(dx.ravel(), want_dx, act=act, kernels=run.name)
