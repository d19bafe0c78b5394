"""The record that tells kernels which activation follows the normalization."""

from functools import lru_cache
from typing import Literal, NamedTuple

Name = Literal["relu", "leaky_relu", "silu", "gelu"] | None  # in annotations


class Activation(NamedTuple):
    """An activation. kind: which one. slope: of a ReLU below 0; 0 for the plain one, between 0 and 1 for a leaky one.
    For GELU it is 1, the share of the cubic term that SiLU does not have.

    `bn_act` in `formulas.h` has the formulas.
    """

    kind: int
    slope: float


NAMES = (None, "relu", "leaky_relu", "silu", "gelu")  # by kind, in the order of formulas.h
KINDS = range(len(NAMES))
SMOOTH = KINDS[3:]
IDENTITY, RELU, SILU, GELU = Activation(0, 1.0), Activation(1, 0.0), Activation(3, 0.0), Activation(4, 1.0)
NAMED = {None: IDENTITY, "relu": RELU, "silu": SILU, "gelu": GELU}


@lru_cache(maxsize=64)  # making a record takes as long as checking the arguments of a small forward
def leaky(slope: float) -> Activation:
    """Return the leaky ReLU with this slope. For slope 0 it is the plain ReLU, which turns minus infinity into 0."""
    return Activation(2, slope) if slope else RELU


def named(name: str | None, slope: float) -> Activation:
    """Return the activation with this name. slope: of the leaky ReLU. An unknown name is a KeyError."""
    return leaky(slope) if name == "leaky_relu" else NAMED[name]
