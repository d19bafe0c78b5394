"""An engine of lazy collections is a line in the registry and a module: here a list of arrays."""

import sys
from types import ModuleType

import numpy as np
import pytest

import bnorm
from bnorm.kernels import engines


class Lazy:
    """A lazy collection: arrays of rows that exist only when they are asked for."""

    def __init__(self, make):
        self.make = make


class Collection:
    def __init__(self, who, X):
        self.blocks, self.rows = X.make, float("nan")
        self.sample = X.make()[0][:2]

    def floats(self, convert, like):
        self.convert = convert

    def weights(self, sample_weight):
        return sample_weight

    def reduced(self, of_block, merge, weight=None, together=False):
        blocks = [self.convert(block) for block in self.blocks()]
        weights = [None] * len(blocks) if weight is None else weight
        return [merge([of_block(block, w) for block, w in zip(blocks, weights, strict=True)])]

    def mapped(self, of_block, statistics):
        return Lazy(lambda: [of_block(self.convert(block), statistics) for block in self.blocks()])


@pytest.fixture
def engine(monkeypatch):
    library, module = ModuleType("lists"), ModuleType("list_engine")
    library.is_lazy = lambda value: isinstance(value, Lazy)
    module.NAME, module.in_memory, module.Collection = "Lists", "{}.make()".format, Collection
    monkeypatch.setitem(sys.modules, "lists", library)
    monkeypatch.setitem(sys.modules, "list_engine", module)
    monkeypatch.setattr(engines, "ENGINES", [*engines.ENGINES, engines.Engine("lists", "is_lazy", "list_engine")])


@pytest.mark.parametrize("mode", [{"momentum": 0.3}, {"momentum": None}, {"halflife": 20.0, "ddof": 1}], ids=str)
def test_a_list_of_arrays(engine, mode):
    x, weight = np.random.default_rng(0).normal(size=(60, 3)), np.random.default_rng(1).uniform(0, 2, 60)
    lazy = Lazy(lambda: np.array_split(x, 7))
    t, want = (bnorm.BatchNormTransformer(**mode) for _ in range(2))
    for w in (None, weight):
        t.partial_fit(lazy, sample_weight=None if w is None else np.array_split(w, 7))
        want.partial_fit(x, sample_weight=w)
        np.testing.assert_allclose(t.mean_, want.mean_, atol=1e-13)
        np.testing.assert_allclose(t.var_, want.var_, rtol=1e-12)
    np.testing.assert_array_equal(np.concatenate(t.transform(lazy).make()), t.transform(x))
    with pytest.raises(TypeError, match=r"got a Lists Lazy, which is lazy: x.make\(\) returns an array"):
        bnorm.BatchNorm1d(3)(lazy)
