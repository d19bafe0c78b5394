"""What kernels write to: writeable, aligned, contiguous memory that is large enough, or nothing has happened."""

import re

import numpy as np
import pytest

from bnorm.kernels import cpu
from bnorm.kernels.activation import IDENTITY
from drawing import together
from placing import read_only

SHAPE = (40, 6)
rng = np.random.default_rng(0)
X, DY = rng.standard_normal((2, *SHAPE))
ROWS = X.reshape(40, 1, 6, 1)
STATS = rng.uniform(0.5, 2, (5, 6))
WRITERS = {
    "normalize": lambda x, out: cpu.normalize(x, STATS, IDENTITY, out),
    "normalize finite": lambda x, out: cpu.normalize(x, STATS, IDENTITY, out, True),
    "grad_input": lambda x, out: cpu.grad_input(x, x, STATS, STATS[:3], None, IDENTITY, out),
    "forward": lambda x, out: cpu.forward(x, None, None, 1e-5, out=out),
    "inference": lambda x, out: cpu.forward(x, None, None, 1e-5, STATS[0], STATS[1], out=out),
    "backward": lambda x, out: cpu.backward(x, x, STATS, 40.0, out=out),
    "rows_forward": lambda x, out: cpu.rows_forward(as_rows(x), None, None, 1e-5, out=as_rows(out)),
    "rows_backward": lambda x, out: cpu.rows_backward(
        as_rows(x), as_rows(x), np.zeros(40), np.ones(40), None, None, out=as_rows(out)
    ),
}


def as_rows(a):
    """As (N, 1, D, 1) in the same memory, whatever that is like."""
    return a[:, None, :, None]


def unaligned(a):
    return np.frombuffer(bytearray(a.nbytes + 1), np.uint8)[1:].view(a.dtype).reshape(a.shape)


def immutable(a):
    return np.frombuffer(bytes(a.nbytes), a.dtype).reshape(a.shape)


UNFIT = {
    "read-only": read_only,
    "of immutable bytes": immutable,
    "unaligned": unaligned,
    "strided": lambda a: np.zeros((80, 6), a.dtype)[::2],
    "backwards": lambda a: a[::-1],
    "of the other byte order": lambda a: a.astype(a.dtype.newbyteorder("S")),
    "too small": lambda a: a[:-1],
    "of another type": lambda a: np.zeros(SHAPE, "i8" if a.itemsize == 8 else "i4"),
}


@together(kind=UNFIT, dtype=["float16", "float32", "float64"])
@pytest.mark.parametrize("name", WRITERS)
def test_out(name, kind, dtype):
    x = X.astype(dtype)
    out = UNFIT[kind](np.zeros(SHAPE, dtype))
    before = out.tobytes()
    with pytest.raises(ValueError, match=f"^out: expected .* memory for 240 values of {dtype}"):
        WRITERS[name](x, out)
    assert out.tobytes() == before


@pytest.mark.parametrize("kind", UNFIT)
def test_add(kind):
    total = UNFIT[kind](np.zeros(SHAPE, "float32"))
    before = total.tobytes()
    with pytest.raises(ValueError, match=re.escape("total: expected writeable")):
        cpu.add(total, np.ones(SHAPE))
    fit = np.zeros(SHAPE)
    with pytest.raises(ValueError, match=re.escape("total: expected writeable")):
        cpu.add(fit, np.ones(SHAPE), total, np.ones(SHAPE))  # neither is added to
    assert total.tobytes() == before
    assert not fit.any()
