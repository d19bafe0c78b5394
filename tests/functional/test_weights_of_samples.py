"""Weights in group and instance norm: a padded batch is as its samples by themselves, in value and in gradient."""

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
import cases
from compare import assert_close, assert_same
from drawing import together

LENGTHS = np.array([12, 7, 1, 9, 0])
MASK = np.arange(12) < LENGTHS[:, None]
NORMS = {
    "group": lambda x, *p, **k: F.group_norm(x, 3, *p, **k),
    "one group": lambda x, *p, **k: F.group_norm(x, 1, *p, **k),
    "instance": F.instance_norm,
}
every_norm = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)


def padded(dtype="f8", padding=np.nan):
    """A batch (N, C, L), dy that is 0 where nothing is, gamma and beta."""
    rng = np.random.default_rng(0)
    x, dy = rng.normal(3, 2, (2, 5, 6, 12)).astype(dtype)
    hidden = np.broadcast_to(~MASK[:, None], x.shape)
    x[hidden], dy[hidden] = padding, 0
    return x, dy, rng.uniform(0.5, 2, 6), rng.normal(size=6)


@together(dtype=["f2", "f4", "f8"], activation=[None, "relu", "silu"], padding=[np.nan, np.inf, 0])
@every_norm
def test_padding_is_as_if_it_were_not_there(norm, activation, dtype, padding):
    x, dy, gamma, beta = padded(dtype, padding)
    y, saved = norm(x, gamma, beta, weight=MASK, activation=activation)
    dx, dgamma, dbeta = F.backward(dy, saved)
    unit = {"f2": 4e-3, "f4": 1e-5, "f8": 4e-14}[dtype]  # a sample has two values that are close
    sums = np.zeros(6), np.zeros(6)
    for i, n in enumerate(LENGTHS[:-1]):
        alone = np.stack([x[i, :, :n]] * 2)  # two, as one value of one sample is an error
        if n == 1 and norm is F.instance_norm:
            continue
        want, of = norm(alone, gamma, beta, activation=activation)
        assert_close(y[i, :, :n], want[0], unit * (8 + np.abs(want[0])), sample=i)
        want, *parts = F.backward(np.stack([dy[i, :, :n], 0 * dy[i, :, :n]]), of)
        assert_close(dx[i, :, :n], want[0], unit * (8 + np.abs(want[0])), sample=i)
        for total, part in zip(sums, parts, strict=True):
            total += part
    assert (dx[np.broadcast_to(~MASK[:, None], x.shape)] == 0).all()
    assert np.isfinite(dx).all()
    if norm is not F.instance_norm:
        assert_close(dgamma, sums[0], 300 * unit)
        assert_close(dbeta, sums[1], 300 * unit)


@every_norm
def test_a_sample_of_one_value_and_one_of_none(norm):
    x, dy, gamma, beta = padded(padding=5)
    dy = np.random.default_rng(1).normal(size=x.shape)
    y, saved = norm(x, gamma, beta, weight=MASK)
    assert_same(y[4], np.broadcast_to(beta[:, None], (6, 12)))
    dx, dgamma, dbeta = F.backward(dy, saved)
    assert (dx[4] == 0).all()
    _, others = norm(x[:4], gamma, beta, weight=MASK[:4])
    _, want, part = F.backward(dy[:4], others)
    assert_close(dgamma, want, 1e-13)
    assert_close(dbeta, part + dy[4].sum(1), 1e-13)
    if norm is F.instance_norm:
        assert_same(y[2, :, 0], beta)  # a single value is its own mean


@every_norm
def test_weights_are_repetitions(norm):
    rng = np.random.default_rng(2)
    x, dy = rng.normal(size=(2, 3, 6, 4))
    weight = np.array([[1, 3, 0, 2], [2, 2, 1, 1], [0, 0, 1, 5]])
    y, saved = norm(x, weight=weight)
    dx, _, _ = F.backward(dy * (weight[:, None] > 0), saved)
    for i in range(3):
        many = np.repeat(x[i : i + 1], weight[i], 2)
        want, of = norm(many)
        assert_close(np.repeat(y[i : i + 1], weight[i], 2), want, 1e-13)
        share = np.repeat(dy[i : i + 1] / np.maximum(weight[i], 1), weight[i], 2)
        each, _, _ = F.backward(share, of)
        starts = np.concatenate([[0], np.cumsum(weight[i][weight[i] > 0])[:-1]])
        assert_close(dx[i][:, weight[i] > 0], np.add.reduceat(each[0], starts, axis=1), 1e-13)


@every_norm
def test_gradients_are_those_of_autograd(norm):
    torch = pytest.importorskip("torch", reason="its autograd is the oracle")
    rng = np.random.default_rng(3)
    x, dy = rng.normal(1, 2, (2, 3, 6, 4, 2))
    gamma, beta, weight = rng.normal(size=6), rng.normal(size=6), rng.integers(0, 3, (3, 4, 2)).astype("f8")
    weight[1] = 0
    weight[1, 0, 0] = 0.5
    groups = {"group": 3, "one group": 1, "instance": 6}[next(k for k, v in NORMS.items() if v is norm)]
    tensors = [torch.from_numpy(a).requires_grad_() for a in (x, gamma, beta)]
    whole, w = tensors[0].reshape(3, groups, -1, 8), torch.from_numpy(weight).reshape(3, 1, 1, 8)
    count = w.sum((2, 3), keepdim=True) * whole.shape[2]
    mean = (w * whole).sum((2, 3), keepdim=True) / count
    var = (w * (whole - mean) ** 2).sum((2, 3), keepdim=True) / count
    want = ((whole - mean) / (var + 1e-5).sqrt()).reshape(x.shape)
    want = want * tensors[1].reshape(-1, 1, 1) + tensors[2].reshape(-1, 1, 1)
    y, saved = norm(x, gamma, beta, weight=weight)
    assert_close(y, want.detach().numpy(), 1e-11)
    for got, expected in zip(
        F.backward(dy, saved), torch.autograd.grad(want, tensors, torch.from_numpy(dy)), strict=True
    ):
        assert_close(got, expected.numpy(), 1e-9 * (1 + np.abs(expected.numpy())))


@every_norm
@pytest.mark.parametrize(
    "memory", [cases.fortran, cases.channels_last, cases.strided, cases.backwards, cases.unaligned]
)
def test_every_memory(norm, memory):
    rng = np.random.default_rng(4)
    x, dy = rng.normal(size=(2, 3, 6, 4, 5))
    for weight in (rng.random((3, 4, 5)) < 0.7, np.array([1.0, 0, 2])):
        y, saved = norm(x, weight=weight)
        want = F.backward(dy, saved)[0]
        got, saved = norm(memory(x), weight=weight)
        assert_close(got, y, 1e-13)
        assert_close(F.backward(memory(dy), saved)[0], want, 1e-13)
        moved = np.moveaxis(x, 1, -1)
        got, saved = norm(moved, axis=-1, weight=weight)
        assert_close(np.moveaxis(got, -1, 1), y, 1e-13)
        assert_close(np.moveaxis(F.backward(np.moveaxis(dy, 1, -1), saved)[0], -1, 1), want, 1e-13)


def test_the_weights_are_those_of_the_forward():
    x, dy, gamma, _ = padded(padding=0)
    weight = MASK.astype("f8")
    _, saved = F.group_norm(x, 3, gamma, weight=weight)
    want = F.backward(dy, saved)[0]
    weight[...] = 1
    assert_same(F.backward(dy, saved)[0], want)
    mine = x.copy()
    y, spent = F.group_norm(mine, 3, gamma, weight=MASK, out=mine)
    assert y is mine
    assert_same(y, F.group_norm(x, 3, gamma, weight=MASK)[0])
    with pytest.raises(RuntimeError, match="overwrote"):
        F.backward(dy, spent)


def test_second_derivatives_pass_by_nan():
    x, dy, gamma, beta = padded()
    ddx = np.random.default_rng(5).normal(size=x.shape)
    filled = np.nan_to_num(x)
    for activation in (None, "silu"):
        results = []
        for values in (x, filled):
            _, saved = F.group_norm(values, 3, gamma, beta, weight=MASK, activation=activation)
            results.append(F.double_backward(ddx, saved, dy, gamma, beta))
        there = np.broadcast_to(MASK[:, None], x.shape)
        assert_close(results[0][0][there], results[1][0][there], 1e-13)
        for got, want in zip(results[0][1:], results[1][1:], strict=True):
            assert_close(got, want, 1e-12)


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (np.ones((5, 6)), ValueError, r"weight: expected shape \(5, 12\) or \(5,\) for x of shape \(5, 6, 12\)"),
        (-MASK.astype("f8"), ValueError, "weight: expected finite values >= 0, got values from -1.0"),
        (np.full((5, 12), np.nan), ValueError, "weight: expected finite values >= 0"),
        ("yes", TypeError, "weight: expected"),
    ],
)
def test_errors(weight, error, message):
    x = padded()[0]
    for call, who in (
        (lambda: F.group_norm(x, 3, weight=weight), "group_norm"),
        (lambda: F.instance_norm(x, weight=weight), "instance_norm"),
        (lambda: bnorm.GroupNorm(3, 6)(x, weight), r"GroupNorm\(3, 6\)"),
        (lambda: bnorm.InstanceNorm1d(6, track_running_stats=True)(x, weight), r"InstanceNorm1d\(6\)"),
    ):
        with pytest.raises(error, match=f"{who}: {message}"):
            call()
