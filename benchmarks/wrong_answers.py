"""The same data, wrong answers: what libraries find in a column whose mean is a million times its spread.

    python -m benchmarks.wrong_answers

The column is float32. Its values are known exactly: each is 10⁶ plus a small multiple of 1/16. Each library is called
as its documentation says, with its own defaults, and compared with the exact answer for that call. Libraries that
cannot be imported are named.
"""

import os
import warnings
from collections.abc import Callable
from importlib.metadata import version
from shutil import which
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from .options import parser

ROWS, MEAN, SPREAD = 80_000, 1_000_000.03, 1.0
BATCH, STREAM = 32, 9600  # rows of a batch, and of all batches, if a library learns batch by batch


class Column(NamedTuple):
    """A table of one column, and its exact statistics."""

    x: ndarray
    away: ndarray  # x - 10⁶ in float64, exact
    mean: float
    var: float

    @classmethod
    def of(cls, x: ndarray) -> "Column":
        away = x.astype(np.float64) - 1e6
        mean = float(away.mean())
        return cls(x, away, mean, float(((away - mean) ** 2).mean()))

    def normalized(self, eps: float) -> ndarray:
        return (self.away - self.mean) / np.sqrt(self.var + eps)


class Answer(NamedTuple):
    """right and got: for a result that is a column, its largest error, which should be 0."""

    library: str
    asked: str
    right: float
    got: float


def column(seed: int = 0) -> Column:
    """Draw rows from a normal distribution, rounded to float32."""
    return Column.of(np.random.default_rng(seed).normal(MEAN, SPREAD, (ROWS, 1)).astype(np.float32))


def _of_column(library: str, asked: str, y: Any, exact: ndarray, wide: bool = False) -> Answer:
    """Return the largest error of a column. wide: whether the result is float64 although the column is not."""
    error = float(np.abs(np.asarray(y, np.float64) - exact).max())
    return Answer(library, f"{asked}, largest error{', in float64' * wide}", 0.0, error)


def _furthest(library: str, asked: str, data: Column, learn: Callable[[ndarray], float]) -> Answer:
    """Return the variance after that batch of a stream where it was furthest off."""
    ends = range(BATCH, STREAM + 1, BATCH)
    right = [float(data.away[:end].var()) for end in ends]
    got = [learn(data.x[end - BATCH : end]) for end in ends]
    worst = int(np.argmax(np.abs(np.array(got) - right)))
    return Answer(library, f"{asked}, variance, worst of {len(ends)} batches", right[worst], got[worst])


def bnorm(data: Column) -> list[Answer]:
    import bnorm

    y = bnorm.BatchNorm1d(1)(data.x)
    z = bnorm.BatchNormTransformer().fit_transform(data.x)
    stream = bnorm.BatchNormTransformer(momentum=None)
    return [
        _of_column("bnorm", "`BatchNorm1d(1)`", y, data.normalized(1e-5)),
        _of_column("bnorm", "`BatchNormTransformer().fit_transform`", z, data.normalized(0)),
        _furthest("bnorm", "`BatchNormTransformer.partial_fit`", data, lambda x: float(stream.partial_fit(x).var_[0])),
    ]


def pytorch(data: Column) -> list[Answer]:
    import torch

    with torch.no_grad():
        y = torch.nn.BatchNorm1d(1)(torch.from_numpy(data.x))
    return [_of_column("PyTorch", "`BatchNorm1d(1)`", y, data.normalized(1e-5))]


def flax(data: Column) -> list[Answer]:
    from flax import nnx

    y = nnx.BatchNorm(1, rngs=nnx.Rngs(0))(data.x)
    return [_of_column("Flax", "`nnx.BatchNorm(1)`", y, data.normalized(1e-5))]


def keras(data: Column) -> list[Answer]:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    y = keras.ops.convert_to_numpy(keras.layers.BatchNormalization()(data.x, training=True))  # of any backend
    return [_of_column("Keras", "`BatchNormalization()`", y, data.normalized(1e-3))]


def scikit_learn(data: Column) -> list[Answer]:
    from sklearn.preprocessing import StandardScaler

    y = StandardScaler().fit_transform(data.x)
    return [_of_column("scikit-learn", "`StandardScaler().fit_transform`", y, data.normalized(0))]


def river(data: Column) -> list[Answer]:
    import pandas as pd
    from river.preprocessing import StandardScaler

    scaler = StandardScaler()

    def learn(batch: ndarray) -> float:
        scaler.learn_many(pd.DataFrame(batch, columns=["x"]))
        return float(scaler.vars["x"])

    return [_furthest("River", "`StandardScaler.learn_many`", data, learn)]


def gymnasium(data: Column) -> list[Answer]:
    from gymnasium.wrappers.utils import RunningMeanStd

    found = RunningMeanStd(shape=(1,))
    found.update(data.x)
    return [Answer("Gymnasium", "`RunningMeanStd.update`, variance", data.var, float(found.var[0]))]


def batchstats(data: Column) -> list[Answer]:
    from batchstats import BatchVar

    found = BatchVar()
    found.update_batch(data.x)
    return [Answer("batchstats", "`BatchVar.update_batch`, variance", data.var, float(found()[0]))]


def spark(data: Column) -> list[Answer]:
    import pyarrow as pa
    from pyspark.ml.feature import StandardScaler, VectorAssembler
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import SparkSession

    if which("java") is None:
        raise ImportError
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.log.level", "OFF").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    table = session.createDataFrame(pa.table({"x": data.x[:, 0], "i": np.arange(len(data.x))}))
    vectors = VectorAssembler(inputCols=["x"], outputCol="v").transform(table)
    scaled = StandardScaler(inputCol="v", outputCol="y", withMean=True).fit(vectors).transform(vectors)
    y = scaled.select("i", vector_to_array("y")[0].alias("y")).toArrow().sort_by("i")["y"].to_numpy()
    session.stop()
    exact = data.normalized(data.var / (ROWS - 1))  # it divides by one row less
    return [_of_column("Spark", "`StandardScaler(withMean=True)`", y[:, None], exact, wide=True)]


def ray(data: Column) -> list[Answer]:
    import logging

    import pyarrow as pa
    import ray
    from ray.data.preprocessors import StandardScaler

    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    table = ray.data.from_arrow(pa.table({"x": data.x[:, 0], "i": np.arange(len(data.x))}))
    y = StandardScaler(["x"]).fit_transform(table).to_pandas().sort_values("i")["x"].to_numpy()
    ray.shutdown()
    return [_of_column("Ray", "`StandardScaler`", y[:, None], data.normalized(0), wide=True)]


LIBRARIES: dict[str, Callable[[Column], list[Answer]]] = {  # by the names of their packages
    "bnorm": bnorm,
    "torch": pytorch,
    "keras": keras,
    "flax": flax,
    "scikit-learn": scikit_learn,
    "river": river,
    "gymnasium": gymnasium,
    "batchstats": batchstats,
    "pyspark": spark,
    "ray": ray,
}


def _version(name: str) -> str:
    from bnorm import __version__

    found = __version__ if name == "bnorm" else version(name)  # bnorm need not be installed to be measured
    return found.partition("+")[0]  # without the name of a build


def answers(data: Column) -> tuple[list[Answer], list[str]]:
    """Return all answers, and the libraries that cannot be imported."""
    found: list[Answer] = []
    missing = []
    for name, ask in LIBRARIES.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # libraries warn while they are imported
                got = ask(data)
        except ImportError:
            missing.append(name)
        else:
            found += [answer._replace(library=f"{answer.library} {_version(name)}") for answer in got]
    return found, missing


def table(found: list[Answer]) -> str:
    """Return the table in Markdown."""
    lines = [f"| {a.library} | {a.asked} | {a.right:.3g} | {a.got:.3g} |" for a in found]
    return "\n".join(["| | asked | right | got |", "| --- | --- | ---: | ---: |", *lines])


def main() -> None:
    found, missing = answers(column())
    print(f"{ROWS:,} rows of float32, mean 10⁶, standard deviation 1.\n\n{table(found)}")
    if missing:
        print(f"\nnot installed: {', '.join(missing)}")


if __name__ == "__main__":
    parser("wrong_answers", __doc__).parse_args()
    main()
