"""Conversions from and to PyTorch, Keras, Flax, scikit-learn and ONNX, folding, the norms in autograd and JAX, and
wrappers of Gymnasium and Stable-Baselines3.

There is one module for each library: `from bnorm.interop import torch`, or directly `bnorm.interop.torch`. It imports
the library when it is first needed; those of Gymnasium and Stable-Baselines3, whose classes are subclasses, at once.
"""

from importlib import import_module
from typing import Any

_MODULES = ("autograd", "flax", "folding", "gymnasium", "jax", "keras", "onnx", "sb3", "sklearn", "torch")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bnorm.interop' has no attribute {name!r}")
    return import_module(f"bnorm.interop.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
