"""Tables in the other byte order, as FITS and netCDF files have them."""

import numpy as np
import pytest

from bnorm import BatchNormTransformer


class Mapped(np.ndarray):
    """Stands for an array of a file, which is of a subclass too."""


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("kind", [np.ndarray, Mapped])
def test_it_is_the_same_type(dtype, kind):
    """As in the layer, which has the same bits."""
    x = np.random.default_rng(0).normal(3, 2, (50, 4)).astype(dtype)
    swapped = x.astype(x.dtype.newbyteorder()).view(kind)
    t = BatchNormTransformer().fit(swapped)
    y = t.transform(swapped)
    assert y.dtype == np.dtype(dtype) and y.dtype.isnative
    np.testing.assert_array_equal(y, BatchNormTransformer().fit(x).transform(x))
    np.testing.assert_array_equal(y, t.layer_.eval()(swapped))
    assert t.inverse_transform(swapped).dtype == np.dtype(dtype)


def test_in_place_is_a_copy_and_leaves_the_table_alone():
    x = np.arange(12.0).reshape(4, 3).astype(">f4")
    kept = x.copy()
    y = BatchNormTransformer(copy=False).fit(x).transform(x)
    assert y.dtype == np.float32 and not np.shares_memory(x, y)
    np.testing.assert_array_equal(x, kept)
