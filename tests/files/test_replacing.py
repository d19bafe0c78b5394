"""Files that are replaced in one step, by any number of writers at once."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bnorm
from bnorm.files import container

WRITERS = 4


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_threads_that_save_to_one_path(tmp_path):
    """A reader always finds a whole file of one of them, no writer fails, and nothing is left behind."""
    path = tmp_path / "t.safetensors"
    scalers = [bnorm.BatchNormTransformer(momentum=None).fit(np.eye(3) * (i + 1)) for i in range(WRITERS)]
    scalers[0].save(path)
    start, means = threading.Barrier(WRITERS + 1), []

    def work(save_or_load, times):
        start.wait()
        for _ in range(times):
            save_or_load()

    jobs = [(lambda t=t: t.save(path), 25) for t in scalers]
    jobs.append((lambda: means.append(bnorm.load(path).mean_[0]), 50))
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(work, *zip(*jobs, strict=True)))
    assert set(means) <= {t.mean_[0] for t in scalers}
    assert names(tmp_path) == ["t.safetensors"]


def test_writers_with_the_same_process_number(tmp_path, monkeypatch):
    """As two containers on one disk may have."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    path = tmp_path / "t.npz"
    with container.replacing(path) as first:
        first.write(b"first")
        with container.replacing(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["t.npz"]


@pytest.mark.parametrize("name", ["a" * 251 + ".npz", "ü" * 125 + ".npz"], ids=len)
def test_names_as_long_as_a_file_system_takes(tmp_path, name):
    t = bnorm.BatchNormTransformer().fit(np.eye(3))
    t.save(tmp_path / name)
    assert names(tmp_path) == [name]
    assert bnorm.load(tmp_path / name).n_samples_seen_ == 3


def test_a_state_is_on_the_disk_before_it_replaces_the_old_one(tmp_path, monkeypatch):
    """Else a machine that crashes then may be left with neither."""
    path, flushed = tmp_path / "t.npz", []
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append((os.fstat(number).st_size, path.exists())))
    bnorm.BatchNormTransformer().fit(np.eye(3)).save(path)
    assert flushed == [(path.stat().st_size, False)]
