"""An interrupt at any moment of a call that learns: the transformer goes on as from before the call, or as from after.

How it goes on shows what no attribute does: the rows of a window, exact sums, clocks, the places of groups.
"""

import copy
from functools import cache

import numpy as np
import pandas as pd
import pytest

from bnorm import BatchNormTransformer, GroupedTransformer
from interrupts import interrupted, moments

STREAMS = {
    "average": BatchNormTransformer(),
    "pooled": BatchNormTransformer(momentum=None),
    "half-life": BatchNormTransformer(halflife=7.0),
    "exact": BatchNormTransformer(momentum=None, exact=True),
    "window": BatchNormTransformer(window=30),
    "groups": GroupedTransformer("key"),
    "fading groups": GroupedTransformer("key", halflife=7.0),
}
CALLS = {
    "partial_fit": lambda t: t.partial_fit(frame(20, 2)),
    "weighted": lambda t: t.partial_fit(
        frame(20, 2), sample_weight=np.arange(20) % 4 / (1 if "exact" in repr(t) else 7)
    ),
    "fit": lambda t: t.fit(frame(25, 3).rename(columns={"b": "c"})),
    "merge": lambda t: t.merge(copy.deepcopy(t).fit(frame(15, 4))),
}


@cache
def frame(n, seed):
    """Rows of the seed's own groups and of others; made once, as nobody writes to them."""
    rng = np.random.default_rng(seed)
    x = pd.DataFrame(rng.normal(3.0, 2.0, (n, 2)), columns=["a", "b"])
    return x.assign(key=rng.choice([1.0, 2.0, 3.0, 10.0 + seed], n))


def goes_on(t):
    """All that can be seen after one batch more, with all digits."""
    x = frame(9, 5)
    t.partial_fit(x if list(t.feature_names_in_) == list(x) else x.rename(columns={"b": "c"}))
    names = [name for name in dir(t) if name.endswith("_") and not name.startswith("_") and name != "layer_"]
    found = {name: getattr(t, name) for name in names if hasattr(t, name)}
    if (whole := found.pop("whole_", None)) is not None:
        found |= {"mean": whole.mean, "var": whole.var(), "count": whole.count}
    found = {name: np.asarray(a) for name, a in found.items()}
    return {name: repr((a * 1.0 if a.dtype.kind == "i" else a).tolist()) for name, a in found.items()}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("stream", STREAMS)
def test_before_or_after(stream, call):
    first, learn = copy.deepcopy(STREAMS[stream]).fit(frame(60, 1)), CALLS[call]
    if call == "merge" and stream in {"average", "window"}:
        with pytest.raises(ValueError, match="merge"):
            learn(first)
        return
    before = goes_on(copy.deepcopy(first))
    after = goes_on(learn(copy.deepcopy(first)))
    assert before != after
    trial, seen = copy.deepcopy(first), []
    last = moments(lambda: learn(trial))
    for at in [*range(1, last - 30, 199), *range(max(1, last - 30), last + 1)]:  # all at the end, where states change
        t = copy.deepcopy(first)
        assert interrupted(lambda t=t: learn(t), at)
        seen.append(goes_on(t))
        assert seen[-1] in (before, after), at
    assert seen[0] == before and seen[-1] == after
