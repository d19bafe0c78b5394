"""Copies into shared memory on the emulator: what is right passes, in every order, and each planted bug is seen."""

import numpy as np
import pytest

from bnorm.kernels.gpu import launching
from cuda_on_cpu import building, nvrtc
from cuda_on_cpu.emulator import ORDERS, Emulator, EmulatorError
from emulated.device import of_the_emulator

pytestmark = of_the_emulator
PLANTED = (building.HERE / "fetched.cu").read_text(encoding="utf-8")
SOURCE = "\n".join((launching.source("clusters"), PLANTED))
UNDER_WAY = r"fetched.cu:.* reads what thread \d+ fetches at .*fetched.cu:.*, and has not waited for"
FOUND = {  # each bug, and what is said of it in every order; "wrong", a result
    "NO_WAIT": (None, "a thread ends, and has not waited for its copies"),
    "LATE_GROUP": (None, "wrong"),
    "NO_GROUP": (None, "a thread ends, and has not waited for its copies"),
    "TOO_EARLY": (None, "wrong"),
    "OF_ANOTHER": ("races", "a race in shared memory"),
    "NO_ROOM": (None, "a copy to .* is in no shared array of this block"),
    "SHIFTED": (None, "a copy from .* which 16 does not divide"),
    "TO_ITSELF": (None, "a copy to .* is in no shared array of this block"),
    "NOT_AWAITED": (None, "a thread ends, and has not waited for its copies"),
    "HINT": ("races", UNDER_WAY),
    "HINT_OF_OTHER": ("races", UNDER_WAY),
    "TWICE": ("races", r"fetched.cu:\d+ writes what thread \d+ fetches at fetched.cu:\d+, and has not waited for"),
    "CHANGED": ("races", "fetched.cu:.* writes to what is being fetched, and has not been waited for"),
}
TURNS = 3


def launched(sanitize, bug, order):
    emulator = Emulator(SOURCE, [f"fetched<{name}>" for name in ("NONE", *FOUND)], sanitize, "fetched.cu")
    values = np.arange(TURNS * 3 * 64 * 4).astype("f4")
    x, out = emulator.copy(values), emulator.empty(64, "f4")
    emulator.launch(f"fetched<{bug}>", (1,), (64,), 0, (x, out, np.int32(TURNS)), order)
    return np.array_equal(out, values.reshape(-1, 64, 4).sum((0, 2)))


@pytest.mark.parametrize("sanitize", [None, "races", "undefined"])
def test_what_is_right_passes(sanitize):
    assert all(launched(sanitize, "NONE", order) for order in (*ORDERS, 3, 4))


@pytest.mark.parametrize("bug", FOUND)
def test_what_is_wrong_is_seen(bug):
    sanitize, what = FOUND[bug]
    for order in (*ORDERS, 3, 4):
        if what == "wrong":
            assert not launched(sanitize, bug, order)
        else:
            with pytest.raises(EmulatorError, match=what):
                launched(sanitize, bug, order)


@pytest.mark.parametrize("bug", ["LATE_GROUP", "NO_WAIT", "NO_GROUP", "TOO_EARLY"])
def test_what_is_under_way_is_not_read(bug):
    """Not by the thread that fetches it either, whatever becomes of the results."""
    for order in (*ORDERS, 3, 4):
        with pytest.raises(EmulatorError, match=UNDER_WAY):
            launched("races", bug, order)


@pytest.mark.parametrize("bug", ["HINT", "HINT_OF_OTHER"])
def test_what_is_not_there_yet_is_a_number_in_some_orders(bug):
    """As on a device, which has an old one there: where NaN is left out, results of two orders differ."""
    assert launched(None, bug, 0)
    assert not launched(None, bug, 1)


def test_every_bug_is_looked_for():
    assert building.bugs_of(PLANTED) == set(FOUND)


@nvrtc.needs_nvrtc
def test_it_is_cuda():
    """On devices without such copies a thread loads and stores."""
    for arch in ("sm_75", "sm_80", "sm_90"):
        text = "\n".join((launching.source("rows"), PLANTED))
        assert not nvrtc.compile(text, ["fetched<NONE>"], arch)["fetched<NONE>"].spills
