"""The numpydoc sections that public functions share, so that each parameter is described once."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from textwrap import indent
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Table = Mapping[str, tuple[str, str]]  # the type and the description of each parameter

PARAMETERS = {
    "x": (
        "array_like",
        "The input, of dtype float16, float32, float64, or bfloat16 of ml_dtypes. Bools and integers are computed in\n"
        "float64. A PyTorch tensor on the CPU is read without a copy. If x is a CuPy array, all other arrays must be\n"
        "CuPy arrays, lists or numbers, and the results are CuPy arrays.",
    ),
    "gamma": ("array_like, optional", "The scale, of shape (C,). None means 1."),
    "beta": ("array_like, optional", "The shift, of shape (C,). None means 0."),
    "mean": (
        "array_like, optional",
        "The mean to use instead of that of the batch (inference), of shape (C,). Give mean and var together. The\n"
        "backward treats them as constants.",
    ),
    "var": (
        "array_like, optional",
        "The variance to use, of shape (C,). A negative value is an error; on the GPU it is not validated, and y is\n"
        "NaN there.",
    ),
    "eps": ("float", "Added to the variance, inside the root."),
    "axis": ("int", "The axis of the channels. C is its size."),
    "activation": ('{None, "relu", "leaky_relu", "silu", "gelu"}', "Applied to the result in the same pass."),
    "negative_slope": ("float", 'The slope of "leaky_relu" below 0: at least 0, and below 1.'),
    "weight": (
        "array_like, optional",
        "How much each value counts in the statistics, finite and not negative, or a bool mask. The shape is that of\n"
        "x without the channel axis, or (N,), one weight per sample. A value of weight 0, even NaN, does not count,\n"
        "but y is computed for it. If all weights are 0, y is beta. In inference weight has no effect.",
    ),
    "residual": (
        "array_like, optional",
        "Added to x first, in the same pass; of the shape and dtype of x. y is the norm of the sum h, rounded once.\n"
        "h is kept for the backward, not copied.",
    ),
    "out": (
        "ndarray, optional",
        "An array for the result, of the shape and dtype of y, in any memory order. It may be x, which then has no\n"
        "backward, or an array that overlaps no argument.",
    ),
    "normalized_shape": (
        "int or tuple of int",
        "The sizes of the last axes of x, over which each sample is normalized. An int is the size of the last axis.",
    ),
    "num_groups": (
        "int",
        "The number of groups, a divisor of the number of channels C. A group is a run of C / num_groups channels.",
    ),
}
OF_SAMPLES = (  # weight, where each sample has statistics of its own
    "How much each value counts in the statistics of its sample, finite and not negative, or a bool mask. The shape\n"
    "is that of x without the channel axis, or (N,), one weight per sample. A value of weight 0, even NaN, does not\n"
    "count, but y is computed for it. Where all weights of a sample are 0, y is beta."
)
RETURNS = """Returns
-------
y : ndarray
    The result, of the shape, dtype and memory order of x, in the byte order of the machine; `out` if it is given.
saved : Saved
    The argument of `backward`.

Raises
------
TypeError, ValueError
    If an argument is invalid. The message names the function and the parameter, and nothing has changed."""


def described(table: Table, after: str = "", **texts: str) -> Callable[[Function], Function]:
    """Complete the docstring of a function or method: its parameters, as in `texts` or the table, and `after`."""

    def finish(f: Function) -> Function:
        f.__doc__ = completed(f, table, texts, after=after)
        return f

    return finish


normalizes = partial(described, PARAMETERS, RETURNS)  # for functions that return y and saved


def completed(f: Callable[..., Any], table: Table, texts: Mapping[str, str], more: str = "", after: str = "") -> str:
    """Return a docstring with `more` text, a section of all parameters, the sections `after`, and its examples."""
    text, examples, example = inspect.cleandoc(f.__doc__ or "").partition("Examples\n")
    lines = ["Parameters\n----------"]
    for name, parameter in inspect.signature(f).parameters.items():
        if name != "self":
            kind, description = table[name]
            lines.append(listed(parameter, kind, texts.get(name, description)))
    sections = (text.rstrip(), more, "\n".join(lines), after, examples + example)
    return "\n\n".join(filter(None, sections))


def listed(parameter: inspect.Parameter, kind: str, text: str) -> str:
    """Return a parameter in the format of numpydoc."""
    shown = parameter.default is not parameter.empty and not kind.endswith("optional")
    return f"{parameter.name} : {kind}{f', default {parameter.default!r}' if shown else ''}\n{indent(text, '    ')}"
