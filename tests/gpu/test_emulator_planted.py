"""Kernels with planted bugs on the emulator: what is right passes, in every order, and each bug is seen."""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from bnorm.kernels.gpu import launching
from cuda_on_cpu import building, nvrtc
from cuda_on_cpu.emulator import ORDERS, Emulator, EmulatorError, clusters
from emulated.device import of_the_emulator

pytestmark = of_the_emulator
EVERY = (*ORDERS, 3, 4, 5)
RACE = "a race in shared memory"
ENDS = "a thread ends, and has not waited for its copies"
NOWHERE = "a copy to .* is in no shared array of this block"
UNDER_WAY = r"fetched.cu:.* reads what thread \d+ fetches at .*fetched.cu:.*, and has not waited for"
FOREVER = "threads wait for each other forever .* at __named_barrier"
EARLY = "a block ends, and has not waited for what others store|arrives at a counting barrier of 1 once more"
FETCHED = {  # each bug, what looks for it, and what is said of it in every order; "wrong", a result
    "NO_WAIT": (None, ENDS),
    "LATE_GROUP": (None, "wrong"),
    "NO_GROUP": (None, ENDS),
    "TOO_EARLY": (None, "wrong"),
    "OF_ANOTHER": ("races", RACE),
    "NO_ROOM": (None, NOWHERE),
    "SHIFTED": (None, "a copy from .* which 16 does not divide"),
    "TO_ITSELF": (None, NOWHERE),
    "NOT_AWAITED": (None, ENDS),
    "HINT": ("races", UNDER_WAY),
    "HINT_OF_OTHER": ("races", UNDER_WAY),
    "TWICE": ("races", r"fetched.cu:\d+ writes what thread \d+ fetches at fetched.cu:\d+, and has not waited for"),
    "CHANGED": ("races", "fetched.cu:.* writes to what is being fetched, and has not been waited for"),
}
NAMED = {
    "NO_MEETING": ("races", RACE),
    "ONE_HALF": ("races", RACE),
    "OF_ANOTHER": ("races", RACE),
    "ONE_NAME": (None, "threads meet at different barriers|more threads meet at a barrier than it is of"),
    "TWO_NAMES": (None, f"{FOREVER}.* name 1 of 64 threads"),
    "TOO_MANY": (None, f"{FOREVER}.* name 1 of 96 threads"),
    "EARLY_RETURN": (None, "a warp operation names a lane that has ended|" + FOREVER),
}
CLUSTERED = {
    "NOT_STARTED": (None, r"block \d of the cluster may not have started"),
    "NO_BARRIER": ("races", rf"{RACE}|block \d of the cluster has ended"),
    "RELAXED": ("races", RACE),
    "BETWEEN_PARTS": ("races", "memory is used between the two parts of a cluster's barrier"),
    "ARRIVE_TWICE": (None, "arrives at a cluster's barrier once more"),
    "NOT_ARRIVED": (None, "waits at a cluster's barrier, and has not arrived"),
    "LEAVES": (None, "threads wait at a cluster's barrier that others will never reach"),
    "NINTH": (None, "block 4 of a cluster of 4"),
    "SAME_PLACE": ("races", RACE + ": .* what thread \\d of another block wrote"),
    "PAST": (None, r"something was written behind shared array sums \(16 bytes\)"),
    "TOO_LATE": (None, r"block \d of the cluster has ended"),
}
TELLING = {
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
SOMETIMES = {"TOO_LATE", "TOO_FEW_BYTES", "WARP_APART"}  # seen in some orders only


class Planted(NamedTuple):
    """A text with a kernel of this name, which has one bug or none. beside: the family whose source comes before it."""

    label: str
    kernel: str
    found: dict[str, tuple[str | None, str]]
    run: Callable[..., tuple[np.ndarray, object]]  # of an emulator and launch(*args): what comes out, and what should
    beside: str | None = None
    right: str = "NONE"

    @property
    def text(self):
        return (building.HERE / self.label).read_text(encoding="utf-8")

    def source(self, beside=None):
        family = beside or self.beside
        return (launching.source(family) + "\n" if family else "") + self.text

    def launched(self, sanitize, bug, order, **options):
        """What comes out, and what should."""
        names = [f"{self.kernel}<{name}>" for name in (self.right, *self.found)]
        emulator = Emulator(self.source(), names, sanitize, self.label)

        def launch(grid, threads, *args):
            emulator.launch(f"{self.kernel}<{bug}>", grid, (threads,), 0, args, order, **options)

        return self.run(emulator, launch)

    def outcomes(self, sanitize, bug):
        """For each order whether the result is right, or the error."""
        found = []
        for order in EVERY:
            try:
                found.append(np.array_equal(*self.launched(sanitize, bug, order)))
            except EmulatorError as error:
                found.append(str(error))
        return found


def fetched(emulator, launch):
    values = np.arange(3 * 3 * 64 * 4).astype("f4")
    x, out = emulator.copy(values), emulator.empty(64, "f4")
    launch((1,), 64, x, out, np.int32(3))
    return out, values.reshape(-1, 64, 4).sum((0, 2))


def teams(emulator, launch):
    values = np.arange(4 * 6 * 64).astype("f8").reshape(4, 6, 64)
    x, out = emulator.copy(values), emulator.empty(4, "f8")
    launch((1,), 256, x, out, np.int32(6))
    return out, [values[team, : 6 - team].sum() for team in range(4)]


def clustered(emulator, launch):
    x = emulator.copy((np.arange(3 * 4 * 64) % 32 // 16).astype("f4"))
    out = emulator.empty((3, 4), "f4")
    launch((3, 4), 64, x, out)
    return out, np.full((3, 4), 64)


def telling(emulator, launch):
    x = emulator.copy(np.arange(3 * 8 * 5) % 7 + 0.5)
    out, free = emulator.empty((3, 8), "f8"), emulator.empty((3, 8), "f8")
    launch((3, 8), 64, x, out, free)
    return out, np.repeat(x.reshape(3, 40).sum(1, keepdims=True), 8, 1)


COPIES = Planted("fetched.cu", "fetched", FETCHED, fetched, "clusters")
BARRIERS = Planted("named.cu", "teams", NAMED, teams, "rows")
IN_CLUSTERS = Planted("clustered.cu", "clustered", CLUSTERED, clustered)
MESSAGES = Planted("telling.cu", "telling", TELLING, telling, "clusters", "ALL_RIGHT")
ALL = (COPIES, BARRIERS, IN_CLUSTERS, MESSAGES)
BUGS = [(planted, bug) for planted in ALL for bug in planted.found]


@pytest.mark.parametrize("sanitize", [None, "races", "undefined"])
@pytest.mark.parametrize("planted", ALL, ids=lambda planted: planted.kernel)
def test_what_is_right_passes(planted, sanitize):
    assert planted.outcomes(sanitize, planted.right) == [True] * len(EVERY)


@pytest.mark.parametrize(("planted", "bug"), BUGS, ids=[f"{planted.kernel}-{bug}" for planted, bug in BUGS])
def test_what_is_wrong_is_seen(planted, bug):
    sanitize, what = planted.found[bug]
    seen = planted.outcomes(sanitize, bug)
    if what == "wrong":
        assert seen == [False] * len(EVERY)
        return
    errors = [one for one in seen if isinstance(one, str)]
    assert all(re.search(what, error) for error in errors), errors
    assert errors if bug in SOMETIMES else len(errors) == len(EVERY)


@pytest.mark.parametrize("planted", ALL, ids=lambda planted: planted.kernel)
def test_every_bug_is_looked_for(planted):
    assert building.bugs_of(planted.text) == set(planted.found)


@pytest.mark.parametrize("bug", ["LATE_GROUP", "NO_WAIT", "NO_GROUP", "TOO_EARLY"])
def test_what_is_under_way_is_not_read(bug):
    """Not by the thread that fetches it either, whatever becomes of the results."""
    for order in EVERY:
        with pytest.raises(EmulatorError, match=UNDER_WAY):
            COPIES.launched("races", bug, order)


@pytest.mark.parametrize("bug", ["HINT", "HINT_OF_OTHER"])
def test_what_is_not_there_yet_is_a_number_in_some_orders(bug):
    """As on a device, which has an old one there: where NaN is left out, results of two orders differ."""
    assert COPIES.outcomes(None, bug)[:2] == [True, False]


@pytest.mark.parametrize("bug", ["NOT_WAITED", "OTHER_PHASE"])
def test_what_is_not_waited_for_is_poison(bug):
    """Without looking for races: nobody finds a sum who does not wait, in the orders that are not shuffled."""
    for order in (0, 1):
        try:
            got, _ = MESSAGES.launched(None, bug, order)
        except EmulatorError as error:
            assert re.search(EARLY, str(error)), error
        else:
            assert np.isnan(got).any()


def test_clusters_are_launched_whole():
    source, name = IN_CLUSTERS.text, "clustered<NONE>"
    assert clusters(source) == {"clustered": (1, 4, 1)}
    with pytest.raises(EmulatorError, match="a cluster of 4 blocks, and room for 3"):
        IN_CLUSTERS.launched(None, "NONE", 0, resident=3)
    with pytest.raises(EmulatorError, match="only a part of a cluster"):
        IN_CLUSTERS.launched(None, "NONE", 0, only=[0, 3, 6])
    assert np.isfinite(IN_CLUSTERS.launched(None, "NONE", 0, only=[1, 4, 7, 10])[0][1]).all()
    nine = source.replace("__cluster_dims__(1, 4, 1)", "__cluster_dims__(3, 3)")
    for text, grid, said in ((source, (3, 6), "expected whole clusters"), (nine, (3, 3), "at most 8 blocks")):
        emulator = Emulator(text, [name], None, IN_CLUSTERS.label)
        with pytest.raises(EmulatorError, match=said):
            emulator.launch(name, grid, (64,), 0, (emulator.empty(1, "f4"), emulator.empty(1, "f4")))


@nvrtc.needs_nvrtc
@pytest.mark.parametrize(
    ("planted", "beside", "archs"),
    [
        (COPIES, "rows", ("sm_75", "sm_80", "sm_90")),  # before sm_80 a thread loads and stores
        (BARRIERS, None, ("sm_75", "sm_90")),
        (IN_CLUSTERS, None, ("sm_90",)),
        (MESSAGES, None, ("sm_90",)),
    ],
    ids=lambda value: getattr(value, "kernel", ""),
)
def test_it_is_cuda(planted, beside, archs):
    name = f"{planted.kernel}<{planted.right}>"
    for arch in archs:
        assert not nvrtc.compile(planted.source(beside), [name], arch, launching.OPTIONS)[name].spills


@nvrtc.needs_nvrtc
def test_the_words_for_clusters_are_those_of_newer_devices():
    with pytest.raises(nvrtc.CompileError, match="not supported"):
        nvrtc.compile(IN_CLUSTERS.text, ["clustered<NONE>"], "sm_80")
