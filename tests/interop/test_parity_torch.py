"""PyTorch's own samples of the norms, which ship with it: every module and every operation, with gradients."""

import warnings
from importlib import import_module

import numpy as np
import pytest

from bnorm import functional as F

torch = pytest.importorskip("torch", reason="PyTorch has the samples")
pytest.importorskip("expecttest", reason="PyTorch's samples import it")

from bnorm.interop.torch import from_torch  # noqa: E402  after the skips

MODULES = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
MODULES += ("LayerNorm", "GroupNorm", "RMSNorm")
OPERATIONS = ("batch_norm", "instance_norm", "layer_norm", "group_norm", "rms_norm")


def samples(module):
    """PyTorch's module with samples; importing it takes longer than its tests, so no process does that to collect."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, about itself
        try:
            return import_module(f"torch.testing._internal.{module}")
        except ImportError as error:
            pytest.skip(f"PyTorch has the samples: {error}")


@pytest.mark.filterwarnings("ignore:.*momentum=None weighs every value alike")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name, training):
    infos = [info for info in samples("common_modules").module_db if info.module_cls.__name__ == name]
    given = {"device": "cpu", "dtype": torch.float64, "requires_grad": True, "training": training}
    found = [(info.module_cls, sample) for info in infos for sample in info.module_inputs_func(info, **given)]
    assert found
    for i, (kind, sample) in enumerate(found):
        print(f"sample {i}: {sample.constructor_input.args} {sample.constructor_input.kwargs}")
        check_module(kind, sample, training)


def check_module(kind, sample, training):
    arguments = sample.constructor_input
    module = kind(*arguments.args, **arguments.kwargs).double().train(training)
    (x,) = sample.forward_input.args
    x = x.detach().clone().requires_grad_()
    if "Instance" in kind.__name__ and x.ndim < module._get_no_batch_dim() + 1:
        x = x.detach()[None].requires_grad_()  # without a batch: a batch of one
    layer = from_torch(module)
    for _ in range(1 if getattr(module, "momentum", 0) is None else 2):  # which averages something else
        y = module(x)
        dy = torch.randn_like(y)
        x.grad = None
        y.backward(dy)
        np.testing.assert_allclose(layer(x.detach().numpy()), y.detach().numpy(), rtol=1e-12, atol=1e-12)
        if x.numel():
            np.testing.assert_allclose(layer.backward(dy.numpy()), x.grad.numpy(), rtol=1e-11, atol=1e-11)
    for p, theirs in zip(layer.parameters(), module.parameters(), strict=True):
        np.testing.assert_allclose(p.grad, theirs.grad.numpy(), rtol=1e-10, atol=1e-11)
    for name in ("running_mean", "running_var"):
        if (wanted := getattr(module, name, None)) is not None:
            np.testing.assert_allclose(getattr(layer, name), wanted.numpy(), rtol=1e-12, atol=1e-12)


def ours(name, x, args, options):
    """The function here that does what the operation does, and its keywords; y as an array."""
    options = {
        key: value.detach().numpy() if isinstance(value, torch.Tensor) else value for key, value in options.items()
    }
    args = [value.detach().numpy() if isinstance(value, torch.Tensor) else value for value in args]
    parameters = {"gamma": options.pop("weight", None), "beta": options.pop("bias", None)}
    eps = {"eps": options["eps"]} if options.get("eps") is not None else {}
    if name == "batch_norm":
        mean, var, *rest = args
        parameters |= dict(zip(("gamma", "beta"), rest, strict=False))
        known = {} if options.get("training", False) else {"mean": mean, "var": var}
        return F.batch_norm(x, **parameters, **known, **eps)
    if name == "instance_norm":
        known = options.get("use_input_stats", True)
        if not known:
            return F.batch_norm(x, **parameters, mean=options["running_mean"], var=options["running_var"], **eps)
        return F.instance_norm(x, **parameters, **eps)
    if name == "group_norm":
        return F.group_norm(x, args[0], **parameters, **eps)
    shape, *rest = args
    given = dict(zip(("gamma", "beta"), rest, strict=False))
    if name == "rms_norm":
        return F.rms_norm(x, given.get("gamma"), normalized_shape=shape, **(eps or {"eps": 2.0**-52}))
    return F.layer_norm(x, **given, normalized_shape=shape, **eps)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name):
    infos = samples("common_methods_invocations").op_db
    infos = [info for info in infos if info.name == f"nn.functional.{name}" and not info.variant_test_name]
    found = [(info, each) for info in infos for each in info.sample_inputs_func(info, "cpu", torch.float64, True)]
    assert found
    for i, (info, sample) in enumerate(found):
        print(f"sample {i}: {sample.args} {sample.kwargs}")
        check_operation(name, info.op, sample)


def check_operation(name, operation, sample):
    x = sample.input.detach().clone().requires_grad_()
    options = dict(sample.kwargs)
    refused = "eps: expected a finite number >= 0" if (options.get("eps") or 0) < 0 else None
    if name == "batch_norm" and x.ndim < 2:
        refused = "axis: expected an axis of x"  # of channels
    if refused:
        with pytest.raises(ValueError, match=refused):
            ours(name, x.detach().numpy(), sample.args, options)
        return
    wanted = operation(x, *sample.args, **options)
    y, saved = ours(name, x.detach().numpy(), sample.args, options)
    np.testing.assert_allclose(y, wanted.detach().numpy(), rtol=1e-11, atol=1e-11)
    dy = torch.randn_like(wanted)
    wanted.backward(dy)
    np.testing.assert_allclose(F.backward(dy.numpy(), saved)[0], x.grad.numpy(), rtol=1e-10, atol=1e-10)
