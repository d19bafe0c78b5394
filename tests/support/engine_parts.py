"""Partitions of a table as engines have them, and a comparison for transformers that were fitted to them."""

import numpy as np
import pytest

from bnorm.distributed.engine import kind_of

pa = pytest.importorskip("pyarrow")

ROWS = 60


def kinds(table):
    return {field.name: kind_of(field.type) for field in table.schema}


def spark_vectors(x, sparse):
    """Rows as Spark's vectors: some of them sparse, with their zeros left out. None is missing."""
    kind = pa.struct(
        [
            ("type", pa.int8()),
            ("size", pa.int32()),
            ("indices", pa.list_(pa.int32())),
            ("values", pa.list_(pa.float64())),
        ]
    )
    rows = [
        None
        if row is None
        else {"type": 0, "size": len(row), "indices": np.flatnonzero(row), "values": row[row != 0]}
        if few
        else {"type": 1, "values": row}
        for row, few in zip(x, sparse, strict=True)
    ]
    return pa.array(rows, kind)


def parts_of(table):
    """Return partitions: empty, of one row, without any value of a vector, and of several batches."""
    first, rest = table.slice(3, 1), pa.concat_tables([table.slice(0, 3), table.slice(4)])
    return [
        [],
        [table.slice(0, 0)],
        [first],
        [rest.slice(0, 20), rest.slice(20, 0), rest.slice(20, 9)],
        [rest.slice(29)],
    ]


def close(t, want):
    assert (np.abs(t.mean_ - want.mean_) <= 1e-12 * want.scale_).all()
    np.testing.assert_allclose(t.var_, want.var_, rtol=1e-12)
    np.testing.assert_array_equal(t.n_samples_seen_, want.n_samples_seen_)
    assert t.n_batches_seen_ == want.n_batches_seen_
