"""What blocks of a cluster store into each other, on the emulator: what is right passes, and each bug is seen."""

import re

import numpy as np
import pytest

from bnorm.kernels.gpu import launching
from cuda_on_cpu import building, nvrtc
from cuda_on_cpu.emulator import ORDERS, Emulator, EmulatorError
from emulated.device import of_the_emulator

pytestmark = of_the_emulator
TEXT = (building.HERE / "telling.cu").read_text(encoding="utf-8")
SOURCE = launching.source("clusters") + TEXT
LABEL = "telling.cu"
RACE = "a race in shared memory"
EARLY = "a block ends, and has not waited for what others store|arrives at a counting barrier of 1 once more"
FOUND = {  # each bug, and what is said of it; with "races" in every order
    "NOT_WAITED": ("races", f"{RACE}|{EARLY}"),
    "OTHER_PHASE": ("races", f"{RACE}|{EARLY}"),
    "TOO_FEW_BYTES": ("races", f"{RACE}|{EARLY}|nothing changes"),
    "TOO_MANY_BYTES": (None, "every thread that is left spins, and nothing changes"),
    "EXPECTED_TWICE": (None, "arrives at a counting barrier of 1 once more"),
    "NOT_MADE": (None, "a counting barrier at .*, which nobody has made"),
    "NOT_MET": (None, r"block \d of the cluster may not have"),
    "ONE_PLACE": ("races", RACE),
    "WARP_APART": ("races", RACE),
    "OF_MEMORY": ("races", "a race in device memory"),
    "ENDS_EARLY": (None, rf"{EARLY}|block \d of the cluster has ended"),
}
EVERY = (*ORDERS, 3, 4, 5)
SOMETIMES = {"TOO_FEW_BYTES", "WARP_APART"}  # seen in some orders only


def launched(sanitize, bug, order):
    emulator = Emulator(SOURCE, [f"telling<{name}>" for name in ("ALL_RIGHT", *FOUND)], sanitize, LABEL)
    x = emulator.copy(np.arange(3 * 8 * 5) % 7 + 0.5)
    out, free = emulator.empty((3, 8), "f8"), emulator.empty((3, 8), "f8")
    emulator.launch(f"telling<{bug}>", (3, 8), (64,), 0, (x, out, free), order)
    return out, x.reshape(3, 40).sum(1, keepdims=True)


@pytest.mark.parametrize("sanitize", [None, "races", "undefined"])
def test_what_is_right_passes(sanitize):
    for order in EVERY:
        got, want = launched(sanitize, "ALL_RIGHT", order)
        np.testing.assert_array_equal(got, np.broadcast_to(want, got.shape))


@pytest.mark.parametrize("bug", FOUND)
def test_what_is_wrong_is_seen(bug):
    sanitize, what = FOUND[bug]
    seen = []
    for order in EVERY:
        try:
            launched(sanitize, bug, order)
        except EmulatorError as error:
            seen.append(str(error))
            assert re.search(what, str(error)), error
    assert len(seen) == len(EVERY) if bug not in SOMETIMES else seen


@pytest.mark.parametrize("bug", ["NOT_WAITED", "OTHER_PHASE"])
def test_what_is_not_waited_for_is_poison(bug):
    """Without looking for races: nobody finds a sum who does not wait, in the orders that are not shuffled."""
    for order in (0, 1):
        try:
            got, _ = launched(None, bug, order)
        except EmulatorError as error:
            assert re.search(EARLY, str(error)), error
        else:
            assert np.isnan(got).any()


def test_every_bug_is_looked_for():
    assert building.bugs_of(TEXT) == set(FOUND)


@nvrtc.needs_nvrtc
def test_it_is_cuda():
    usage = nvrtc.compile(SOURCE, ["telling<ALL_RIGHT>"], "sm_90", launching.OPTIONS)["telling<ALL_RIGHT>"]
    assert not usage.spills
