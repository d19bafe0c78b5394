"""Endurance: `python -m benchmarks.soak [--minutes 20] [--scale 1.0] [PART ...]`.

    memory    calls of every kind for this many minutes: Python's objects, the C heap and the buffers of large results
              grow by no more than 1 MB over the last half
    drift     100,000 partial_fit calls of data that drift, against exact sums and against long double
    window    a window that slides over 10,000,000 rows, against fresh fits of the rows in it
    groups    1,000,000 groups that come and go, against the rows of some of them

It ends with an error if a part is outside its bounds. --scale multiplies all numbers except the minutes.
"""

import copy
import ctypes
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import bnorm
import bnorm.functional as F
from bnorm.kernels.cpu import buffers

from .options import parser

ALLOWED = 1 << 20  # bytes of growth over the last half
SAMPLES = 40
LEAST = 3  # calls of a sample: on a slow machine, too, all sizes have come once when the last half begins


FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()


class Heap(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in FIELDS)


def heap() -> int:
    """Return the bytes of the C heap in use; 0 if they are not known."""
    try:
        info = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return 0
    info.restype = Heap
    found = info()
    return int(found.uordblks + found.hblkhd)


def memory_of(scene: Callable[[int], None], seconds: float) -> dict[str, int]:
    """Return how much each kind of memory has grown over the last half of the time, and the number of calls."""
    begun, i, found = time.monotonic(), 0, []
    while time.monotonic() - begun < seconds or len(found) < SAMPLES:
        until, least = begun + seconds * (len(found) + 1) / SAMPLES, LEAST * (len(found) + 1)
        while i < least or time.monotonic() < until:
            scene(i)
            i += 1
        gc.collect()
        found.append((sys.getallocatedblocks() * 64, heap(), buffers.kept_bytes()))
    half = np.array(found[len(found) // 2 :])
    grown = half[-4:].min(0) - half[:4].max(0)
    return dict(zip(["Python's objects, at 64 bytes", "C heap", "buffers"], grown.tolist(), strict=True)) | {"calls": i}


def everyday(folder: Path) -> Callable[[int], None]:
    """Return a function that makes one round of calls of every kind. What it keeps is bounded."""
    rng = np.random.default_rng(0)
    nets = [bnorm.BatchNorm1d(16, momentum=None), bnorm.LayerNorm(16), bnorm.GroupNorm(4, 16), bnorm.RMSNorm(16)]
    rn, window = bnorm.RunningNorm(16, halflife=100.0), bnorm.BatchNormTransformer(window=500)
    stream = bnorm.BatchNormTransformer(halflife=50.0, history=20)
    groups = bnorm.GroupedTransformer(0)

    def scene(i: int) -> None:
        x = rng.normal(3.0, 2.0, (int(rng.integers(2, 400)), 16)).astype(["f4", "f8", "f2"][i % 3])
        for layer in nets:
            layer.backward(layer(x) * np.asarray(0.5, x.dtype))
            layer.zero_grad()
        large = np.resize(x, (3000 + i % 50 * 20, 256))  # its results come from the buffers
        F.backward(*F.batch_norm(large))
        rn(x)
        for t in (window, stream):
            t.partial_fit(x)
            t.transform(x)
        groups.partial_fit(np.column_stack([rng.integers(0, 50, len(x)), x[:, :2]]))
        whole = F.moments(x, exact=True)
        assert (whole + whole) - whole == whole
        copy.deepcopy(stream).merge(stream)
        for bad in (x[:, :3], np.full_like(x, np.inf)):
            try:
                stream.partial_fit(bad)
            except ValueError:
                continue
            raise AssertionError("expected an error")
        if i % 20 == 0:
            for name, one in (("s.npz", stream), ("g.safetensors", groups), ("l.npz", nets[0])):
                one.save(folder / name)
                bnorm.load(folder / name)

    return scene


def memory(scale: float, minutes: float) -> None:
    with TemporaryDirectory() as folder:
        grown = memory_of(everyday(Path(folder)), 60 * minutes)
    calls = grown.pop("calls")
    said = ", ".join(f"{name} {bytes_ / 1e6:+.2f} MB" for name, bytes_ in grown.items())
    print(f"memory: {calls:,} rounds in {minutes:g} minutes; over the last half {said}", flush=True)
    if worst := [name for name, bytes_ in grown.items() if bytes_ > ALLOWED]:
        raise SystemExit(f"memory: expected no growth of more than 1 MB, got it of {', '.join(worst)}")


def within(part: str, t: Any, mean: Any, var: Any) -> float:
    """Return the largest error: of means in standard deviations, of variances relative to them. 1e-11 is allowed."""
    errors = [np.abs(t.mean_ - mean) / np.sqrt(var), np.abs(t.var_ - var) / var]
    worst = float(np.max(errors))
    if not worst <= 1e-11:
        raise SystemExit(f"{part}: expected errors of at most 1e-11, got {worst:.2g}")
    return worst


def drift(scale: float, minutes: float) -> None:
    batches, rows, half = max(100, int(100_000 * scale)), 16, 2000.0
    rng = np.random.default_rng(1)
    pooled, fading = bnorm.BatchNormTransformer(momentum=None), bnorm.BatchNormTransformer(halflife=half)
    sums: Any = 0
    level, count, mean, m2 = np.zeros(3), np.longdouble(0), np.zeros(3, np.longdouble), np.zeros(3, np.longdouble)
    w = np.exp2(-np.arange(rows - 1, -1, -1, dtype=np.longdouble) / half)[:, None]
    worst = 0.0
    for i in range(1, batches + 1):
        level += rng.normal([0.0, 0.0, 10.0], [0.0, 1.0, 100.0], 3)
        x = rng.normal(level, [1.0, 1e-3, 10.0], (rows, 3))
        pooled.partial_fit(x)
        fading.partial_fit(x)
        sums = sums + F.moments(x, exact=True)
        faded, wide = np.exp2(np.longdouble(-rows / half)), x.astype(np.longdouble)
        own, own_mean = w.sum(), (w * wide).sum(0) / w.sum()
        count, gap = faded * count, own_mean - mean
        m2 = faded * m2 + (w * (wide - own_mean) ** 2).sum(0) + gap**2 * count * own / (count + own)
        mean, count = mean + gap * own / (count + own), count + own
        if i % (batches // 10) == 0:
            worst = max(
                worst, within("drift", pooled, sums.mean, sums.var()), within("drift", fading, mean, m2 / count)
            )
    print(f"drift: {batches:,} batches, errors up to {worst:.1g}", flush=True)


def window(scale: float, minutes: float) -> None:
    size, rows, total = 1000, 250, max(20_000, int(10_000_000 * scale))
    rng, worst = np.random.default_rng(2), 0.0
    t, last = bnorm.BatchNormTransformer(window=size), np.empty((0, 3))
    for i in range(total // rows):
        x = rng.normal([0.0, i, 1e6 + i], [1.0, 1.0, 1e-2], (rows, 3))
        t.partial_fit(x)
        last = np.r_[last, x][-size:]
        if i % max(1, total // rows // 50) == 0:
            m = F.moments(last, exact=True)
            worst = max(worst, within("window", t, m.mean, m.var()))
    print(f"window: {total:,} rows, errors up to {worst:.1g}", flush=True)


def groups(scale: float, minutes: float) -> None:
    total, rows = max(1000, int(1_000_000 * scale)), 4000
    rng, t, kept = np.random.default_rng(3), bnorm.GroupedTransformer(0), {}
    batches = 2 * total // rows
    for i in range(batches):
        newest = min(total, (i + 1) * rows // 2)
        keys = np.r_[np.arange(max(0, newest - rows // 2), newest), rng.integers(0, newest, rows // 2)]
        x = rng.normal(1e3, 1.0, len(keys)) + keys
        t.partial_fit(np.column_stack([keys, x]))
        for key, value in zip(keys, x, strict=True):
            if key % 997 == 0:
                kept.setdefault(int(key), []).append(value)
    at = {int(key): i for i, key in enumerate(t.groups_) if key % 997 == 0}
    assert len(t.groups_) == min(total, batches * rows // 2)
    assert at.keys() == kept.keys()
    worst = 0.0
    for key, values in kept.items():
        m = F.moments(np.array(values)[:, None], exact=True)
        assert t.counts_[at[key], 0] == len(values)
        errors = abs(t.means_[at[key], 0] - m.mean[0]) / 1e3, abs(t.vars_[at[key], 0] - m.var()[0])
        worst = max(worst, *map(float, errors))
    if not worst <= 1e-9:
        raise SystemExit(f"groups: expected errors of at most 1e-9, got {worst:.2g}")
    print(f"groups: {len(t.groups_):,} groups, errors up to {worst:.1g}", flush=True)


PARTS = {part.__name__: part for part in (memory, drift, window, groups)}


def main(given: list[str] | None = None) -> None:
    program = parser("soak", __doc__)
    program.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; by default all")
    program.add_argument("--minutes", type=float, default=20.0)
    program.add_argument("--scale", type=float, default=1.0)
    asked = program.parse_args(given)
    if unknown := set(asked.parts) - set(PARTS):
        program.error(f"expected parts of {', '.join(PARTS)}, got {', '.join(unknown)}")
    for name in asked.parts or PARTS:
        PARTS[name](asked.scale, asked.minutes)


if __name__ == "__main__":
    main()
