"""Names and docstrings of layers: methods have the name of their class, and each parameter is described once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, TypeVar

from bnorm.documents import PARAMETERS as OF_FUNCTIONS
from bnorm.documents import completed, described

Class = TypeVar("Class", bound=type)

PARAMETERS = {  # of constructors: the type, and the description
    "num_features": ("int", "The number of channels, C."),
    "normalized_shape": (
        "int or tuple of int",
        "The sizes of the last axes of x, over which each sample is normalized. The parameters have this shape.",
    ),
    "num_groups": ("int", "The number of groups, a divisor of num_channels. A group is a run of channels."),
    "num_channels": ("int", "The number of channels, C."),
    "eps": OF_FUNCTIONS["eps"],
    "momentum": (
        "float or None",
        "The weight of the new batch in running_mean and running_var. With 0 they never change.\n"
        "With None every value seen weighs the same, and the variance includes the spread between batches.\n"
        "(PyTorch's None averages the variances of the batches, and loses that spread.)",
    ),
    "affine": ("bool", "Whether there are parameters: gamma (also called weight) and beta (also called bias)."),
    "track_running_stats": (
        "bool",
        "Whether there are running statistics for inference. Without them inference uses those of x, as training does.",
    ),
    "bias": ("bool", "Whether there is a beta beside gamma."),
    "elementwise_affine": ("bool, optional", "PyTorch's name for affine."),
    "ddof": (
        "int",
        "The variance in running_var is sum (x - mean)^2 / (count - ddof): 0, or 1 as in PyTorch.",
    ),
    "axis": ("int", "The axis of the channels; -1 for channels-last."),
    "activation": ("str or None", 'The activation, computed in the same pass: "relu", "leaky_relu", "silu" or "gelu".'),
    "negative_slope": OF_FUNCTIONS["negative_slope"],
    "nonfinite": (
        "str",
        'How to treat a channel whose running statistics would become NaN or infinite. "skip" keeps the old ones,\n'
        'counts the batch in num_batches_skipped and warns once. "raise" raises NonFiniteError, and nothing has\n'
        'changed. "propagate" stores the new ones.',
    ),
    "on_single": (
        "str",
        'How to treat a training batch of one value per channel: "raise" SingleValueError, or normalize it by the\n'
        '"running" statistics, which do not change.',
    ),
    "dtype": (
        "str or numpy.dtype",
        "The type of parameters and running statistics, float64 or float32. x and y may have any other type.",
    ),
    "device": (
        "str",
        '"cpu", or "cuda": then all arrays, x and y included, are CuPy arrays. A call synchronizes with the GPU only\n'
        'to validate weights, and with nonfinite="raise".',
    ),
    "comm": (
        "communicator or None",
        "A communicator of mpi4py, or any object with `allgather`. In training, the batches of all its ranks count as\n"
        "one. All ranks call forward and backward in the same order, with an empty batch if need be. Running\n"
        "statistics that were bitwise identical at the start stay so. Inference needs no communication.",
    ),
}
WITHOUT_STATISTICS = {  # other descriptions for layers that have no running statistics
    "dtype": "The type of the parameters, float64 or float32. x and y may have any other type.",
    "device": '"cpu", or "cuda": then all arrays, x and y included, are CuPy arrays.',
}
OF_CALLS = {
    "x": ("array_like", "The input; see the class for its shape."),
    "weight": (
        "array_like, optional",
        "How much each value counts in the statistics of its sample, or a bool mask, as for padding. The shape is\n"
        "that of x without the channel axis, or (N,). A value of weight 0 does not count, but y is computed for it.\n"
        "If all weights of a sample are 0, y is beta.",
    ),
    "out": (
        "ndarray, optional",
        "An array for y: x itself, which then has no backward, or an array that overlaps no other.",
    ),
    "residual": (
        "array_like, optional",
        "Of the shape and dtype of x. Added to x in the same pass; the sum h is kept for the backward, not copied.",
    ),
}
Y = """Returns
-------
y : ndarray
    In the shape, dtype and memory order of x; float64 for bools and integers."""
normalizes = partial(described, OF_CALLS, Y)  # for `__call__`
OWN = ("__init__", "__call__")  # the methods that `public` copies for each class


def public(**texts: str) -> Callable[[Class], Class]:
    """Finish a public class: Python's errors name it, not its base class, and its docstring lists all parameters.

    texts: descriptions of parameters that mean something else in this class.
    """

    def finish(cls: Class) -> Class:
        for name in OWN:
            setattr(cls, name, _renamed(getattr(cls, name), f"{cls.__name__}.{name}"))
        cls.forward = cls.__call__  # type: ignore[attr-defined]
        special = texts if "nonfinite" in inspect.signature(cls).parameters else {**WITHOUT_STATISTICS, **texts}
        shared = inspect.cleandoc(getattr(cls, "_DOCUMENT", ""))  # text for all classes of a family
        cls.__doc__ = completed(cls, PARAMETERS, special, shared)
        return cls

    return finish


def _renamed(f: Any, name: str) -> FunctionType:
    """Return a function with another name and its own code object, which the interpreter specializes for one class."""
    code = f.__code__.replace(co_qualname=name)
    new = FunctionType(code, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    new.__kwdefaults__, new.__annotations__, new.__doc__ = f.__kwdefaults__, f.__annotations__, f.__doc__
    new.__qualname__, new.__module__ = name, f.__module__
    return new
