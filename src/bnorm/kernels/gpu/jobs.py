"""The structs that kernels take, field by field, and the modes that their names hold: spelled here and nowhere else.

A job is the arrays and options of a call, packed once, and the geometry of each launch behind them. Every field has
eight bytes; what a call does not name is 0.
"""

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

SUMS_ONLY, WITH_MAP, CAREFUL, FROZEN, EXACT, MEETING = range(6)  # MODE of a kernel
SKIP, PROPAGATE, TEST = range(3)  # nonfinite; TEST only looks
NO_PARAMS, PER_COLUMN, PER_CHANNEL = range(3)  # PARAMS of the backward of rows: gradients of parameters
NO_AFFINE, GAMMA_ALONE, GAMMA_AND_BETA = range(3)  # which of them the kernels of rows read, and blocks keep
WRITTEN, TO_FLOAT64, TO_FLOAT32 = range(3)  # how a kernel gives gradients of parameters: new, or added to these
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
        """What packs these fields, which are in the order of the struct, and zeros between them: a call's part."""
        codes = dict.fromkeys(self.pointers, "Q") | dict.fromkeys(self.switches, "q") | dict.fromkeys(self.numbers, "d")
        if list(names) != [name for name in codes if name in names]:
            raise ValueError(f"packer: expected fields in the order of the struct, got {names}")
        return Struct("=" + "".join(code if name in names else "8x" for name, code in codes.items())).pack

    def place(self, **values: int) -> bytes:
        """A launch's part."""
        return Struct(f"={len(self.geometry)}q").pack(*[values.pop(name, 0) for name in self.geometry])

    def placed(self, geometry: bytes) -> dict[str, int]:
        """The fields of such a part, by name."""
        return dict(zip(self.geometry, Struct(f"={len(self.geometry)}q").unpack(geometry), strict=True))


JOB = Fields(  # walk.cu says what they mean
    (
        *("x", "dy", "y", "weight", "gamma", "beta", "mean", "var", "stats", "parts", "sums", "coefficients"),
        *("dgamma", "dbeta", "counts", "partial", "tickets", "infinite", "row_mean", "row_rstd"),
        *("running_mean", "running_var", "seen", "counted"),
    ),
    ("skipna", "count_step", "gives", "mode", "wide", "nonfinite"),
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
    ("mode", "wide", "whole", "replaces", "nonfinite", "items"),
    ("momentum", "halflife", "ddof", "uncounted", "typical"),
    ("channels",),
)
ALL = (JOB, ROW_JOB, STATISTICS_JOB)
