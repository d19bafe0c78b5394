"""The estimator: parameters, checks, and the methods that scikit-learn and its users call.

The modules beside it need no scikit-learn, which takes a second to import: the command uses them without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bnorm.transformer.estimator import BatchNormTransformer

__all__ = ["BatchNormTransformer"]


def __getattr__(name: str) -> Any:
    if name != "BatchNormTransformer":
        raise AttributeError(f"module 'bnorm.transformer' has no attribute {name!r}")
    from bnorm.transformer.estimator import BatchNormTransformer

    return BatchNormTransformer
