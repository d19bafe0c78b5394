"""The sums of columns of numbers, taken by Spark itself: no row leaves Java.

Each column is seen from a point among its values, so the sum of squares loses few digits to the square of the sum. If
it would lose more, the rows are summed once more, seen from their mean. Spark adds the rows of a partition one after
another: n of them cost the variance about √n roundings, and never more than a few n.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray
from pyspark.sql import functions as F
from pyspark.sql import types

from bnorm.distributed.sums import NUMBER, Sums
from bnorm.moments import Moments

WIDEST = 30  # columns: Java interprets a loop over the rows of more, as it is a method of more than 8000 bytes
FIRST = 64  # rows, of whose values the points are the medians
NEAR = 8.0  # as often as the squares of distances from the mean, those from the point may be: 3 bits are lost
CALLS = 3  # the mean itself may be rounded where the point is very far from it
LEAST = 2.0**-900  # a smaller sum of squares may have lost squares below the range of float64
THROUGH = {"Project", "Filter", "Union"}  # what of a plan gives rows as it reads them, and starts again at little cost


def states(columns: Sequence[str], data: Any) -> list[bytes] | None:
    """One state of all rows, none for no rows; None if the columns, or the values, need another way.

    data: with these columns only.
    """
    if len(columns) > WIDEST or not _restarts(data) or not all(map(_is_number, data.schema.fields)):
        return None
    table = data.select(*(_number(field).alias(f"x{i}") for i, field in enumerate(data.schema.fields)))
    points = _medians(table)
    for _ in range(CALLS):
        rows, sums = _summed(table, points)
        if not rows:
            return []
        if not np.isfinite(sums).all():
            return None
        parts = _parts(sums, points)
        far = sums[2] > NEAR * parts[2]
        if not far.any():
            break
        points = np.where(far, parts[1], points)
    if _lost(table, points, sums):
        return None
    return [Sums(tuple(columns), (NUMBER,) * len(columns), Moments.from_parts(parts), rows, float(rows)).to_bytes()]


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _is_number(field: types.StructField) -> bool:
    return isinstance(field.dataType, types.NumericType | types.BooleanType | types.NullType)


def _restarts(data: Any) -> bool:
    """Whether the first rows cost little: there is no join, sort or shuffle below them. Unknown with Spark Connect."""
    return hasattr(data, "_jdf") and _streams(data._jdf.queryExecution().optimizedPlan())


def _streams(plan: Any) -> bool:
    children = plan.children()
    below = [children.apply(i) for i in range(children.size())]
    return not below or (plan.nodeName() in THROUGH and all(map(_streams, below)))


def _number(field: types.StructField) -> Any:
    """A column as double, without NaN."""
    x = F.col(quoted(field.name)).cast("double")
    return F.nanvl(x, F.lit(None)) if isinstance(field.dataType, types.FractionalType) else x


def _medians(table: Any) -> ndarray:
    """Of the first rows; 0 for a column without finite values there."""
    rows = np.array(table.limit(FIRST).collect(), float).reshape(-1, len(table.columns))
    points = [np.median(x[np.isfinite(x)]) if np.isfinite(x).any() else 0.0 for x in rows.T]
    finite: ndarray = np.nan_to_num(points)  # the sum of the two in the middle may be infinite
    return finite


def _summed(table: Any, points: ndarray) -> tuple[int, ndarray]:
    """How many rows there are, and (3, C): of each column the values, their distances from the point, and squares."""
    distances = [(F.col(f"x{i}") - point).alias(f"d{i}") for i, point in enumerate(points.tolist())]
    asked = [F.count("*")]
    for i in range(len(points)):
        d = F.col(f"d{i}")
        asked += [F.count(d), F.sum(d), F.sum(d * d)]
    rows, *sums = table.select(*distances).agg(*asked).first()
    return rows, np.array([0.0 if s is None else s for s in sums]).reshape(-1, 3).T


def _parts(sums: ndarray, points: ndarray) -> ndarray:
    """(4, C): count, mean, m2 and low, as Moments have them."""
    count, total, squares = sums
    near = total / np.maximum(count, 1)
    m2 = np.maximum(squares - total * near, 0)
    mean = points + near
    added = mean - points
    low = (points - (mean - added)) + (near - added)
    return np.where(count > 0, [count, mean, m2, low], 0)


def _lost(table: Any, points: ndarray, sums: ndarray) -> bool:
    """Whether distances that are not 0 have squares too small for float64."""
    small = np.flatnonzero((sums[2] < LEAST) & (sums[0] > 0)).tolist()
    if not small:
        return False
    furthest = [F.max(F.abs(F.col(f"x{i}") - float(points[i]))) for i in small]
    return any(table.agg(*furthest).first())
