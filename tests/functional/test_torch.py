"""The functions on arrays against PyTorch's, forward and backward, where PyTorch is installed."""

import numpy as np
import pytest

import bnorm.functional as F
from compare import assert_close

torch = pytest.importorskip("torch", reason="PyTorch is an optional reference: pip install bnorm[torch]")
functional = torch.nn.functional

# A different order of summation is all that separates the two.
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
every_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE))
IMAGES = (4, 6, 5, 7)


def tensor(a):
    return torch.from_numpy(a.copy())


def compare(dtype, shape, parameter_shape, ours, theirs, *, beta=True, **options):
    """ours(x, gamma, beta) and theirs(x, gamma, beta), with and without parameters, and the gradients of both."""
    rng = np.random.default_rng(0)
    for affine in (False, True):
        x, dy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
        parameters = [rng.uniform(0.5, 2, parameter_shape), rng.standard_normal(parameter_shape)][: 1 + beta]
        parameters = [p.astype(dtype) if affine else None for p in parameters]
        y, saved = ours(x, *parameters, **options)
        gradients = F.backward(dy, saved)

        leaves = [None if a is None else tensor(a).requires_grad_() for a in (x, *parameters)]
        want = theirs(*leaves)
        want.backward(tensor(dy))
        case = {"dtype": dtype, "shape": shape, "affine": affine}
        assert_close(y, want.detach().numpy(), TOLERANCE[dtype], **case)
        for got, leaf, name in zip(gradients, leaves, ("dx", "dgamma", "dbeta"), strict=False):
            if leaf is None:
                assert got is None
            else:
                size = np.abs(dy).sum() if name != "dx" else 1.0
                assert_close(got, leaf.grad.numpy(), TOLERANCE[dtype] * size, gradient=name, **case)


@every_dtype
@pytest.mark.parametrize("shape", [(32, 6), (8, 6, 9), IMAGES, (2, 6, 3, 4, 5)])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_batch_norm(dtype, shape, activation):
    def theirs(x, gamma=None, beta=None):
        y = functional.batch_norm(x, None, None, gamma, beta, training=True, eps=1e-3)
        return functional.relu(y) if activation else y

    compare(dtype, shape, 6, F.batch_norm, theirs, eps=1e-3, activation=activation)


@every_dtype
@pytest.mark.parametrize("shape", [(32, 6), IMAGES])
def test_batch_norm_in_inference(dtype, shape):
    mean, var = np.linspace(-1, 1, 6).astype(dtype), np.linspace(0.5, 2, 6).astype(dtype)

    def theirs(x, gamma=None, beta=None):
        return functional.batch_norm(x, tensor(mean), tensor(var), gamma, beta, training=False)

    compare(dtype, shape, 6, F.batch_norm, theirs, mean=mean, var=var)


@every_dtype
def test_batch_norm_of_channels_last_memory(dtype):
    x = torch.randn(IMAGES, dtype=getattr(torch, dtype)).to(memory_format=torch.channels_last)
    want = functional.batch_norm(x, None, None, training=True).numpy()
    y, _ = F.batch_norm(x.numpy())
    assert y.strides == want.strides == x.numpy().strides
    assert_close(y, want, TOLERANCE[dtype], dtype=dtype)


@every_dtype
@pytest.mark.parametrize("normalized_shape", [(7,), (5, 7), (6, 5, 7)])
def test_layer_norm(dtype, normalized_shape):
    def theirs(x, gamma=None, beta=None):
        return functional.layer_norm(x, normalized_shape, gamma, beta)

    compare(dtype, IMAGES, normalized_shape, F.layer_norm, theirs, normalized_shape=normalized_shape)


@every_dtype
@pytest.mark.parametrize("normalized_shape", [(7,), (5, 7)])
def test_rms_norm(dtype, normalized_shape):
    def theirs(x, gamma=None):
        return functional.rms_norm(x, normalized_shape, gamma, eps=1e-5)

    compare(dtype, IMAGES, normalized_shape, F.rms_norm, theirs, beta=False, normalized_shape=normalized_shape)


@every_dtype
@pytest.mark.parametrize("shape", [(8, 24), (8, 24, 9), (4, 24, 5, 7)])
@pytest.mark.parametrize("num_groups", [1, 2, 3])
def test_group_norm(dtype, shape, num_groups):
    def theirs(x, gamma=None, beta=None):
        return functional.group_norm(x, num_groups, gamma, beta)

    def ours(x, gamma, beta):
        return F.group_norm(x, num_groups, gamma, beta)

    compare(dtype, shape, 24, ours, theirs)


@every_dtype
@pytest.mark.parametrize("shape", [(8, 6, 9), IMAGES])
def test_instance_norm(dtype, shape):
    def theirs(x, gamma=None, beta=None):
        return functional.instance_norm(x, weight=gamma, bias=beta)

    compare(dtype, shape, 6, F.instance_norm, theirs)


def test_a_tensor_is_an_array():
    x = torch.randn(8, 3)
    y, _ = F.batch_norm(x)
    assert type(y) is np.ndarray
    assert_close(y, functional.batch_norm(x, None, None, training=True).numpy(), 2e-6)
    with pytest.raises(TypeError, match=r"^batch_norm: x: expected an array of real numbers, got torch\.Tensor"):
        F.batch_norm(x.requires_grad_())


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 1), (1, 3), (1, 3, 1), (0, 3), (2, 3, 1, 1)], ids=str)
@pytest.mark.parametrize("name", ["group_norm", "instance_norm"])
def test_one_value_per_group(name, shape):
    """Both raise, or both give zeros. An empty batch is no error here, whatever it is there."""
    x = np.random.default_rng(0).standard_normal(shape)
    args = (3,) if name == "group_norm" else ()
    try:
        want = getattr(functional, name)(torch.from_numpy(x), *args)
    except ValueError:
        if x.size:
            with pytest.raises(ValueError, match=f"^{name}: x: expected more than one value"):
                getattr(F, name)(x, *args)
            return
        want = torch.empty(shape)
    y, saved = getattr(F, name)(x, *args)
    np.testing.assert_array_equal(y, want.numpy())
    np.testing.assert_array_equal(F.backward(np.ones(shape), saved)[0], np.zeros(shape))
