"""Normalization for NumPy nets, scikit-learn pipelines and streams: compiled, accurate, the same bits on every CPU."""

from typing import TYPE_CHECKING, Any

from bnorm import functional
from bnorm.checks import NonFiniteError, SingleValueError
from bnorm.config import show_config
from bnorm.kernels.cpu import get_buffer_limit, get_num_threads, set_buffer_limit, set_num_threads
from bnorm.layers import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    Parameter,
    RMSNorm,
    load_state_dict,
    no_backward,
    set_debug,
    state_dict,
)
from bnorm.moments import Moments
from bnorm.streams import RevIN, RunningNorm, RunningNormTree

if TYPE_CHECKING:
    from bnorm.datasets import dataset_moments
    from bnorm.loading import load
    from bnorm.transformer import BatchNormTransformer, GroupedTransformer
    from bnorm.transformer.pipeline import partial_fit_pipeline

__version__ = "0.1.0"

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "BatchNormTransformer",
    "GroupNorm",
    "GroupedTransformer",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "Moments",
    "NonFiniteError",
    "Parameter",
    "RMSNorm",
    "RevIN",
    "RunningNorm",
    "RunningNormTree",
    "SingleValueError",
    "__version__",
    "dataset_moments",
    "functional",
    "get_buffer_limit",
    "get_num_threads",
    "load",
    "load_state_dict",
    "no_backward",
    "partial_fit_pipeline",
    "set_buffer_limit",
    "set_debug",
    "set_num_threads",
    "show_config",
    "state_dict",
]

# Imported at first use, as they need scikit-learn or other libraries, which take longer to import than bnorm.
_LATE = {
    "dataset_moments": "bnorm.datasets",
    "load": "bnorm.loading",
    "BatchNormTransformer": "bnorm.transformer",
    "GroupedTransformer": "bnorm.transformer",
    "partial_fit_pipeline": "bnorm.transformer.pipeline",
}
_LATE_MODULES = ("interop", "plot", "sklearn", "xarray")


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _LATE_MODULES:
        return import_module(f"bnorm.{name}")
    if name not in _LATE:
        raise AttributeError(f"module 'bnorm' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_LATE_MODULES, "distributed"})
