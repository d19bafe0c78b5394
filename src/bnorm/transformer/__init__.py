"""The estimator itself: parameters, checks, and the methods that scikit-learn and its users call."""

from bnorm.transformer.estimator import BatchNormTransformer

__all__ = ["BatchNormTransformer"]
