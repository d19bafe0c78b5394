"""scikit-learn's private names: those with an underscore, or in a module with one.

No other file imports such a name, so if a release of scikit-learn moves one, only this file changes.
"""

from sklearn.base import _fit_context as fit_context
from sklearn.utils._array_api import get_namespace
from sklearn.utils._param_validation import Interval, Options
from sklearn.utils._set_output import _get_output_config as output_config
from sklearn.utils._set_output import _wrap_data_with_container as in_container
from sklearn.utils.validation import _check_feature_names_in as check_feature_names_in
from sklearn.utils.validation import _check_sample_weight as check_sample_weight

__all__ = [
    "Interval",
    "Options",
    "check_feature_names_in",
    "check_sample_weight",
    "fit_context",
    "get_namespace",
    "in_container",
    "output_config",
]
