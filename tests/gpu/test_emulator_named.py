"""Barriers with a name on the emulator: what is right passes, in every order, and each planted bug is seen."""

import numpy as np
import pytest

from bnorm.kernels.gpu import launching
from cuda_on_cpu import building, nvrtc
from cuda_on_cpu.emulator import ORDERS, Emulator, EmulatorError
from emulated.device import of_the_emulator

pytestmark = of_the_emulator
PLANTED = (building.HERE / "named.cu").read_text(encoding="utf-8")
SOURCE = "\n".join((launching.source("rows"), PLANTED))
FOREVER = "threads wait for each other forever .* at __named_barrier"
FOUND = {  # each bug, what looks for it, and what is said of it in every order
    "NO_MEETING": ("races", "a race in shared memory"),
    "ONE_HALF": ("races", "a race in shared memory"),
    "OF_ANOTHER": ("races", "a race in shared memory"),
    "ONE_NAME": (None, "threads meet at different barriers|more threads meet at a barrier than it is of"),
    "TWO_NAMES": (None, f"{FOREVER}.* name 1 of 64 threads"),
    "TOO_MANY": (None, f"{FOREVER}.* name 1 of 96 threads"),
    "EARLY_RETURN": (None, "a warp operation names a lane that has ended|" + FOREVER),
}
TURNS = 6


def launched(sanitize, bug, order):
    emulator = Emulator(SOURCE, [f"teams<{name}>" for name in ("NONE", *FOUND)], sanitize, "named.cu")
    values = np.arange(4 * TURNS * 64).astype("f8").reshape(4, TURNS, 64)
    x, out = emulator.copy(values), emulator.empty(4, "f8")
    emulator.launch(f"teams<{bug}>", (1,), (256,), 0, (x, out, np.int32(TURNS)), order)
    return np.array_equal(out, [values[team, : TURNS - team].sum() for team in range(4)])


@pytest.mark.parametrize("sanitize", [None, "races", "undefined"])
def test_what_is_right_passes(sanitize):
    assert all(launched(sanitize, "NONE", order) for order in (*ORDERS, 3, 4))


@pytest.mark.parametrize("bug", FOUND)
def test_what_is_wrong_is_seen(bug):
    sanitize, what = FOUND[bug]
    for order in (*ORDERS, 3, 4):
        with pytest.raises(EmulatorError, match=what):
            launched(sanitize, bug, order)


def test_every_bug_is_looked_for():
    assert building.bugs_of(PLANTED) == set(FOUND)


@nvrtc.needs_nvrtc
def test_it_is_cuda():
    for arch in ("sm_75", "sm_90"):
        assert not nvrtc.compile(SOURCE, ["teams<NONE>"], arch)["teams<NONE>"].spills
