"""What holds for all tests."""

from importlib.util import find_spec

if find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    # A machine that is busy with other work is no error: no time limits, and the same cases in every run. To look for
    # new ones: pytest --hypothesis-profile=default
    settings.register_profile("bnorm", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("bnorm")
