"""Layers that cannot be made: each error names the layer, the argument and what was expected."""

import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import bnorm

X = np.zeros((2, 4, 3, 2))
EITHER = (ValueError, TypeError)
NAN = float("nan")
OPTIONS = [
    ("eps", [-1.0, NAN, np.inf], ["1e-5", 1j]),
    ("affine", [], ["yes", None, 2]),
    ("activation", ["tanh", "", "ReLU"], [1, np.maximum]),
    ("negative_slope", [-0.1, 1, 2.0, NAN, np.inf], ["0.1", None, 1j]),
    ("dtype", [], ["int64", ">f8", "complex64", "no type", str, object, SimpleNamespace(dtype="no type")]),
    ("device", ["tpu", ""], [0]),
]
OF_BATCH = [
    *OPTIONS,
    ("eps", [], [None]),
    ("momentum", [-1e-9, -0.1, 1.0001, NAN, np.inf], ["0.1", 1j, (0.1,)]),
    ("bias", [], ["yes", None]),
    ("track_running_stats", [], ["yes", None]),
    ("ddof", [2, -1], ["1", None, 0.5, True]),
    ("nonfinite", ["ignore", ""], [None, True]),
    ("on_single", ["skip", ""], [None, False]),
    ("axis", [], [1.0, "1", None, (1,)]),
]
LAYERS = [
    *((partial(getattr(bnorm, f"BatchNorm{n}d"), 4), OF_BATCH) for n in (1, 2, 3)),
    *(
        (partial(getattr(bnorm, f"InstanceNorm{n}d"), 4), [row for row in OF_BATCH if row[0] != "on_single"])
        for n in (1, 2, 3)
    ),
    (partial(bnorm.GroupNorm, 2, 4), [*OPTIONS, ("bias", [], ["yes", None]), OF_BATCH[-1]]),
    (partial(bnorm.LayerNorm, (4, 6)), [*OPTIONS, ("bias", [], ["yes"]), ("elementwise_affine", [], ["yes", 0])]),
    (partial(bnorm.RMSNorm, (4, 6)), [*OPTIONS, ("elementwise_affine", [], ["yes", 0])]),
]
BAD_OPTIONS = [(make, *row) for make, options in LAYERS for row in options]


def option_id(row):
    return f"{row[0].func.__name__}-{row[1]}"


@pytest.mark.parametrize(("make", "name", "values", "others"), BAD_OPTIONS, ids=map(option_id, BAD_OPTIONS))
def test_options_that_are_not_known(make, name, values, others):
    for value in [*values, *others]:
        exception = ValueError if value in values else EITHER
        with pytest.raises(exception, match=rf"^{make.func.__name__}.*{name}: expected .*, got "):
            make(**{name: value})
            pytest.fail(f"{value!r} is taken")


BAD_SIZES = [
    *((getattr(bnorm, name), (n,)) for name in ("BatchNorm1d", "BatchNorm3d", "InstanceNorm2d") for n in (-1, 4.0)),
    (bnorm.BatchNorm2d, ("4",)),
    (bnorm.BatchNorm2d, (None,)),
    (bnorm.BatchNorm2d, ((4,),)),
    (bnorm.GroupNorm, (2, -4)),
    (bnorm.GroupNorm, (2, 4.0)),
    (bnorm.GroupNorm, (2.0, 4)),
    (bnorm.LayerNorm, ((),)),
    (bnorm.LayerNorm, (-4,)),
    (bnorm.LayerNorm, ((4, -6),)),
    (bnorm.LayerNorm, (4.0,)),
    (bnorm.LayerNorm, ("4",)),
    (bnorm.LayerNorm, (None,)),
    (bnorm.RMSNorm, ((4, "6"),)),
]


@pytest.mark.parametrize(("cls", "sizes"), BAD_SIZES)
def test_sizes_that_are_none(cls, sizes):
    with pytest.raises(EITHER, match=rf"^{cls.__name__}.*: expected .*, got "):
        cls(*sizes)


@pytest.mark.parametrize("make", [row[0] for row in LAYERS], ids=lambda make: make.func.__name__)
def test_options_are_keywords_of_known_names(make):
    name = re.escape(f"{make.func.__name__}.__init__()")
    with pytest.raises(TypeError, match=f"^{name} takes from"):
        make(1e-5, 0.1, True, True, True, True)
    with pytest.raises(TypeError, match=f"^{name} got an unexpected keyword argument 'momemtum'"):
        make(momemtum=0.1)


@pytest.mark.parametrize("make", [row[0] for row in LAYERS], ids=lambda make: make.func.__name__)
def test_arguments_of_a_call_are_named_with_the_class(make):
    layer = make()
    for call in (layer, layer.vjp):
        with pytest.raises(TypeError, match=re.escape(f"{type(layer).__name__}.__call__() got an unexpected keyword")):
            call(X, wieght=1)


@pytest.mark.parametrize("axis", [4, -5, 100])
def test_an_axis_that_no_input_has(axis):
    """Refused when that is known: at construction, or else with the first x."""
    with pytest.raises(ValueError, match=rf"^BatchNorm2d.*axis: expected .*{axis}"):
        bnorm.BatchNorm2d(4, axis=axis)(X)


def test_an_axis_that_this_input_lacks():
    bn = bnorm.BatchNorm1d(4, axis=2)
    bn(np.zeros((2, 3, 4)))
    with pytest.raises(ValueError, match=r"^BatchNorm1d\(4.*: expected .*got "):
        bn(np.zeros((4, 4)))
