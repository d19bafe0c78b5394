"""Many Python threads at once, each with layers and transformers of its own in training and with some that all share in
eval mode: results are those of one thread. Without the GIL (Python 3.13t) nothing but this library keeps them apart.

What is made when it is first asked for, and what is remembered of the last array, is shared too.
"""

import pickle
import sys
import threading
from functools import partial

import numpy as np
import pytest

import bnorm
import bnorm.functional as F

C = 8
TABLES = [
    np.random.default_rng(n).normal(3, 2, (n, C)).astype(kind) for n, kind in [(64, "f4"), (200, "f8"), (333, "f4")]
]


def objects():
    """That are only read. Nobody has read them yet."""
    bn, rn = bnorm.BatchNorm1d(C), bnorm.RunningNorm(C)
    for x in TABLES:
        bn(x), rn(x)
    x = TABLES[1]
    return (
        *(bn.eval(), rn.eval()),
        *(bnorm.BatchNormTransformer(affine=True).fit(x), bnorm.GroupedTransformer(0).fit(x.round())),
        *(bnorm.LayerNorm(C, dtype="float32"), F.moments(x, exact=True)),
    )


def results(seed, shared, folder):
    """The bytes of all that a thread computes."""
    rng, found = np.random.default_rng(seed), []
    bn, ln = bnorm.BatchNorm1d(C, momentum=None), bnorm.LayerNorm(C)
    learners = [
        bnorm.BatchNormTransformer(**way)
        for way in ({"momentum": None, "exact": True}, {"window": 20}, {"halflife": 5.0})
    ]
    grouped = bnorm.GroupedTransformer(0)
    every, observed, transformer, groups, rows, exact = shared
    for _ in range(4):
        x = TABLES[rng.integers(len(TABLES))]
        dy, wide = rng.normal(size=x.shape).astype(x.dtype), x.astype("f8")
        y, pull = every.vjp(x)
        found += [bn(x), bn.backward(dy), ln(x), ln.backward(dy), y, pull(dy), every(x), observed(x)]
        with bnorm.no_backward():  # each array has another layout than the one before
            found += [norm(a) for a in (x, np.asfortranarray(x), x[1:], x[::-1]) for norm in (every, rows)]
        found += [exact.mean, exact.var(), (exact + F.moments(x, exact=True)).m2, transformer.gamma_]
        y, saved = F.batch_norm(x, activation="relu")
        found += [y, F.backward(dy, saved)[0], F.moments(x, exact=True).mean, F.moments(x).m2]
        found += [t.partial_fit(wide).var_ for t in learners]
        found += [grouped.partial_fit(wide.round()).means_, transformer.transform(wide), groups.transform(wide.round())]
        bn.save(folder / f"{threading.get_ident()}.npz")
        for copied in (pickle.loads(pickle.dumps(bn)), bnorm.load(folder / f"{threading.get_ident()}.npz")):
            found.append(copied.running_var)
        with bn.frozen_stats(), bnorm.no_backward():
            found.append(bn(x))
    return b"".join(np.ascontiguousarray(a).tobytes() for a in found)


@pytest.mark.parametrize("threads", [1, 2], ids="OpenMP's: {}".format)
def test_results_are_those_of_one_thread(tmp_path, threads):
    want = [results(seed, objects(), tmp_path) for seed in range(6)]
    shared = objects()
    got, gate = {}, threading.Barrier(6)
    before, interval = bnorm.get_num_threads(), sys.getswitchinterval()

    def work(first):
        gate.wait()
        for seed in range(first, first + 3):
            got[first, seed] = results(seed % 6, shared, tmp_path) == want[seed % 6]

    bnorm.set_num_threads(threads)
    sys.setswitchinterval(1e-5)  # seconds after which another thread's turn has come
    try:
        started = [threading.Thread(target=work, args=(first,)) for first in range(6)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    finally:
        bnorm.set_num_threads(before)
        sys.setswitchinterval(interval)
    assert len(got) == 18 and all(got.values()), got


@pytest.mark.parametrize("make", [bnorm.BatchNorm1d, bnorm.LayerNorm, partial(bnorm.GroupNorm, 2)])
def test_what_a_layer_remembers_of_the_last_array_may_be_of_another_thread(make):
    layer, x = make(C).eval(), np.random.default_rng(0).normal(size=(C, C, C))
    arrays = [x, np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1), x[:5], x]
    gate, equal = threading.Barrier(4), []

    def work(a):
        with bnorm.no_backward():
            want = make(C).eval()(a)
            gate.wait()
            found = [layer(a) for _ in range(2000)]
        equal.extend(y.strides == want.strides and np.array_equal(y, want) for y in found)

    started = [threading.Thread(target=work, args=(a,)) for a in arrays]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert len(equal) == 4 * 2000 and all(equal)
