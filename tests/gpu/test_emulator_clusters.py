"""Clusters on the emulator: what is right passes, in every order, and each planted bug is seen."""

import re

import numpy as np
import pytest

from cuda_on_cpu import building, nvrtc
from cuda_on_cpu.emulator import ORDERS, Emulator, EmulatorError, clusters
from emulated.device import of_the_emulator

pytestmark = of_the_emulator
SOURCE = (building.HERE / "clustered.cu").read_text(encoding="utf-8")
LABEL = "clustered.cu"
FOUND = {  # each bug, and what is said of it, in some order at least; with "races" in every one
    "NOT_STARTED": (None, r"block \d of the cluster may not have started"),
    "NO_BARRIER": ("races", r"a race in shared memory|block \d of the cluster has ended"),
    "RELAXED": ("races", "a race in shared memory"),
    "BETWEEN_PARTS": ("races", "memory is used between the two parts of a cluster's barrier"),
    "ARRIVE_TWICE": (None, "arrives at a cluster's barrier once more"),
    "NOT_ARRIVED": (None, "waits at a cluster's barrier, and has not arrived"),
    "LEAVES": (None, "threads wait at a cluster's barrier that others will never reach"),
    "NINTH": (None, "block 4 of a cluster of 4"),
    "SAME_PLACE": ("races", "a race in shared memory: .* what thread \\d of another block wrote"),
    "PAST": (None, r"something was written behind shared array sums \(16 bytes\)"),
    "TOO_LATE": (None, r"block \d of the cluster has ended"),
}


def launched(sanitize, bug, order, **options):
    names = [f"clustered<{name}>" for name in ("NONE", *FOUND)]
    emulator = Emulator(SOURCE, names, sanitize, LABEL)
    x = emulator.copy((np.arange(3 * 4 * 64) % 32 // 16).astype("f4"))
    out = emulator.empty((3, 4), "f4")
    emulator.launch(f"clustered<{bug}>", (3, 4), (64,), 0, (x, out), order, **options)
    return out


@pytest.mark.parametrize("sanitize", [None, "races", "undefined"])
def test_what_is_right_passes(sanitize):
    for order in (*ORDERS, 3, 4, 5):
        np.testing.assert_array_equal(launched(sanitize, "NONE", order), np.full((3, 4), 64))


@pytest.mark.parametrize("bug", FOUND)
def test_what_is_wrong_is_seen(bug):
    sanitize, what = FOUND[bug]
    seen = []
    for order in (*ORDERS, 3, 4, 5):
        try:
            launched(sanitize, bug, order)
        except EmulatorError as error:
            seen.append(str(error))
            assert re.search(what, str(error)), error
    assert len(seen) == 6 if bug != "TOO_LATE" else seen


def test_every_bug_is_looked_for():
    assert building.bugs_of(SOURCE) == set(FOUND)


def test_clusters_are_launched_whole():
    assert clusters(SOURCE) == {"clustered": (1, 4, 1)}
    with pytest.raises(EmulatorError, match="a cluster of 4 blocks, and room for 3"):
        launched(None, "NONE", 0, resident=3)
    with pytest.raises(EmulatorError, match="only a part of a cluster"):
        launched(None, "NONE", 0, only=[0, 3, 6])
    assert np.isfinite(launched(None, "NONE", 0, only=[1, 4, 7, 10])[1]).all()
    emulator = Emulator(SOURCE, ["clustered<NONE>"], None, LABEL)
    with pytest.raises(EmulatorError, match="expected whole clusters"):
        emulator.launch("clustered<NONE>", (3, 6), (64,), 0, (emulator.empty(1, "f4"), emulator.empty(1, "f4")))
    nine = SOURCE.replace("__cluster_dims__(1, 4, 1)", "__cluster_dims__(3, 3)")
    emulator = Emulator(nine, ["clustered<NONE>"], None, LABEL)
    with pytest.raises(EmulatorError, match="at most 8 blocks"):
        emulator.launch("clustered<NONE>", (3, 3), (64,), 0, (emulator.empty(1, "f4"), emulator.empty(1, "f4")))


@nvrtc.needs_nvrtc
def test_it_is_cuda():
    """The words that stand for clusters are those of CUDA's compiler, which has them for sm_90 and newer."""
    usage = nvrtc.compile(SOURCE, ["clustered<NONE>"], "sm_90")["clustered<NONE>"]
    assert not usage.spills
    with pytest.raises(nvrtc.CompileError, match="not supported"):
        nvrtc.compile(SOURCE, ["clustered<NONE>"], "sm_80")
