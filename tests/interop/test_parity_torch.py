"""PyTorch's own samples of the norms, which ship with it: every module and every operation, with gradients."""

import warnings

import numpy as np
import pytest

from bnorm import functional as F

torch = pytest.importorskip("torch", reason="PyTorch has the samples")
pytest.importorskip("expecttest", reason="PyTorch's samples import it")

from bnorm.interop.torch import from_torch  # noqa: E402  after the skips

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of PyTorch, about itself
    modules = pytest.importorskip("torch.testing._internal.common_modules", reason="PyTorch has the samples")
    methods = pytest.importorskip("torch.testing._internal.common_methods_invocations", reason="and these")

MODULES = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
MODULES += ("LayerNorm", "GroupNorm", "RMSNorm")
OPERATIONS = {
    f"nn.functional.{name}": name for name in ("batch_norm", "instance_norm", "layer_norm", "group_norm", "rms_norm")
}


def of_modules():
    torch.manual_seed(0)
    for info in modules.module_db:
        name = info.module_cls.__name__
        if name not in MODULES:
            continue
        for training in (True, False):
            given = {"device": "cpu", "dtype": torch.float64, "requires_grad": True, "training": training}
            for i, sample in enumerate(info.module_inputs_func(info, **given)):
                yield pytest.param(info.module_cls, sample, training, id=f"{name}-{training}-{i}")


def of_operations():
    torch.manual_seed(0)
    for info in methods.op_db:
        if info.name in OPERATIONS and not info.variant_test_name:
            samples = info.sample_inputs("cpu", torch.float64, requires_grad=True)
            yield from (pytest.param(info, sample, id=f"{info.name}-{i}") for i, sample in enumerate(samples))


@pytest.mark.filterwarnings("ignore:.*momentum=None weighs every value alike")
@pytest.mark.parametrize(("kind", "sample", "training"), list(of_modules()))
def test_modules(kind, sample, training):
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


@pytest.mark.parametrize(("info", "sample"), list(of_operations()))
def test_operations(info, sample):
    x = sample.input.detach().clone().requires_grad_()
    options = dict(sample.kwargs)
    refused = "eps: expected a finite number >= 0" if (options.get("eps") or 0) < 0 else None
    if info.name.endswith("batch_norm") and x.ndim < 2:
        refused = "axis: expected an axis of x"  # of channels
    if refused:
        with pytest.raises(ValueError, match=refused):
            ours(OPERATIONS[info.name], x.detach().numpy(), sample.args, options)
        return
    wanted = info.op(x, *sample.args, **options)
    y, saved = ours(OPERATIONS[info.name], x.detach().numpy(), sample.args, options)
    np.testing.assert_allclose(y, wanted.detach().numpy(), rtol=1e-11, atol=1e-11)
    dy = torch.randn_like(wanted)
    wanted.backward(dy)
    np.testing.assert_allclose(F.backward(dy.numpy(), saved)[0], x.grad.numpy(), rtol=1e-10, atol=1e-10)
