"""What scikit-learn does not promise to keep: every name of it that has an underscore, or a module's that has one.

Nothing else in the package imports such a name, so a release of scikit-learn that moves one is dealt with here.
"""

from sklearn.base import _fit_context as fit_context
from sklearn.utils._array_api import get_namespace
from sklearn.utils._param_validation import Interval, Options
from sklearn.utils._set_output import _get_output_config as output_config
from sklearn.utils._set_output import _wrap_data_with_container as in_container
from sklearn.utils.validation import _check_sample_weight as check_sample_weight

__all__ = [
    "Interval",
    "Options",
    "check_sample_weight",
    "fit_context",
    "get_namespace",
    "in_container",
    "output_config",
]
