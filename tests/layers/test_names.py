"""The names of a layer: PyTorch's beside its own, and no others, so that a typo is an error."""

import inspect
import pickle

import numpy as np
import pytest

import bnorm
from compare import assert_same
from drawing import together

C = 4
LAYERS = {
    "BatchNorm1d": (C,),
    "BatchNorm2d": (C,),
    "BatchNorm3d": (C,),
    "InstanceNorm1d": (C,),
    "InstanceNorm2d": (C,),
    "InstanceNorm3d": (C,),
    "GroupNorm": (2, C),
    "LayerNorm": (C,),
    "RMSNorm": (C,),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def make(name, **options):
    return getattr(bnorm, name)(*LAYERS[name], affine=True, **options)


# Methods --------------------------------------------------------------------------------------------------------------


@every_layer
@pytest.mark.parametrize("given", ["forward", "__call__"])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_subclass_gives_its_call_two_names(name, given, mixed):
    """PyTorch's modules define forward, and are called."""
    base = getattr(bnorm, name)

    def doubled(self, x):
        return 2 * getattr(super(own, self), given)(x)

    own = type("Doubled", () if mixed else (base,), {given: doubled})
    layer = (type("Mine", (own, base), {}) if mixed else own)(*LAYERS[name], affine=True)
    x = np.random.default_rng(0).standard_normal((C, C, *[C] * (int(name[-2]) if name[-1] == "d" else 0)))
    want = 2 * make(name)(x)
    assert_same(layer(x), want)
    assert_same(layer.forward(x), want)
    assert_same(layer.vjp(x)[0], want)


# Attributes ----------------------------------------------------------------------------------------------------------


@together(typo=["traning", "requires_grad", "gama", "Weight", "running_men", "momemtum", "_saved_"])
@every_layer
def test_an_attribute_that_is_none(name, typo):
    layer = make(name)
    with pytest.raises(AttributeError, match=f"'{name}' object has no attribute '{typo}'"):
        setattr(layer, typo, False)
    with pytest.raises(AttributeError):
        getattr(layer, typo)


@every_layer
def test_a_subclass_has_attributes_of_its_own(name):
    base = getattr(bnorm, name)

    class Mine(base):
        def __init__(self):
            super().__init__(*LAYERS[name], affine=True)
            self.note = [1]

    globals()["Mine"], Mine.__qualname__ = Mine, "Mine"  # where pickle finds it
    layer = Mine()
    layer.gamma = np.arange(1.0, C + 1)
    other = pickle.loads(pickle.dumps(layer))
    assert type(other) is Mine and other.note == [1] and other.note is not layer.note
    assert_same(other.gamma, layer.gamma)


@every_layer
def test_weight_and_bias_are_gamma_and_beta(name):
    layer = make(name)
    assert layer.weight is layer.gamma
    layer.weight = np.arange(C) + 2.0
    assert_same(layer.gamma, np.arange(C) + 2.0)
    layer.weight *= 2
    assert_same(layer.gamma, 2 * np.arange(C) + 4.0)
    layer.weight.requires_grad = False
    assert layer.gamma.requires_grad is False
    assert layer.bias is layer.beta
    if name != "RMSNorm":
        layer.bias = np.arange(C) - 2.0
        assert_same(layer.beta, np.arange(C) - 2.0)
    for parameter in ("weight", "bias"):
        with pytest.raises((ValueError, TypeError), match=rf"^{name}\(.*: expected "):
            setattr(layer, parameter, np.ones(C + 1))


def test_without_affine_there_is_no_weight():
    bn = bnorm.BatchNorm1d(C, affine=False)
    assert bn.weight is None and bn.bias is None
    with pytest.raises(ValueError, match=r"^BatchNorm1d\(4\): gamma: expected no value"):
        bn.weight = np.ones(C)


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "RMSNorm"])
def test_without_bias(name):
    layer, plain = make(name, bias=False), make(name)
    x, dy = np.random.default_rng(0).standard_normal((2, 6, *[C] * (int(name[-2]) if name[-1] == "d" else 1)))
    if name in ("BatchNorm2d", "BatchNorm3d", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"):
        x, dy = np.random.default_rng(0).standard_normal((2, 6, C, *[3] * int(name[-2])))
    assert layer.bias is None and [p is layer.gamma for p in layer.parameters()] == [True]
    assert "bias" not in layer.state_dict() and "weight" in layer.state_dict()
    assert_same(layer(x), plain(x))
    assert_same(layer.backward(dy), plain.backward(dy))
    assert_same(layer.gamma.grad, plain.gamma.grad)
    assert repr(layer) == repr(plain)[:-1] + ", bias=False)"
    assert eval(repr(layer), vars(bnorm)).bias is None


def test_pytorchs_name_of_affine():
    for cls in (bnorm.LayerNorm, bnorm.RMSNorm):
        assert cls(C, elementwise_affine=False).weight is None
        assert cls(C, elementwise_affine=True).elementwise_affine is True
        assert cls(C, elementwise_affine=False).affine is False


# Arguments -----------------------------------------------------------------------------------------------------------


def test_arguments_by_position():
    bn = bnorm.BatchNorm2d(8, 1e-3, 0.2)
    assert (bn.eps, bn.momentum) == (1e-3, 0.2)
    bn = bnorm.BatchNorm2d(8, 1e-3, None, False, False)
    assert (bn.momentum, bn.affine, bn.track_running_stats) == (None, False, False)
    ln = bnorm.LayerNorm(16, 1e-6, True, False)
    assert (ln.eps, ln.affine, ln.bias) == (1e-6, True, None)
    assert bnorm.GroupNorm(4, 8, 1e-6).eps == 1e-6
    assert bnorm.RMSNorm(16, None).eps is None
    norm = bnorm.InstanceNorm2d(8, 1e-3, 0.2, True, True)
    assert (norm.eps, norm.momentum, norm.affine, norm.track_running_stats) == (1e-3, 0.2, True, True)


def test_momentum_zero_freezes():
    bn = bnorm.BatchNorm1d(C, momentum=0.0)
    bn.running_mean, bn.running_var = np.arange(C), np.arange(C) + 0.3
    before = bn.running_mean.copy(), bn.running_var.copy()
    for n in (3, 7):
        bn(np.random.default_rng(n).standard_normal((n, C)) * 1e3)
    assert_same(bn.running_mean, before[0])
    assert_same(bn.running_var, before[1])
    assert bn.num_batches_tracked == 2


@pytest.mark.parametrize(("dtype", "eps"), [("f8", 2.0**-52), ("f4", 2.0**-23), ("f2", 2.0**-23)])
def test_the_eps_of_a_type(dtype, eps):
    x = (np.random.default_rng(0).standard_normal((5, C)) * 1e-4).astype(dtype)
    given, own = bnorm.RMSNorm(C, eps), bnorm.RMSNorm(C, None)
    assert_same(own(x), given(x))
    assert_same(own.backward(x), given.backward(x))
    own.eps = 0.5
    assert own.eps == 0.5
    with pytest.raises((TypeError, ValueError), match=r"^LayerNorm\(4\): eps: expected"):
        bnorm.LayerNorm(C, None)


# Errors of the package -----------------------------------------------------------------------------------------------


def test_errors_come_from_the_package():
    bn = bnorm.BatchNorm1d(C, nonfinite="raise")
    with pytest.raises(bnorm.NonFiniteError):
        bn(np.full((3, C), np.nan))
    with pytest.raises(bnorm.SingleValueError, match="on_single='running'"):
        bn(np.ones((1, C)))
    bn.on_single = "running"  # as it says
    assert bn(np.ones((1, C))).shape == (1, C)
    with pytest.raises(bnorm.SingleValueError, match="LayerNorm") as caught:
        bnorm.BatchNorm1d(C, track_running_stats=False)(np.ones((1, C)))
    assert "on_single" not in str(caught.value)


# Help ----------------------------------------------------------------------------------------------------------------


@every_layer
def test_every_parameter_is_documented(name):
    cls = getattr(bnorm, name)
    text = inspect.getdoc(cls)
    _, parameters, examples = (part for part in text.replace("Examples\n-", "Parameters\n-").split("Parameters\n-"))
    for parameter in inspect.signature(cls).parameters.values():
        assert f"\n{parameter.name} : " in parameters, parameter.name
        if parameter.default is not parameter.empty and parameter.default is not None:
            assert f"default {parameter.default!r}\n" in parameters, parameter.name
    assert f"bnorm.{name}(" in examples


@every_layer
def test_signatures_are_readable(name):
    cls = getattr(bnorm, name)
    for f in (cls, cls.__call__, cls.backward, cls.vjp):
        text = str(inspect.signature(f))
        assert len(text) < 500 and "Union" not in text and "_typing" not in text, text
