"""JAX: the formulas, compiled by `jax.jit`; the backward is that of `jax.vjp`, compiled apart from the forward."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np

from ..shapes import EPS, Data
from .base import Adapter, Library


@jax.jit
def inference(x, gamma, beta, mean, var):
    return (x - mean) * jax.lax.rsqrt(var + EPS) * gamma + beta


def batch_norm(x, gamma, beta):
    axes = (0, *range(2, x.ndim))
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + EPS) * gamma + beta, mean, var


@jax.jit
def training(x, gamma, beta, running_mean, running_var):
    y, mean, var = batch_norm(x, gamma, beta)
    return y, running_mean + 0.1 * (mean - running_mean), running_var + 0.1 * (var - running_var)


class Layer(Adapter):
    tolerance = {"float32": 1e-3, "float64": 1e-11}  # noqa: RUF012

    def __init__(self, data: Data) -> None:
        self.x, self.dy = jnp.asarray(data.x), jnp.asarray(data.dy)
        vectors = [] if data.gamma is None else [data.gamma, data.beta]
        self.parameters = [jnp.asarray(data.channel(v).astype(data.x.dtype)) for v in vectors]
        self.function = jax.jit(self._function(data))
        _, self.pull = jax.vjp(self.function, self.x, *self.parameters)
        self.pull_back = jax.jit(lambda pull, dy: pull(dy))  # the pull carries what the forward saved

    def _function(self, data: Data):
        groups = {"layer": 1, "group": data.groups, "instance": data.sizes[1]}[data.case.kind]
        rows = (data.sizes[0], groups, -1)

        def normalized(x, gamma=1, beta=0):
            flat = x.reshape(rows)
            mean, var = flat.mean(2, keepdims=True), flat.var(2, keepdims=True)
            return ((flat - mean) * jax.lax.rsqrt(var + EPS)).reshape(x.shape) * gamma + beta

        return normalized

    def forward(self):
        return jax.block_until_ready(self.function(self.x, *self.parameters))

    def backward(self):
        return jax.block_until_ready(self.pull_back(self.pull, self.dy))

    def arrays(self, operation: str, result: object) -> tuple[np.ndarray, ...]:
        first, *vectors = (np.asarray(part) for part in (result if isinstance(result, tuple) else (result,)))
        return first, *(v.ravel() for v in vectors if operation == "backward")


class Batch(Layer):
    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self.fixed = [jnp.asarray(data.channel(v).astype(data.x.dtype)) for v in (data.mean, data.var)]
        self.running = list(self.fixed)

    def _function(self, data: Data):
        return lambda x, gamma, beta: batch_norm(x, gamma, beta)[0]

    def forward(self):
        y, *self.running = training(self.x, *self.parameters, *self.running)
        return jax.block_until_ready(y)

    def inference(self):
        return jax.block_until_ready(inference(self.x, *self.parameters, *self.fixed))


@contextmanager
def session(threads: int, dtype: str) -> Iterator[None]:
    """XLA starts as many threads as there are processors, and offers no other number."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", dtype == "float64")
    yield


LIBRARY = Library("JAX", "jax", {"batch": Batch, "layer": Layer, "group": Layer, "instance": Layer}, session)
