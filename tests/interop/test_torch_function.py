"""The norms inside of PyTorch's nets: gradients of first and second order, and what the caller may rely on."""

import numpy as np
import pytest

from bnorm import functional as F
from bnorm.kernels.activation import NAMES as ACTIVATIONS

torch = pytest.importorskip("torch", reason="PyTorch is the other side")

from bnorm.interop import torch as here  # noqa: E402  after the skip

NORMS = {
    "batch": lambda x, *p, **k: here.batch_norm(x, *p, **k),
    "batch with weights": lambda x, *p, **k: here.batch_norm(x, *p, weight=torch.tensor([1.0, 0.0, 2.0, 1.0]), **k),
    "batch in inference": lambda x, *p, **k: here.batch_norm(x, *p, mean=[1.0, 0, 0], var=[1.0, 2, 3], **k),
    "group": lambda x, *p, **k: here.group_norm(x, 3, *p, **k),
    "instance": lambda x, *p, **k: here.instance_norm(x, *p, **k),
    "layer": lambda x, *p, **k: here.layer_norm(x.transpose(1, 2), *p, normalized_shape=3, **k),
    "rms": lambda x, *p, **k: here.rms_norm(x.transpose(1, 2), *p[:1], normalized_shape=3, **k),
    "function": lambda x, *p, **k: here.function.apply(x, *p, *[None] * (2 - len(p)), "batch_norm", k),
}


def tensors(*shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_gradcheck_and_gradgradcheck(name, affine, activation):
    given = tensors((4, 3, 5), (3,), (3,))[: 3 if affine else 1]
    if name == "rms":
        given = given[:2]

    def norm(*given):
        return NORMS[name](*given, activation=activation)

    assert torch.autograd.gradcheck(norm, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(norm, given, fast_mode=True)


def test_the_function_alone_is_batch_norm():
    x, gamma, beta = tensors((4, 3), (3,), (3,))
    assert issubclass(here.function, torch.autograd.Function)
    wanted, _ = F.batch_norm(x.detach().numpy(), gamma.detach().numpy(), beta.detach().numpy())
    np.testing.assert_array_equal(here.function.apply(x, gamma, beta).detach().numpy(), wanted)
    wanted, _ = F.batch_norm(x.detach().numpy())
    np.testing.assert_array_equal(here.function.apply(x).detach().numpy(), wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_gradients_have_the_dtype_of_what_they_are_the_gradient_of(dtype):
    x = torch.randn(6, 3, dtype=dtype, requires_grad=True)
    gamma, beta = (torch.ones(3, requires_grad=True) for _ in range(2))
    y = here.batch_norm(x, gamma, beta)
    y.sum().backward()  # a dy of stride 0
    assert (y.dtype, x.grad.dtype, gamma.grad.dtype, beta.grad.dtype) == (dtype, dtype, torch.float32, torch.float32)
    np.testing.assert_array_equal(beta.grad.numpy(), 6)


def test_lists_and_arrays_are_constants():
    x, beta = tensors((5, 3), (3,))

    def norm(x, beta, gamma=(1.0, 2.0, 3.0)):
        return here.batch_norm(x, np.array(gamma), beta, activation="gelu")

    assert torch.autograd.gradgradcheck(norm, (x, beta), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda beta: norm(np.eye(5, 3), beta), (beta,), fast_mode=True)
    y = here.batch_norm(x, [1.0, 2.0, 3.0])
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 0, atol=1e-12)


def test_a_norm_that_there_is_not():
    with pytest.raises(ValueError, match=r"function: norm: expected one of 'batch_norm', .*, got 'moments'"):
        here.function.apply(torch.eye(3), None, None, "moments")


def test_a_gradient_penalty_trains_as_with_pytorchs_own():
    (x,) = tensors((8, 3))
    results = []
    for norm in (here.batch_norm, lambda x, g, b: torch.nn.functional.batch_norm(x, None, None, g, b, True)):
        gamma, beta = (torch.full((3,), v, dtype=torch.float64, requires_grad=True) for v in (1.5, 0.5))
        y = norm(x, gamma, beta)
        (slope,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
        results.append(torch.autograd.grad((slope**2).sum(), [x, gamma, beta]))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["batch", "layer"])
def test_a_third_derivative_is_an_error_however_it_is_asked_for(name):
    (x,) = tensors((4, 3, 5))
    y = NORMS[name](x)
    (slope,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    (curve,) = torch.autograd.grad((slope**3).sum(), x, create_graph=True)
    for ask in (lambda loss: torch.autograd.grad(loss, x, retain_graph=True), lambda loss: loss.backward()):
        with pytest.raises(RuntimeError, match="function: expected derivatives of first and second order, got one of"):
            ask((curve**3).sum())


def test_an_out_that_another_backward_needs_is_noticed():
    (w,), place = tensors((4, 3)), torch.rand(4, 3, dtype=torch.float64)
    loss = (w * place).sum()
    here.batch_norm(place, out=place)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_out_that_is_used_twice_is_noticed():
    """A backward that needs the y of the first call cannot have it."""
    (x,), place = tensors((4, 3)), torch.empty(4, 3, dtype=torch.float64)
    loss = (here.batch_norm(x, out=place) ** 3).sum()
    loss.backward(retain_graph=True)
    assert (here.batch_norm(-x, out=place) == place).all()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_x_changed_in_place_is_noticed():
    (x,) = tensors((6, 3))
    held = x * 1
    y = here.batch_norm(held)
    with torch.no_grad():
        held += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_no_gradient_is_asked_for_where_none_is_needed():
    x = torch.randn(6, 3, dtype=torch.float64)
    gamma = torch.ones(3, dtype=torch.float64, requires_grad=True)
    here.batch_norm(x, gamma).sum().backward()
    assert x.grad is None
    assert not here.batch_norm(x).requires_grad


@pytest.mark.parametrize("name", ["mean", "var", "weight"])
def test_no_gradient_is_lost(name):
    (x,) = tensors((4, 3))
    constants = {"weight": torch.ones(4)} if name == "weight" else {"mean": torch.zeros(3), "var": torch.ones(3)}
    here.batch_norm(x, **constants).sum().backward()
    constants[name].requires_grad_()
    with pytest.raises(TypeError, match=f"torch.batch_norm: {name}: expected a tensor that needs no gradient, .* got"):
        here.batch_norm(x, **constants)
    with torch.no_grad():
        here.batch_norm(x, **constants)


def test_no_detached_residual_is_recommended():
    (x,) = tensors((4, 3))
    with pytest.raises(TypeError, match=r"residual: expected None, .*: call layer_norm\(x \+ residual\)"):
        here.layer_norm(x, normalized_shape=3, residual=x)


def test_a_tensor_whose_sign_is_still_to_be_changed():
    z = torch.randn(6, 3, dtype=torch.complex128)
    x = z.conj().imag
    assert x.is_neg()
    np.testing.assert_array_equal(here.batch_norm(x), -here.batch_norm(z.imag))


def test_what_numpy_does_not_have_is_refused():
    with pytest.raises(TypeError, match="function: x: expected float16, float32 or float64, got bfloat16"):
        here.batch_norm(torch.ones(4, 3, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="batch_norm: x: expected real numbers, got dtype complex128"):
        here.batch_norm(torch.ones(4, 3, dtype=torch.complex128).conj())
    with pytest.raises(TypeError, match="function: x: expected a tensor on the CPU, got one on meta"):
        here.batch_norm(torch.ones(4, 3, device="meta"))
