"""How a layer presents itself: the names of its methods in messages, and what `help` says of its parameters."""

from __future__ import annotations

import inspect
from textwrap import indent
from types import FunctionType
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)

PARAMETERS = {  # the type, and what it means
    "num_features": ("int", "The number of channels, C."),
    "normalized_shape": (
        "int or tuple of int",
        "The sizes of the last axes of x, over which each sample is normalized. gamma and beta have this shape.",
    ),
    "num_groups": ("int", "The number of groups, a divisor of num_channels. A group is a run of channels."),
    "num_channels": ("int", "The number of channels, C."),
    "eps": ("float", "Added to the variance, inside the root."),
    "momentum": (
        "float or None",
        "The weight of the new batch in running_mean and running_var. 0 keeps them as they are.\n"
        "None: every value seen weighs the same, and the spread between batches counts.\n"
        "(PyTorch's None averages the variances of the batches, and loses that spread.)",
    ),
    "affine": ("bool", "Whether there are parameters: gamma (also called weight) and beta (also called bias)."),
    "track_running_stats": (
        "bool",
        "Whether there are running statistics, which inference uses. Without them it uses those of x, as training.",
    ),
    "bias": ("bool", "False: gamma alone, no beta."),
    "elementwise_affine": ("bool, optional", "PyTorch's name for affine."),
    "ddof": (
        "int",
        "running_var averages sum (x - mean)^2 / (count - ddof): 0, or 1 as in PyTorch.",
    ),
    "axis": ("int", "The axis of the channels; -1 for channels-last."),
    "activation": ("str or None", 'What is applied after, in the same pass: None, "relu" or "leaky_relu".'),
    "negative_slope": ("float", 'The slope below 0 of the activation "leaky_relu".'),
    "nonfinite": (
        "str",
        'What a channel does whose new running statistics would be NaN or infinite. "skip" leaves them alone,\n'
        'counts the batch in num_batches_skipped and warns once; "raise" raises NonFiniteError, and nothing has\n'
        'happened; "propagate" lets them in.',
    ),
    "on_single": (
        "str",
        'What a training batch of one value per channel does: "raise" SingleValueError, or normalize it by the\n'
        '"running" statistics, which stay as they are.',
    ),
    "dtype": (
        "str or numpy.dtype",
        "Of parameters and running statistics, float64 or float32. x and y may be of any other.",
    ),
    "device": (
        "str",
        '"cpu", or "cuda": then all arrays, x and y too, are CuPy arrays. Only nonfinite="raise" and weights, whose\n'
        "values are looked at, make a call wait for the GPU.",
    ),
    "comm": (
        "communicator or None",
        "The ranks whose batches are, in training, parts of one: a communicator of mpi4py, or any with `allgather`.\n"
        "All of them call forward and backward, in the same order, with an empty batch if need be. Running\n"
        "statistics that began alike stay the same on all ranks, to the bit. In inference no rank needs another.",
    ),
}
OWN = ("__init__", "__call__")  # methods


def public(**texts: str) -> Any:
    """Finish a class that people use: errors of Python name it, not its base, and its docstring lists all parameters.

    texts: of parameters that mean something else here.
    """

    def finish(cls: Class) -> Class:
        for name in OWN:
            setattr(cls, name, _renamed(getattr(cls, name), f"{cls.__name__}.{name}"))
        cls.forward = cls.__call__  # type: ignore[attr-defined]
        text, examples, example = inspect.cleandoc(cls.__doc__ or "").partition("\nExamples\n")
        lines = [_described(p, texts) for p in list(inspect.signature(cls).parameters.values())]
        cls.__doc__ = "\n".join([text, "Parameters\n----------", *lines]) + "\n" + examples + example
        return cls

    return finish


def _described(parameter: inspect.Parameter, texts: dict[str, str]) -> str:
    kind, text = PARAMETERS[parameter.name]
    default = "" if parameter.default is parameter.empty else f", default {parameter.default!r}"
    if kind.endswith("optional"):
        default = ""
    return f"{parameter.name} : {kind}{default}\n{indent(texts.get(parameter.name, text), '    ')}"


def _renamed(f: Any, name: str) -> FunctionType:
    """The same function by another name, with code of its own: the interpreter tunes it to this class."""
    code = f.__code__.replace(co_qualname=name)
    new = FunctionType(code, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    new.__kwdefaults__, new.__annotations__, new.__doc__ = f.__kwdefaults__, f.__annotations__, f.__doc__
    new.__qualname__, new.__module__ = name, f.__module__
    return new
