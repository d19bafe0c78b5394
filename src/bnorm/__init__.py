"""Normalization for NumPy nets, scikit-learn pipelines and streams: compiled, exact, the same bits everywhere."""

from bnorm import functional
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
)
from bnorm.moments import Moments

__version__ = "0.1.0"

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "Moments",
    "Parameter",
    "RMSNorm",
    "__version__",
    "functional",
    "get_buffer_limit",
    "get_num_threads",
    "set_buffer_limit",
    "set_num_threads",
    "show_config",
]
