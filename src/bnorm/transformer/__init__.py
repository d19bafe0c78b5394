"""The scikit-learn transformer and the modules behind it.

The command uses `state`, `tables` and `saving` without scikit-learn, which takes a second to import. So this module
imports the estimator only when it is used.
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
