"""Ray Data: statistics of a Dataset in one pass, its normalization, an aggregate for groups, and a preprocessor.

Each block becomes one small state, which is bytes. Ray returns them in any order, so they are merged in the order of
their bytes: the same blocks give the same bits.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, overload

from bnorm.checks import missing, type_name
from bnorm.distributed.documents import FITTED, MOMENTS, OF_TRANSFORM, table
from bnorm.distributed.engine import NONE, Partitions, Reading, kind_of
from bnorm.distributed.learners import mapping_of, reading_of
from bnorm.distributed.sums import UNKNOWN
from bnorm.documents import described
from bnorm.exact import ExactMoments
from bnorm.moments import Moments

try:
    import pyarrow as pa
    from ray.data import Dataset
    from ray.data.aggregate import AggregateFn
    from ray.data.preprocessor import Preprocessor
except ImportError as error:
    raise missing(__name__, "ray", "ray", error) from error

SHOWN = 100  # rows of pandas blocks that show what columns of objects contain
AGGREGATE = "ray.MomentsAggregate"
IN_PLACE = {"batch_format": "pyarrow", "batch_size": None, "zero_copy_batch": True}  # block by block
PARAMETERS = table("ray.data.Dataset", "tensors, or lists of numbers")


@described(PARAMETERS, FITTED)
def fit(
    t: Any,
    data: Dataset,
    columns: Sequence[str] | None = None,
    sample_weight: str | None = None,
    times: str | None = None,
) -> Any:
    """Fit a transformer to the rows of a Dataset, as `t.fit` does to a table in memory. It computes at once."""
    reading = reading_of("ray.fit", t, _kinds("ray.fit", data), columns, sample_weight, times)
    return reading.fit(t, _states(reading, data))


@overload
def moments(
    data: Dataset, columns: Sequence[str] | None = None, sample_weight: str | None = None, *, exact: Literal[True]
) -> ExactMoments: ...
@overload
def moments(
    data: Dataset, columns: Sequence[str] | None = None, sample_weight: str | None = None, exact: bool = False
) -> Moments: ...
@described(PARAMETERS, MOMENTS)
def moments(
    data: Dataset, columns: Sequence[str] | None = None, sample_weight: str | None = None, exact: bool = False
) -> Moments:
    """Return count, mean and m2 of columns of a Dataset, in one pass. It computes at once."""
    reading = Reading.of("ray.moments", _kinds("ray.moments", data), columns, sample_weight, exact)
    return reading.moments(_states(reading, data))


@described(PARAMETERS, "Returns\n-------\nray.data.Dataset", **OF_TRANSFORM)
def transform(t: Any, data: Dataset, columns: Sequence[str] | None = None) -> Dataset:
    """Normalize the features that a transformer has learned, in a Dataset, lazily; other columns are untouched.

    The result uses the transformer as it is now. Columns of floats keep their type, others become float64.
    """
    mapping = mapping_of("ray.transform", t, _kinds("ray.transform", data), columns)
    return data.map_batches(mapping.table, **IN_PLACE)


class MomentsAggregate(AggregateFn):  # type: ignore[misc]
    """An aggregate for `ds.aggregate` and `ds.groupby(key).aggregate`: the state of the rows, as bytes.

    `MomentsAggregate.moments(state)` makes Moments of one. `Moments.merge` merges them with those of other data.

    Parameters
    ----------
    columns : sequence of str
        As for `fit`.
    sample_weight : str, optional
        The column of the weights of the rows.
    exact : bool, default False
        Whether to keep sums as integers.
    name : str, default "moments"
        The column of the result.
    """

    # Not an AggregateFnV2: Ray would drop all columns but one before calling it.

    def __init__(
        self, columns: Sequence[str], sample_weight: str | None = None, exact: bool = False, name: str = "moments"
    ) -> None:
        reading = Reading.given(AGGREGATE, columns, sample_weight, exact)

        def accumulated(state: bytes, block: Any) -> bytes:
            table = block if isinstance(block, pa.Table) else pa.Table.from_pandas(block)
            return reading.merged([state, reading.state([table])])

        super().__init__(
            init=lambda key: NONE,
            merge=lambda a, b: reading.merged([a, b]),
            name=name,
            accumulate_block=accumulated,
        )

    @staticmethod
    def moments(state: bytes) -> Moments:
        """The moments of a state, for each feature."""
        return Reading(AGGREGATE, ()).moments([state])


class BatchNormPreprocessor(Preprocessor):  # type: ignore[misc]
    """A transformer as a preprocessor of Ray: `fit`, `transform`, `fit_transform` and `transform_batch`.

    Parameters
    ----------
    columns : sequence of str
        As for `fit`.
    transformer : BatchNormTransformer or GroupedTransformer, optional
        What to fit; a copy is. By default one with momentum=None.

    Attributes
    ----------
    transformer_ : BatchNormTransformer or GroupedTransformer
        The fitted one.
    """

    def __init__(self, columns: Sequence[str], transformer: Any = None) -> None:
        super().__init__()
        self.columns, self.transformer = list(columns), transformer

    def _fit(self, ds: Dataset) -> Preprocessor:
        from sklearn import clone

        from bnorm.transformer import BatchNormTransformer

        asked = BatchNormTransformer(momentum=None) if self.transformer is None else self.transformer
        self.transformer_ = fit(clone(asked), ds, self.columns)
        return self

    def _transform_arrow(self, table: pa.Table) -> pa.Table:
        return mapping_of("ray.transform", self.transformer_, _kinds_of(table.schema), None).table(table)


def _states(reading: Partitions, data: Dataset) -> list[bytes]:
    """One state for each block that has rows."""
    rows = data.select_columns(reading.names).map_batches(partial(_of_block, reading), **IN_PLACE).iter_rows()
    return sorted(Partitions.attempted(rows))


def _of_block(reading: Partitions, table: pa.Table) -> pa.Table:
    return pa.table(reading.attempt([table]), pa.schema({"state": pa.binary(), "error": pa.string()}))


def _kinds(who: str, data: Dataset) -> dict[str, int | None]:
    if not isinstance(data, Dataset):
        raise TypeError(f"{who}: data: expected a Dataset of Ray, got {type_name(data)}")
    schema = data.schema()
    if schema is None:
        return {}
    if isinstance(schema.base_schema, pa.Schema):
        return _kinds_of(schema.base_schema)
    kinds: dict[str, int | None] = dict.fromkeys(schema.names, UNKNOWN)
    for batch in data.limit(SHOWN).iter_batches(batch_size=SHOWN, batch_format="pyarrow"):
        kinds |= _kinds_of(batch.schema)
    return kinds


def _kinds_of(schema: pa.Schema) -> dict[str, int | None]:
    return {field.name: kind_of(field.type) for field in schema}
