"""Compiled entries with arrays of any dtype, shape and layout: a result or an error, never a crash."""

import json
import sys
import zlib
from inspect import signature
from pathlib import Path

import numpy as np

import child
from bnorm.kernels.activation import leaky
from bnorm.kernels.cpu import entries, groups, second, sparse
from bnorm.kernels.cpu.extremes import entries as extreme
from bnorm.running import Statistics

CALLS = 600  # of each entry
KINDS = ["f8", "f4", "f2", ">f8", "?", "i1", "u2", "i4", "i8", "O", "c16", "M8[s]", "U3", "V8"]
SHAPES = [(), (0,), (3,), (9,), (3, 3), (4, 3), (3, 4), (0, 3), (3, 0), (3, 3, 2), (3, 1, 3, 1), (2, 3, 2, 1), (1, 70)]
NAMES = {
    entries: "add apart assign backward column_moments contiguous copy_into finish finish_gradients forward grad_input "
    "grad_moments in_float64 inverse known merge moments move narrowed normalize ready restored rows_backward "
    "rows_forward settle widened",
    groups: "distinct later moments normalize",
    second: "channels rows",
    sparse: "moments scaled",
    extreme: "extremes",
}
ENTRIES = {f"{module.__name__}.{name}": getattr(module, name) for module in NAMES for name in NAMES[module].split()}
LIKE_X = {"x", "y", "dy", "dx", "ddx", "out", "total", "other", "a", "like", "residual", "dh"}
ROWS = {"parts": 4, "stats": 5, "sums": 2, "coefficients": 3}  # of numbers for each channel
STATISTICS = ("rule", "source", "running")


def good(name, rng, entry):
    """An argument that fits the others: three channels, or three rows of three values."""
    if name in LIKE_X:
        return np.ones((3, 1, 3, 1) if "rows" in entry else (3, 3) if "sparse" not in entry else 3, "f4")
    if name in ("part", "other_part"):
        return np.ones((3, 3))
    if name in ROWS:
        return np.ones((ROWS[name], 3))
    if name in STATISTICS:
        return Statistics(np.zeros(3), np.ones(3), None, from_data=True, halflife=2.0).rule
    if name == "data":
        return np.ones(3)
    if name in ("indices", "indptr"):
        return np.arange(3 + (name == "indptr"), dtype="i4")
    if name == "act":
        return leaky(0.5)
    if name == "bent":
        return None
    if name == "codes":
        return np.array([0, 1, -1])
    if name == "values":
        return np.array([3, 1, 3])
    return {
        "sets": [np.ones((4, 3))] * 2,
        "columns": [np.ones(3), np.ones(3, "f4")],
        "others": [np.ones(3), 3],
        "vectors": (np.ones(3, "f4"), None, np.ones(3)),
        "shape": (3, 3),
        "groups": 2,
        "numbers": np.ones((2, 3, 3)),
    }.get(name, np.ones(3))


def anything(name, rng):
    """Of any dtype, shape and layout: strided, in the other byte order, read-only, not aligned, empty, of objects."""
    if name in STATISTICS:
        rule = good(name, rng, "")
        field = rule._fields[rng.integers(1, 9)]
        return rule._replace(**{field: anything("", rng)})
    if name in ("sets", "columns"):
        return [anything("", rng) for _ in range(rng.integers(3))]
    if name == "vectors":
        return tuple(anything("", rng) for _ in range(rng.integers(3)))
    if name == "shape":
        return tuple(map(int, rng.integers(-1, 5, 2)))
    if rng.random() < 0.15:
        return [None, 0, 1.0, True, "text"][rng.integers(5)]
    a = np.zeros(SHAPES[rng.integers(len(SHAPES))], KINDS[rng.integers(len(KINDS)) if rng.random() < 0.6 else 0])
    way = rng.integers(6)
    if way == 0 and a.ndim:
        return np.repeat(a, 2, axis=-1)[..., ::2]
    if way == 1:
        return np.asfortranarray(a)
    if way == 2:
        a.flags.writeable = False
    if way == 3 and a.ndim:
        return a[::-1]
    if way == 4 and a.dtype.kind == "f":
        return np.frombuffer(bytearray(a.nbytes + 1), a.dtype, offset=1, count=a.size).reshape(a.shape)
    return a


def call(which):
    """How many calls succeeded, and how many were refused."""
    entry, rng, done = ENTRIES[which], np.random.default_rng(zlib.crc32(which.encode())), [0, 0]
    names = list(signature(entry).parameters)
    for _ in range(CALLS):
        given = [good(name, rng, which) for name in names]
        for _ in range(rng.integers(1, 3)):
            i = rng.integers(len(names))
            given[i] = anything(names[i], rng)
        given = [1.0 if name == "eps" else 1 if name == "rule" and "rows" in which else value
                 for name, value in zip(names, given, strict=True)]  # fmt: skip
        for name in ("count", "params", "frozen", "finite", "skipna", "by_column", "size", "left", "rows", "batches",
                     "typical", "skipped", "replace"):  # fmt: skip
            if name in names and rng.random() < 0.9:
                given[names.index(name)] = int(rng.integers(2))
        try:
            entry(*given)
            done[0] += 1
        except (TypeError, ValueError, AttributeError, FloatingPointError, IndexError):
            done[1] += 1
    return done


def test_no_entry_crashes():
    """In a process of its own, as a crash would end this one."""
    code = f"import json, sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}; import test_guards as t"
    done = child.run("-c", f"{code}; print(json.dumps({{name: t.call(name) for name in t.ENTRIES}}))")
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    never = {name for name, (succeeded, refused) in counts.items() if not (succeeded and refused)}
    assert never <= {f"bnorm.kernels.cpu.entries.{name}" for name in ("apart", "ready", "restored")}, counts
