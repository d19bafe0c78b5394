"""The functions on arrays as a table: how each is called, its definition, and an example to call it with."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

import bnorm.functional as F
import cases
from drawing import every_pair, together

EVERY_MEMORY = (cases.c_order, cases.fortran, cases.channels_last, cases.inside_out, cases.strided, cases.backwards)


def plain(x, axes, gamma=1.0, beta=0.0, eps=1e-5, *, rms=False, weight=1.0, activation=None, negative_slope=0.01):
    """The definition of a norm, for gamma, beta and weight that broadcast against x."""
    x = x.astype(np.longdouble)
    total = np.broadcast_to(weight, x.shape).sum(axes, keepdims=True)
    mean = 0 if rms else (weight * x).sum(axes, keepdims=True) / total
    var = (weight * (x - mean) ** 2).sum(axes, keepdims=True) / total
    y = (x - mean) / np.sqrt(var + eps) * gamma + beta
    below = {None: 1.0, "relu": 0.0, "leaky_relu": negative_slope}[activation]
    return np.where(y > 0, y, below * y)


def along(values, axis, ndim):
    """Return (C,) in a shape that broadcasts along an axis."""
    return values.reshape([-1 if i == axis % ndim else 1 for i in range(ndim)])


def other_axes(ndim, *axes):
    return tuple(i for i in range(ndim) if i not in {axis % ndim for axis in axes})


def plain_batch_norm(x, gamma, beta, axis=1, weight=1.0, **options):
    gamma, beta = along(gamma, axis, x.ndim), along(beta, axis, x.ndim)
    return plain(x, other_axes(x.ndim, axis), gamma, beta, weight=weight, **options)


def plain_group_norm(x, num_groups, gamma, beta, axis=1, **options):
    channel_first = np.moveaxis(x, axis, 0)
    grouped = channel_first.reshape(num_groups, -1, *channel_first.shape[1:])  # (G, K, N, ...)
    gamma, beta = (p.reshape(num_groups, -1, *[1] * (x.ndim - 1)) for p in (gamma, beta))
    y = plain(grouped, other_axes(grouped.ndim, 0, 2), gamma, beta, **options)
    return np.moveaxis(y.reshape(channel_first.shape), 0, axis)


def plain_layer_norm(x, gamma, beta, **options):
    return plain(x, tuple(range(x.ndim - gamma.ndim, x.ndim)), gamma, beta, **options)


class Kind(NamedTuple):
    """One way to call a function, with its definition and the shape of its parameters."""

    name: str
    shape: tuple[int, ...]
    function: Callable
    definition: Callable
    parameters: tuple[int, ...]
    axis: int = 1

    def __str__(self):
        return self.name

    def forward(self, x, gamma=None, beta=None, **options):
        if self.function.func is F.rms_norm:
            return self.function(x, gamma, **options)
        return self.function(x, gamma=gamma, beta=beta, **options)

    def expected(self, x, gamma=None, beta=None, **options):
        gamma = np.ones(self.parameters) if gamma is None else gamma
        beta = np.zeros(self.parameters) if beta is None else beta
        return self.definition(x, gamma=gamma, beta=beta, **options)

    @property
    def has_beta(self):
        return self.function.func is not F.rms_norm

    def example(self, seed=0):
        """Return x, dy, gamma, beta, such that no step of central differences takes an input of a ReLU across 0."""
        rng = np.random.default_rng([seed, *self.shape])
        x, dy = rng.standard_normal(self.shape) * 2 + 3, rng.standard_normal(self.shape)
        return x, dy, rng.uniform(0.5, 2, self.parameters), rng.standard_normal(self.parameters)


def batch(name, shape, axis=1):
    definition = partial(plain_batch_norm, axis=axis)
    return Kind(name, shape, partial(F.batch_norm, axis=axis), definition, (shape[axis],), axis)


def layer(name, shape, normalized_shape):
    function = partial(F.layer_norm, normalized_shape=normalized_shape)
    return Kind(name, shape, function, plain_layer_norm, np.empty(normalized_shape).shape)


def group(name, shape, num_groups, axis=1):
    function = partial(F.group_norm, num_groups=num_groups, axis=axis)
    definition = partial(plain_group_norm, num_groups=num_groups, axis=axis)
    return Kind(name, shape, function, definition, (shape[axis],), axis)


def instance(name, shape, axis=1):
    definition = partial(plain_group_norm, num_groups=shape[axis], axis=axis)
    return Kind(name, shape, partial(F.instance_norm, axis=axis), definition, (shape[axis],), axis)


def rms(name, shape, normalized_shape):
    function = partial(F.rms_norm, normalized_shape=normalized_shape)
    return Kind(name, shape, function, partial(plain_layer_norm, rms=True), np.empty(normalized_shape).shape)


BATCH = [
    batch("batch-NC", (6, 3)),
    batch("batch-CN", (3, 6), axis=0),
    batch("batch-NCL", (4, 3, 5)),
    batch("batch-NLC", (4, 5, 3), axis=-1),
    batch("batch-NCHW", (2, 3, 4, 2)),
]
ROWS = [
    layer("layer", (4, 7), 7),
    layer("layer-of-two-axes", (3, 2, 4, 3), (4, 3)),
    rms("rms", (4, 7), (7,)),
    rms("rms-of-two-axes", (2, 3, 4), [3, 4]),
    group("group-NC", (3, 6), 2),
    group("group-NCHW", (2, 6, 3, 2), 3),
    group("group-NLC", (2, 5, 4), 2, axis=-1),
    group("group-CNL", (4, 3, 2), 2, axis=0),
    instance("instance-NCL", (3, 4, 5)),
    instance("instance-NHWC", (2, 3, 2, 4), axis=3),
]
KINDS = BATCH + ROWS
WEIGHTED = BATCH + ROWS[4:]

every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
every_memory = together(memory=EVERY_MEMORY)
ACTIVATIONS = (None, "relu", "leaky_relu")
activations = pytest.mark.parametrize("activation", ACTIVATIONS)
GIVEN = ((), ("gamma",), ("beta",), ("gamma", "beta"))


def some_parameters(kinds, **settings):
    """Every kind with every choice of its parameters; memory, activation and other settings are drawn."""
    pairs = [(kind, given) for kind, given in product(kinds, GIVEN) if kind.has_beta or "beta" not in given]
    return every_pair(["kind", "given"], pairs, memory=EVERY_MEMORY, activation=ACTIVATIONS, **settings)


def chosen(given, gamma, beta):
    """Return the parameters to give, by name."""
    return {name: values for name, values in (("gamma", gamma), ("beta", beta)) if name in given}


class Subclass(np.ndarray):
    def __array_finalize__(self, other):
        pass


def subclass(x):
    return x.view(Subclass)
