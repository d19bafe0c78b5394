"""The structs that kernels take, field by field, and the modes in the names of kernels.

A job is such a struct: the arrays and options of a call, which are packed once, and then the geometry of one of its
launches. Every field has eight bytes; fields that a call does not name are 0. launching.py puts the modes into the
CUDA sources.
"""

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

SUMS_ONLY, WITH_MAP, CAREFUL, FROZEN, EXACT, MEETING = range(6)  # MODE of a kernel
SKIP, PROPAGATE, TEST = range(3)  # nonfinite; TEST changes nothing, it only flags the channels
NO_PARAMS, PER_COLUMN, PER_CHANNEL = range(3)  # PARAMS of the backward of rows: how it makes gradients of parameters
NO_AFFINE, GAMMA_ALONE, GAMMA_AND_BETA = range(3)  # which of the two the kernels of rows read, and blocks keep
WRITTEN, TO_FLOAT64, TO_FLOAT32 = range(3)  # gradients of parameters are written, or added to those of this type
ENUMERATIONS = (
    ("SUMS_ONLY", "WITH_MAP", "CAREFUL", "FROZEN", "EXACT", "MEETING"),
    ("SKIP", "PROPAGATE", "TEST"),
    ("NO_PARAMS", "PER_COLUMN", "PER_CHANNEL"),
    ("NO_AFFINE", "GAMMA_ALONE", "GAMMA_AND_BETA"),
    ("WRITTEN", "TO_FLOAT64", "TO_FLOAT32"),
)


class Fields(NamedTuple):
    """The fields of a struct, in its order."""

    pointers: tuple[str, ...]
    switches: tuple[str, ...]  # int64
    numbers: tuple[str, ...]  # float64
    geometry: tuple[str, ...]  # int64

    @property
    def size(self) -> int:
        return 8 * sum(map(len, self))

    def packer(self, *names: str) -> Callable[..., bytes]:
        """Return a function that packs a call's part of a job: these fields, in the struct's order, and 0 elsewhere."""
        codes = dict.fromkeys(self.pointers, "Q") | dict.fromkeys(self.switches, "q") | dict.fromkeys(self.numbers, "d")
        if list(names) != [name for name in codes if name in names]:
            raise ValueError(f"packer: expected fields in the order of the struct, got {names}")
        return Struct("=" + "".join(code if name in names else "8x" for name, code in codes.items())).pack

    def place(self, **values: int) -> bytes:
        """Return the launch's part of a job: the geometry. Fields that are not given are 0."""
        return Struct(f"={len(self.geometry)}q").pack(*[values.pop(name, 0) for name in self.geometry])

    def placed(self, geometry: bytes) -> dict[str, int]:
        """Return the fields of a launch's part, by name."""
        return dict(zip(self.geometry, Struct(f"={len(self.geometry)}q").unpack(geometry), strict=True))


JOB = Fields(  # walk.cu says what they mean
    (
        *("x", "dy", "y", "weight", "gamma", "beta", "mean", "var", "stats", "parts", "sums", "coefficients"),
        *("dgamma", "dbeta", "counts", "partial", "tickets", "infinite", "row_mean", "row_rstd"),
        *("running_mean", "running_var", "seen", "counted"),
    ),
    ("skipna", "count_step", "gives", "mode", "wide", "nonfinite", "single"),
    ("slope", "eps", "count", "momentum", "ddof", "uncounted"),
    (
        *("channels", "inner", "columns", "copies", "steps", "total", "run", "jump", "unit", "base", "chunk"),
        *("chunks", "group", "bunch", "split", "weight_step", "keep", "streams", "row_channels"),
    ),
)
ROW_JOB = Fields(  # rows.cu
    (
        *("x", "dy", "y", "gamma", "beta", "mean", "rstd", "dgamma", "dbeta", "partial", "weight"),
        *("gamma_kept", "beta_kept", "tickets"),
    ),
    ("rule", "gives"),
    ("slope", "eps", "inverse"),
    (
        *("rows", "size", "inner", "groups", "lanes", "side", "affine", "streams", "sets", "columns", "channels"),
        *("share", "whole", "keep", "bunch", "joined", "late", "halvings"),
    ),
)
STATISTICS_JOB = Fields(  # statistics.cu
    (
        *("mean", "var", "low", "seen", "weight", "pairs", "last", "parts", "batch_seen", "batch_pairs", "batch_last"),
        *("typical_at", "left", "counted", "sets", "merged", "total", "part", "other", "other_part"),
    ),
    ("mode", "wide", "whole", "replaces", "nonfinite", "items", "single"),
    ("momentum", "halflife", "ddof", "uncounted", "typical"),
    ("channels",),
)
ALL = (JOB, ROW_JOB, STATISTICS_JOB)
