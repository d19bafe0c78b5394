"""Engines have one interface."""

import inspect

import pytest

pytestmark = pytest.mark.engines


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")  # Ray's
def test_engines_have_the_same_arguments():
    pytest.importorskip("pyspark")
    pytest.importorskip("ray.data")
    pytest.importorskip("dask.dataframe")
    from bnorm.distributed import dask, ray, spark

    asked = {"fit": ["columns", "sample_weight", "times"], "transform": ["columns"]}
    for engine in (dask, ray, spark):
        for name, optional in asked.items():
            found = inspect.signature(getattr(engine, name)).parameters
            assert list(found) == ["t", "data", *optional], (engine.__name__, name)
            assert [found[argument].default for argument in optional] == [None] * len(optional), (engine.__name__, name)
