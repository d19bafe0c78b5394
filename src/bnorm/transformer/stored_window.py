"""The rows of a window in a file, in the same chunks as in memory, so that the stream goes on with the same bits."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.transformer import ropes
from bnorm.transformer.window import BEFORE_ALL, KEPT, Newest, Rows, Window, joined, leaf_of, merged

ARRAYS = {"window_x": "x", "window_times": "ns", "window_weights": "weight"}


def stored(window: Window) -> tuple[dict[str, Any], dict[str, ndarray]]:
    """Return the entry of the configuration and the arrays, without rows that have left the window."""
    pieces = list(window.rows())
    if not pieces:
        return {"chunks": []}, {}
    chunks = [[len(rows), str(rows.x.dtype)] for rows in pieces]
    config = {
        "chunks": chunks,
        "oldest": window.oldest is not None,
        "shape": ropes.shape(window.chunks),
        "latest": window.latest,
    }
    whole = joined(pieces)
    arrays = {name: getattr(whole, attribute) for name, attribute in ARRAYS.items()}
    return config, {name: a for name, a in arrays.items() if a is not None}


def restored(window: Window, config: Any, arrays: Mapping[str, ndarray], features: int) -> Window:
    """Return the window of a file, with the settings of an empty one; ValueError if the file has no valid window."""
    if config == {"chunks": []} and not arrays:
        return window
    lengths, types = [n for n, _ in config["chunks"]], [np.dtype(name) for _, name in config["chunks"]]
    shape, latest, left = config["shape"], config["latest"], config["oldest"]
    n, timed = sum(lengths), window.span is not None
    x, ns, weight = (arrays.get(name) for name in ARRAYS)
    good = all(type(number) is int for number in (*lengths, latest)) and min(lengths) > 0 and set(types) <= KEPT
    good = good and type(left) is bool and type(shape) is str
    good = good and x is not None and x.shape == (n, features) and x.dtype in KEPT and not np.isinf(x).any()
    good = good and (ns is None) != timed and (window.size is None or n <= window.size)
    if ns is None:
        good = good and latest == BEFORE_ALL
    else:
        good = good and ns.shape == (n,) and ns.dtype == np.int64 and bool((ns[1:] >= ns[:-1]).all())
        good = good and int(ns[-1]) == latest and int(ns[0]) >= latest - (window.span or 0)
    if weight is not None:
        good = good and weight.shape == (n,) and weight.dtype == np.float64
        good = good and bool((np.isfinite(weight) & (weight >= 0)).all())
    if not good or x is None:
        raise ValueError(f"window: {n} rows in {len(lengths)} chunks")
    ends = np.cumsum(lengths).tolist()
    pieces = []
    for start, stop, dtype in zip([0, *ends], ends, types, strict=False):
        of = [None if a is None else a[start:stop] for a in (ns, weight)]
        pieces.append(Rows(x[start:stop].astype(dtype), *of).copy())
    *old, last = pieces
    oldest = old.pop(0) if left else None
    chunks = ropes.built(shape, [leaf_of(rows) for rows in old])
    held = n if window.size is not None else 0
    state = oldest, chunks, Newest(last, len(last)), 0, len(last), held, latest
    return Window(window.size, window.span, *state, merged(oldest, chunks, last))
