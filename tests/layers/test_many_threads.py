"""Many Python threads at once, each with layers and transformers of its own in training and with some that all share in
eval mode: results are those of one thread. Without the GIL (Python 3.13t) nothing but this library keeps them apart."""

import pickle
import sys
import threading

import numpy as np
import pytest

import bnorm
import bnorm.functional as F

C = 8
TABLES = [
    np.random.default_rng(n).normal(3, 2, (n, C)).astype(kind) for n, kind in [(64, "f4"), (200, "f8"), (333, "f4")]
]


@pytest.fixture(scope="module")
def shared():
    """Objects that are only read."""
    bn, rn = bnorm.BatchNorm1d(C), bnorm.RunningNorm(C)
    for x in TABLES:
        bn(x), rn(x)
    x = TABLES[1]
    return (
        *(bn.eval(), rn.eval()),
        *(bnorm.BatchNormTransformer().fit(x), bnorm.GroupedTransformer(0).fit(x.round())),
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
    every, observed, transformer, groups = shared
    for _ in range(4):
        x = TABLES[rng.integers(len(TABLES))]
        dy, wide = rng.normal(size=x.shape).astype(x.dtype), x.astype("f8")
        y, pull = every.vjp(x)
        found += [bn(x), bn.backward(dy), ln(x), ln.backward(dy), y, pull(dy), every(x), observed(x)]
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
def test_results_are_those_of_one_thread(shared, tmp_path, threads):
    want = [results(seed, shared, tmp_path) for seed in range(6)]
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
