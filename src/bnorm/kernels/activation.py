"""The record that tells kernels what comes after normalizing."""

from functools import lru_cache
from typing import Literal, NamedTuple

Name = Literal["relu", "leaky_relu", "silu", "gelu"] | None  # in annotations


class Activation(NamedTuple):
    """An activation: which one, and its slope below 0 if it is a ReLU: 0 of the plain one, between 0 and 1 of a leaky.

    `bn_act` in `formulas.h` has the formulas.
    """

    kind: int
    slope: float


NAMES = (None, "relu", "leaky_relu", "silu", "gelu")  # by kind, in the order of formulas.h
KINDS = range(len(NAMES))
SMOOTH = KINDS[3:]
IDENTITY, RELU, SILU, GELU = Activation(0, 1.0), Activation(1, 0.0), Activation(3, 0.0), Activation(4, 0.0)
NAMED = {None: IDENTITY, "relu": RELU, "silu": SILU, "gelu": GELU}


@lru_cache(maxsize=64)  # a record takes as long to make as a small forward checks its arguments
def leaky(slope: float) -> Activation:
    """The leaky ReLU with a slope; without any, the plain one, which makes 0 of an infinity."""
    return Activation(2, slope) if slope else RELU


def named(name: str | None, slope: float) -> Activation:
    """The activation of that name; slope: of the leaky ReLU. KeyError if there is none."""
    return leaky(slope) if name == "leaky_relu" else NAMED[name]
