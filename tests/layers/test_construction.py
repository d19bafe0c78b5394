"""How a layer is made, what it is then, and how it prints."""

import inspect

import numpy as np
import pytest

import bnorm
from bnorm import Parameter
from compare import assert_same

BATCH = [bnorm.BatchNorm1d, bnorm.BatchNorm2d, bnorm.BatchNorm3d]
INSTANCE = [bnorm.InstanceNorm1d, bnorm.InstanceNorm2d, bnorm.InstanceNorm3d]


def defaults(cls):
    parameters = list(inspect.signature(cls).parameters.values())
    return {p.name: p.default for p in parameters if p.default is not p.empty}, [
        p.name for p in parameters if p.kind is not p.KEYWORD_ONLY
    ]


@pytest.mark.parametrize("cls", BATCH)
def test_the_signature_of_batch_norm(cls):
    options, positional = defaults(cls)
    assert positional == ["num_features", "eps", "momentum", "affine", "track_running_stats"]
    expected = {
        "eps": 1e-5,
        "momentum": 0.1,
        "affine": True,
        "track_running_stats": True,
        "bias": True,
        "ddof": 0,
        "axis": 1,
        "activation": None,
        "negative_slope": 0.01,
        "nonfinite": "skip",
        "on_single": "raise",
        "dtype": "float64",
        "device": "cpu",
        "comm": None,
    }
    assert {name: options[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("cls", "names", "expected"),
    [
        (bnorm.LayerNorm, ["normalized_shape", "eps", "affine", "bias"], {"affine": True, "bias": True}),
        (bnorm.RMSNorm, ["normalized_shape", "eps", "affine"], {"affine": True}),
        (bnorm.GroupNorm, ["num_groups", "num_channels", "eps", "affine"], {"affine": True, "bias": True, "axis": 1}),
        *(
            (
                cls,
                ["num_features", "eps", "momentum", "affine", "track_running_stats"],
                {"momentum": 0.1, "affine": False, "track_running_stats": False, "ddof": 0, "axis": 1},
            )
            for cls in INSTANCE
        ),
    ],
)
def test_the_signatures_of_row_layers(cls, names, expected):
    options, positional = defaults(cls)
    assert positional == names
    expected = {"eps": 1e-5, "activation": None, "negative_slope": 0.01, "dtype": "float64", "device": "cpu"} | expected
    assert {name: options[name] for name in expected} == expected


@pytest.mark.parametrize("cls", BATCH)
def test_a_new_layer(cls):
    bn = cls(4)
    assert bn.training is True
    assert isinstance(bn.gamma, Parameter) and isinstance(bn.beta, Parameter)
    for array, value in ((bn.gamma, 1), (bn.beta, 0), (bn.running_mean, 0), (bn.running_var, 1), (bn.gamma.grad, 0)):
        assert_same(array, np.full(4, value, "float64"))
        assert array.dtype == np.float64
    assert (bn.num_batches_tracked, bn.num_batches_skipped) == (0, 0)
    assert type(bn.num_batches_tracked) is type(bn.num_batches_skipped) is int
    assert [p is q for p, q in zip(bn.parameters(), (bn.gamma, bn.beta), strict=True)] == [True, True]
    names, parameters = zip(*bn.named_parameters(), strict=True)
    assert len(set(names)) == 2 and parameters[0] is bn.gamma and parameters[1] is bn.beta


# Printing ------------------------------------------------------------------------------------------------------------

OPTIONS = {
    "eps": 1e-3,
    "momentum": None,
    "affine": False,
    "track_running_stats": False,
    "bias": False,
    "ddof": 1,
    "axis": -1,
    "activation": "relu",
    "negative_slope": 0.2,
    "nonfinite": "raise",
    "on_single": "running",
    "dtype": "float32",
}


@pytest.mark.parametrize("cls", BATCH)
def test_repr_shows_what_differs_from_the_defaults(cls):
    assert repr(cls(64)) == f"{cls.__name__}(64)"
    assert repr(cls(64, eps=1e-5, momentum=0.1, dtype=np.float64)) == f"{cls.__name__}(64)"
    for name, value in OPTIONS.items():
        text = repr(cls(64, **{name: value}))
        assert text == f"{cls.__name__}(64, {name}={value!r})"
        assert repr(eval(text, vars(bnorm))) == text


def test_repr_of_row_layers():
    assert repr(bnorm.LayerNorm((4, 6))) == "LayerNorm((4, 6))"
    assert repr(bnorm.RMSNorm((4, 6), eps=1e-3)) == "RMSNorm((4, 6), eps=0.001)"
    assert repr(bnorm.GroupNorm(2, 8)) == "GroupNorm(2, 8)"
    assert repr(bnorm.GroupNorm(2, 8, axis=-1)) == "GroupNorm(2, 8, axis=-1)"
    assert repr(bnorm.InstanceNorm2d(8)) == "InstanceNorm2d(8)"
    assert repr(bnorm.InstanceNorm2d(8, affine=True)) == "InstanceNorm2d(8, affine=True)"
    assert repr(bnorm.RMSNorm(4, None)) == "RMSNorm(4, eps=None)"
    assert repr(bnorm.LayerNorm(4, elementwise_affine=False)) == "LayerNorm(4, affine=False)"
    assert repr(bnorm.LayerNorm(4, bias=False)) == "LayerNorm(4, bias=False)"


def test_repr_shows_what_is_frozen():
    """Mode and parameters are switches of their own, and one can see how each of them stands."""
    seen = {repr(bnorm.BatchNorm1d(4)), repr(bnorm.BatchNorm1d(4).eval())}
    for names in (["gamma"], ["beta"], ["gamma", "beta"]):
        bn = bnorm.BatchNorm1d(4)
        for name in names:
            getattr(bn, name).requires_grad = False
        seen.add(repr(bn))
    assert len(seen) == 5
    assert all(text.startswith("BatchNorm1d(4") and "\n" not in text for text in seen)


def test_a_momentum_that_no_float_holds():
    with pytest.raises(ValueError, match=r"^BatchNorm1d\(4\): momentum: expected"):
        bnorm.BatchNorm1d(4, momentum=10**400)


def test_repr_of_a_layer_with_options_of_its_own():
    class Mine(bnorm.BatchNorm1d):
        def __init__(self, channels, extra=3):
            super().__init__(channels, axis=-1)

    assert repr(Mine(4)) == "Mine(4)"


def test_running_statistics_that_are_not_there_normalize_no_batch():
    message = r"^BatchNorm1d\(4\): on_single: expected 'raise' without running statistics, got 'running'"
    with pytest.raises(ValueError, match=message):
        bnorm.BatchNorm1d(4, track_running_stats=False, on_single="running")


@pytest.mark.parametrize("default", [1.0, np.ones(4), np.ones(3), (np.ones(4), 0)], ids=repr)
def test_repr_of_a_layer_with_arrays_of_its_own(default):
    """They are not shown, as arrays do not say whether they differ."""

    class Mine(bnorm.LayerNorm):
        def __init__(self, n, gamma=default, own=default, scale=1.0):
            super().__init__(n, eps=1e-3)
            self.own, self.scale = np.zeros(4), np.float64(scale)

    assert repr(Mine(4)) == "Mine(4)"
    assert repr(Mine(4, scale=2.0)).startswith("Mine(4, scale=")
