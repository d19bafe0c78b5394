"""bnorm, through the layer objects and the transformer. Parameters are float64, as by default."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np

import bnorm

from ..shapes import EPS, Data
from .base import Adapter, Library, Scaler

TOLERANCE = {"float32": 2e-6, "float64": 1e-14, "float16": 2**-11 + 2e-6, "bfloat16": 2**-8 + 2e-6}


class Layer(Adapter):
    tolerance = TOLERANCE
    with_out = ("forward", "inference", "backward")

    def __init__(self, data: Data) -> None:
        self.x, self.dy = data.x, data.dy
        self.layer = self._layer(data)
        if data.gamma is not None:
            self.layer.gamma = data.gamma
        if data.beta is not None:
            self.layer.beta = data.beta
        self.layer(self.x)
        self.saved = self.layer._saved

    def _layer(self, data: Data) -> bnorm.layers.Layer:
        raise NotImplementedError

    def forward(self, out=None):
        return self.layer(self.x, out=out)

    def backward(self, out=None):
        self.layer._saved = self.saved  # a layer forgets its forward with the backward of it: here comes another
        return self.layer.backward(self.dy, out=out)

    def reset(self) -> None:
        self.layer.zero_grad()

    def arrays(self, operation: str, result: object) -> tuple[np.ndarray, ...]:
        gradients = (p.grad for p in self.layer.parameters()) if operation == "backward" else ()
        return result, *gradients


class Batch(Layer):
    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self.fixed = self._layer(data).eval()
        self.fixed.gamma, self.fixed.beta = data.gamma, data.beta
        self.fixed.running_mean, self.fixed.running_var = data.mean, data.var

    def _layer(self, data: Data) -> bnorm.layers.Layer:
        return (bnorm.BatchNorm1d if data.x.ndim < 4 else bnorm.BatchNorm2d)(data.sizes[1], eps=EPS)

    def inference(self, out=None):
        return self.fixed(self.x, out=out)

    def around(self, operation: str) -> AbstractContextManager[None]:
        return bnorm.no_backward() if operation == "inference" else nullcontext()


class LayerNorm(Layer):
    def _layer(self, data: Data) -> bnorm.layers.Layer:
        return bnorm.LayerNorm(data.sizes[1], eps=EPS)


class RMSNorm(Layer):
    def _layer(self, data: Data) -> bnorm.layers.Layer:
        return bnorm.RMSNorm(data.sizes[1], eps=EPS)


class GroupNorm(Layer):
    def _layer(self, data: Data) -> bnorm.layers.Layer:
        return bnorm.GroupNorm(data.groups, data.sizes[1], eps=EPS)


class InstanceNorm(Layer):
    def _layer(self, data: Data) -> bnorm.layers.Layer:
        return bnorm.InstanceNorm2d(data.sizes[1], eps=EPS)


class Transformer(Scaler):
    tolerance = TOLERANCE

    def new(self):
        return bnorm.BatchNormTransformer(momentum=None, eps=0.0)


@contextmanager
def session(threads: int, dtype: str) -> Iterator[None]:
    before = bnorm.get_num_threads()
    bnorm.set_num_threads(threads)
    try:
        yield
    finally:
        bnorm.set_num_threads(before)


LIBRARY = Library(
    "bnorm",
    "bnorm",
    {
        "batch": Batch,
        "layer": LayerNorm,
        "rms": RMSNorm,
        "group": GroupNorm,
        "instance": InstanceNorm,
        "scaler": Transformer,
    },
    session,
    target=True,
)
