"""Batch norm folded into the layer before it, against exact rational arithmetic and PyTorch's convolutions."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import bnorm
from bnorm.interop.folding import fold_conv, fold_linear


def trained(channels, kind=bnorm.BatchNorm1d, **options):
    """A layer in inference mode that has learned something."""
    rng = np.random.default_rng(channels)
    layer = kind(channels, **options)
    layer.running_mean, layer.running_var = rng.normal(size=channels) * 10, rng.random(channels) + 0.1
    for p in layer.parameters():
        p.data[...] = rng.normal(size=p.shape)
    return layer.eval()


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"bias": False}, {"eps": 0.0}, {"dtype": "float32"}])
def test_as_affine_is_inference(options):
    layer = trained(6, **options)
    x = np.random.default_rng(1).normal(size=(20, 6)) * 3
    scale, shift = layer.as_affine()
    assert scale.dtype == shift.dtype == np.float64
    np.testing.assert_allclose(x * scale + shift, layer(x), rtol=1e-13, atol=1e-12)


def test_as_affine_comes_before_the_activation_and_shares_no_memory():
    plain, with_relu = trained(6), trained(6, activation="relu")
    for a, b in zip(plain.as_affine(), with_relu.as_affine(), strict=True):
        np.testing.assert_array_equal(a, b)
        a[...] = 7
    assert (plain.gamma.data != 7).all()
    assert (plain.running_mean != 7).all()


def test_a_constant_channel_without_eps_has_scale_1():
    layer = trained(3, eps=0.0)
    layer.running_var = [0.0, 1.0, 4.0]
    np.testing.assert_allclose(layer.as_affine()[0], layer.gamma.data / [1, 1, 2])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_fold_linear_rounds_once(dtype):
    """float64 products and sums, rounded to the dtype of W: compared with the exact value of the float64 inputs."""
    layer, rng = trained(5), np.random.default_rng(2)
    W, b = rng.normal(size=(5, 7)).astype(dtype), rng.normal(size=5)
    folded, bias = fold_linear(layer, W, b)
    assert folded.dtype == bias.dtype == dtype
    scale, shift = layer.as_affine()
    half = Fraction(float(np.finfo(dtype).eps)) / 2
    wide = Fraction(float(np.finfo(np.float64).eps))
    tiny = Fraction(float(np.finfo(dtype).smallest_subnormal))
    for c in range(5):
        s = Fraction(float(scale[c]))
        for k in range(7):
            exact = Fraction(float(W[c, k])) * s
            assert abs(Fraction(float(folded[c, k])) - exact) <= (half + wide) * abs(exact) + tiny
        terms = [Fraction(float(b[c])) * s, Fraction(float(shift[c]))]
        slack = half * abs(sum(terms)) + 2 * wide * sum(map(abs, terms))
        assert abs(Fraction(float(bias[c])) - sum(terms)) <= slack


@pytest.mark.parametrize("given", [True, False])
def test_fold_linear_computes_the_same(given):
    layer, rng = trained(5), np.random.default_rng(3)
    x, W, b = rng.normal(size=(9, 7)), rng.normal(size=(5, 7)), rng.normal(size=5)
    folded, bias = fold_linear(layer, W, b if given else None)
    wanted = layer(x @ W.T + (b if given else 0))
    np.testing.assert_allclose(x @ folded.T + bias, wanted, rtol=1e-13, atol=1e-11)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_fold_conv_computes_the_same(rank, transposed, groups, given):
    torch = pytest.importorskip("torch", reason="PyTorch has the convolutions")
    kinds = {1: bnorm.BatchNorm1d, 2: bnorm.BatchNorm2d, 3: bnorm.BatchNorm3d}
    layer = trained(8, kinds[rank])
    name = f"Conv{'Transpose' if transposed else ''}{rank}d"
    conv = getattr(torch.nn, name)(4, 8, 3, stride=2, groups=groups, bias=given).double()
    x = torch.randn(2, 4, *[7] * rank, dtype=torch.float64)
    wanted = layer(conv(x).detach().numpy())
    W, b = fold_conv(layer, conv.weight, conv.bias, transposed=transposed, groups=groups)  # tensors are taken too
    with torch.no_grad():
        conv.weight.copy_(torch.from_numpy(W))
        conv.bias = torch.nn.Parameter(torch.from_numpy(b))
    np.testing.assert_allclose(conv(x).detach().numpy(), wanted, rtol=1e-12, atol=1e-11)


def test_inputs_stay_as_they_are():
    layer, W, b = trained(3), np.ones((3, 2)), np.ones(3)
    fold_linear(layer, W, b)
    assert (W == 1).all()
    assert (b == 1).all()


@pytest.mark.parametrize("kind", ["bool", "u1", "i4"])
def test_weights_that_are_no_floats_become_floats(kind):
    W, b = fold_linear(trained(3), np.ones((3, 2), kind))
    assert W.dtype == b.dtype == np.float64
    np.testing.assert_array_equal(W, fold_linear(trained(3), np.ones((3, 2)))[0])


def test_bfloat16_stays_bfloat16():
    """Flax' weights may be of this type."""
    layer, rng = trained(4), np.random.default_rng(4)
    for fold, shape in ((fold_linear, (4, 6)), (fold_conv, (4, 6, 3))):
        W = rng.normal(size=shape).astype(ml_dtypes.bfloat16)
        for folded, wide in zip(fold(layer, W), fold(layer, W.astype(np.float64)), strict=True):
            assert folded.dtype == ml_dtypes.bfloat16
            np.testing.assert_array_equal(folded, wide.astype(ml_dtypes.bfloat16))


def test_errors_name_the_parameter():
    layer, untracked = trained(4), bnorm.BatchNorm1d(3, track_running_stats=False)
    for error, message, call, *given in (
        (ValueError, "fold_linear: W: expected 4 channels on axis 0", fold_linear, layer, np.ones((3, 4))),
        (ValueError, r"fold_linear: W: expected 2 dimensions, got shape \(4,\)", fold_linear, layer, np.ones(4)),
        (ValueError, r"fold_linear: b: expected shape \(4,\)", fold_linear, layer, np.ones((4, 3)), np.ones(3)),
        (TypeError, "fold_linear: W: expected", fold_linear, layer, "W"),
        (TypeError, "fold_linear: bn: expected a BatchNorm1d", fold_linear, bnorm.LayerNorm(4), np.ones((4, 3))),
        (ValueError, "fold_conv: W: expected 3 to 5 dimensions", fold_conv, layer, np.ones((4, 3))),
        (ValueError, "fold_conv: W: expected 4 channels on axis 0", fold_conv, layer, np.ones((1, 3, 2))),
        (TypeError, "transposed: expected True or False", fold_conv, layer, np.ones((4, 3, 2)), None, 1),
        (ValueError, "groups: expected a positive integer", fold_conv, layer, np.ones((4, 3, 2)), None, True, -2),
        (ValueError, "groups: expected a divisor", fold_conv, layer, np.ones((4, 3, 2)), None, False, 3),
        (ValueError, "W: expected a multiple of 2", fold_conv, layer, np.ones((3, 2, 2)), None, True, 2),
        (ValueError, "expected 2 channels on axis 1", fold_conv, layer, np.ones((2, 4, 2)), None, True, 2),
        (ValueError, "expected running statistics", untracked.as_affine),
    ):
        with pytest.raises(error, match=message):
            call(*given)
