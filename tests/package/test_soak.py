"""A short soak: python -m benchmarks.soak runs for longer."""

import pytest
from benchmarks import soak

pytestmark = pytest.mark.bench


def test_a_short_soak(capsys):
    soak.main(["--scale", "0.002", "--minutes", "0.15"])
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == list(soak.PARTS)


@pytest.mark.skipif(not soak.heap(), reason="only glibc says how much of its heap is in use")
def test_growth_is_seen():
    kept = []
    assert soak.memory_of(lambda i: kept.append(bytearray(300_000)), 0.01)["C heap"] > soak.ALLOWED
    objects = soak.memory_of(lambda i: kept.extend({} for _ in range(3000)), 0.01)["Python's objects, at 64 bytes"]
    assert objects > soak.ALLOWED
