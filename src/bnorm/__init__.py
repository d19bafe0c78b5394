"""Normalization for NumPy nets, scikit-learn pipelines and streams: compiled, exact, the same bits everywhere."""

from bnorm import functional
from bnorm.config import show_config
from bnorm.kernels.cpu import get_num_threads, set_num_threads
from bnorm.moments import Moments

__version__ = "0.1.0"

__all__ = [
    "Moments",
    "__version__",
    "functional",
    "get_num_threads",
    "set_num_threads",
    "show_config",
]
