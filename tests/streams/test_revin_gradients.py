"""RevIN's gradients, through both ways: against central differences, and against PyTorch."""

from contextlib import suppress

import numpy as np
import pytest

from bnorm import RevIN
from emulated.fake_cupy import fake_cupy  # noqa: F401  a fixture
from interrupts import interrupted, moments
from revin_series import WAYS, made, parameters, series

# Gradients -----------------------------------------------------------------------------------------------------------


def forecast(z, matrix, axis):
    """A linear forecaster of 5 steps from 12."""
    return np.einsum("st,ntc->nsc", matrix, z) if axis == -1 else np.einsum("st,nct->ncs", matrix, z)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("eps", [1e-5, 0.0])
@pytest.mark.parametrize("way", WAYS)
def test_gradients_against_central_differences(way, eps, masked):
    rng = np.random.default_rng(4)
    axis, rev = way["axis"], made(way | {"eps": eps})
    x = series(level=2.0, axis=axis)
    matrix, shape = rng.normal(size=(5, 12)), (4, 5, 3) if axis == -1 else (4, 3, 5)
    dy, dz_own = rng.normal(size=shape), rng.normal(size=x.shape)
    weight = (rng.uniform(size=(4, 12)) < 0.8) * rng.uniform(0.5, 2, size=(4, 12)) if masked else None

    def loss(x):
        z = rev(x, weight=weight)
        return (rev.inverse(forecast(z, matrix, axis)) * dy).sum() + (z * dz_own).sum()

    loss(x)
    rev.zero_grad()
    dout = rev.inverse.backward(dy)
    dz = forecast(dout, matrix.T, axis) + dz_own
    dx = rev.backward(dz)
    grads = [p.grad.copy() for p in rev.parameters()]
    h = 1e-6
    way_x = rng.normal(size=x.shape)
    slope = (loss(x + h * way_x) - loss(x - h * way_x)) / (2 * h)
    assert (dx * way_x).sum() == pytest.approx(slope, rel=1e-6)
    for p, grad in zip(rev.parameters(), grads, strict=True):
        at, slopes = p.data.copy(), []
        for c in range(3):
            step = h * np.eye(3)[c]
            p.data[...] = at + step
            up = loss(x)
            p.data[...] = at - step
            slopes.append((up - loss(x)) / (2 * h))
            p.data[...] = at
        np.testing.assert_allclose(grad, slopes, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("way", WAYS[:4])
def test_gradients_against_pytorch(way, dtype):
    torch = pytest.importorskip("torch", reason="PyTorch's autograd is the oracle")
    rng = np.random.default_rng(5)
    rev, x = made(way), series(dtype=dtype)
    x = x if way["axis"] == -1 else x.transpose(0, 2, 1).copy()
    time = 1 if way["axis"] == -1 else 2
    t = torch.tensor(x.astype("f8"), requires_grad=True)
    gamma, beta = (torch.tensor(np.array(p), dtype=torch.float64) for p in parameters(rev))
    if rev.affine:
        shape = (3,) if way["axis"] == -1 else (3, 1)
        leaves = [p.clone().requires_grad_() for p in (gamma, beta)]
        gamma, beta = (p.reshape(shape) for p in leaves)
    mean, std = t.mean(time, keepdim=True), torch.sqrt(t.var(time, keepdim=True, unbiased=False) + 1e-5)
    center = t.narrow(time, -1 + x.shape[time], 1) if way["subtract_last"] else mean
    z = (t - center) / std * gamma + beta
    out = torch.tanh(z).narrow(time, 0, 5) * 2
    y = (out - beta) / gamma * std + center
    dy = rng.normal(size=tuple(y.shape))
    (y * torch.tensor(dy)).sum().backward()

    ours, pull = rev.vjp(x)
    hidden = np.tanh(ours)
    back, pull_inverse = rev.inverse.vjp((hidden[:, :5] if time == 1 else hidden[:, :, :5]) * 2)
    near = 2e-4 if dtype == "float32" else 1e-11
    np.testing.assert_allclose(back, y.detach().numpy(), rtol=1e-6 if dtype == "float32" else 1e-12)
    dhidden = np.zeros_like(hidden)
    dout = pull_inverse(dy.astype(dtype)) * 2
    if time == 1:
        dhidden[:, :5] = dout
    else:
        dhidden[:, :, :5] = dout
    dx = pull(dhidden * (1 - hidden**2))
    assert dx.dtype == dtype
    np.testing.assert_allclose(dx, t.grad.numpy(), atol=near, rtol=near)
    if rev.affine:
        for p, leaf in zip(rev.parameters(), leaves, strict=True):
            np.testing.assert_allclose(p.grad, leaf.grad.numpy(), atol=near, rtol=near)


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_high_levels_are_those_of_low_ones(masked):
    """The level of a series has twice the digits of float64. Values that 2^-10 divides can be shifted exactly."""
    rng = np.random.default_rng(5)
    x, dy = np.round(rng.normal(size=(4, 12, 3)) * 1024) / 1024, rng.normal(size=(4, 12, 3))
    weight = (rng.uniform(size=(4, 12)) < 0.8) * 1.0 if masked else None
    found = []
    for level in (0.0, 2.0**40):
        rev = RevIN(3)
        rev(x + level, weight=weight)
        found.append(rev.backward(dy))
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-13)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("way", WAYS[:4])
def test_into_an_array(way, order):
    rev, x = made(way), series(axis=way["axis"])
    (_, pull), (_, pull_again), out = rev.vjp(x), rev.vjp(x), np.empty_like(x, order=order)
    assert pull(x, out=out) is out
    np.testing.assert_array_equal(out, pull_again(x))
    _, pull = rev.vjp(x)
    dy = x.copy(order)
    assert pull(dy, out=dy) is dy
    np.testing.assert_array_equal(dy, out)


def test_padding_has_no_gradient():
    rev, x = RevIN(3), series()
    mask = np.ones((4, 12), bool)
    mask[:, 9:] = False
    x[:, 9:] = np.nan
    z, pull = rev.vjp(x, weight=mask)
    dz = np.where(mask[:, :, None], np.ones_like(x), 0.0)
    y, back = rev.inverse.vjp(z[:, :2])
    back(np.ones_like(y))
    dx = pull(dz)
    assert np.isfinite(dx[:, :9]).all()
    np.testing.assert_array_equal(dx[:, 9:], 0)


def test_a_mask_may_be_used_again():
    rev, x, found = RevIN(3), series(), []
    for again in (False, True):
        mask = np.arange(48).reshape(4, 12) % 3 > 0
        _, pull = rev.vjp(x, weight=mask)
        mask |= again
        found.append(pull(np.cos(x)))
    np.testing.assert_array_equal(*found)


# A layer among others -------------------------------------------------------------------------------------------------


def test_several_inverses_of_one_forward_add_up():
    rev, x = RevIN(3), series()
    _, pull = rev.vjp(x)
    pulls = [rev.inverse.vjp(np.ones((4, 2, 3)))[1] for _ in range(2)]
    for p in pulls:
        p(np.ones((4, 2, 3)))
    np.testing.assert_allclose(pull(np.zeros_like(x)).sum(1), 4, rtol=1e-12)  # d mean / d x, twice two steps
    found = []
    for scales in ((1.0, 2.0), (3.0,)):  # of the spread too
        _, pull = rev.vjp(x)
        out = np.cos(np.arange(24.0)).reshape(4, 2, 3)
        for scale in scales:
            rev.inverse.vjp(out)[1](scale * out)
        found.append(pull(np.zeros_like(x)))
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_an_interrupt_of_the_backward_of_the_inverse():
    """What was interrupted is called again: nothing counts twice."""

    def called(at=None):
        rev, x = RevIN(3), series()
        _, pull = rev.vjp(x)
        _, pull_inverse = rev.inverse.vjp(x)
        if at and interrupted(lambda: pull_inverse(x), at):
            with suppress(RuntimeError):  # it has been
                pull_inverse(x)
        elif at is None:
            pull_inverse(x)
        else:
            return moments(lambda: pull_inverse(x))
        dx = pull(np.zeros_like(x))
        return [a.tolist() for a in (dx, rev.gamma.grad, rev.beta.grad)]

    assert all(called(at) == called() for at in range(1, called(0) + 1))
