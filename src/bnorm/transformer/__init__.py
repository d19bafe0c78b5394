"""The scikit-learn transformer and the modules behind it.

The command uses `state`, `tables` and `saving` without scikit-learn, which takes a second to import. So this module
imports the estimator only when it is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bnorm.transformer.estimator import BatchNormTransformer
    from bnorm.transformer.grouped import GroupedTransformer

__all__ = ["BatchNormTransformer", "GroupedTransformer"]
_LATE = {"BatchNormTransformer": "estimator", "GroupedTransformer": "grouped"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'bnorm.transformer' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"bnorm.transformer.{_LATE[name]}"), name)
