"""The neighbours: layers and scalers from and to PyTorch, Keras, Flax, scikit-learn and ONNX, folding, and autograd.

Each has a module of its own, which imports the neighbour when it is first needed: `from bnorm.interop import torch`, or
`bnorm.interop.torch` at once.
"""

from importlib import import_module
from typing import Any

_ROOMS = ("autograd", "flax", "folding", "jax", "keras", "onnx", "sklearn", "torch")


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'bnorm.interop' has no attribute {name!r}")
    return import_module(f"bnorm.interop.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})
