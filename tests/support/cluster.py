"""Functions that test_cluster.py runs in another process, on two workers: `python cluster.py NAME` calls one."""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context

import bnorm
import bnorm.functional as F
from bnorm.distributed import dask as blocks

X = np.random.default_rng(0).standard_normal((4000, 5)) * [1, 2, 3, 4, 5] + [0, 1, -5, 1e3, 1e6]


def same(t, want):
    assert (np.abs(t.mean_ - want.mean_) <= 1e-12 * want.scale_ + np.spacing(np.abs(want.mean_))).all()
    assert (np.abs(t.var_ - want.var_) <= 1e-12 * want.var_).all()
    np.testing.assert_array_equal(t.n_samples_seen_, want.n_samples_seen_)


def results():
    """Arrays and frames have the statistics and results of the same table in memory, and the bits of any scheduler."""
    lazy = da.from_array(X, chunks=(300, 5))
    frame = dd.from_pandas(pd.DataFrame(X, columns=list("abcde")), npartitions=9)
    for mode, table in (({"momentum": None}, lazy), ({"halflife": 300.0}, frame)):
        t = bnorm.BatchNormTransformer(**mode).partial_fit(table)
        same(t, bnorm.BatchNormTransformer(**mode).partial_fit(X if table is lazy else table.compute()))
        np.testing.assert_array_equal(t.transform(table).compute(), t.transform(table.compute()))
        with dask.config.set(scheduler="synchronous"):
            again = bnorm.BatchNormTransformer(**mode).partial_fit(table)
        assert again.mean_.tobytes() + again.var_.tobytes() == t.mean_.tobytes() + t.var_.tobytes()
    moments = F.moments(lazy)
    with dask.config.set(scheduler="synchronous"):
        assert F.moments(lazy) == moments


def worker_killed():
    """A worker dies in the middle of a fit. The blocks that it had computed are computed again, and count once."""
    with TemporaryDirectory() as folder:
        mark = Path(folder) / "killed"

        def load(i):
            if i == 9 and not mark.exists():
                mark.touch()
                os._exit(1)  # ends the whole worker
            return X[200 * i : 200 * i + 200]

        parts = [da.from_delayed(dask.delayed(load)(i), (200, 5), float) for i in range(20)]
        t = bnorm.BatchNormTransformer(momentum=None).fit(da.concatenate(parts))
        assert mark.exists()
        same(t, bnorm.BatchNormTransformer(momentum=None).fit(X))
        assert t.n_batches_seen_ == 1


def kernel_threads():
    """A block has one kernel thread, whatever number the worker has set."""
    bnorm_threads = blocks.blocks_of(lambda block: bnorm.get_num_threads(), da.from_array(X, chunks=(300, 5)), (1,))[0]
    Client.current().run(bnorm.set_num_threads, 3)
    assert set(dask.compute(*bnorm_threads)) == {1}


if __name__ == "__main__":
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})  # it imports once for all workers
    once = ["distributed", "dask.dataframe", "bnorm.distributed.dask", "bnorm.transformer.estimator"]
    get_mp_context().set_forkserver_preload(once)
    here = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit="1GB", processes=True)
    with here, Client(here):
        for name in sys.argv[1:]:
            globals()[name]()
            print(name)
