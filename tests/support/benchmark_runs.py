"""What the tests of the benchmarks share: little effort, and a library in this process."""

import pytest
from benchmarks import adapters, copying, timing

BRIEF = timing.Effort(processes=2, rounds=2, least=1, budget=1.0, sample=1e-5, samples=1, pause=0.0, warm_up=0.0)


def local(name):
    """A library in this process, if it is installed."""
    try:
        return timing.Local(name).ready()
    except adapters.Missing as reason:
        pytest.skip(f"{name}: {reason}")


def copy_little(monkeypatch):
    monkeypatch.setattr(copying.Copy.__init__, "__defaults__", (1 << 16,))
    monkeypatch.setattr(copying, "STEADY", 0.0)


@pytest.fixture(autouse=True)
def small_copies(monkeypatch):
    copy_little(monkeypatch)
