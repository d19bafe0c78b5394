"""A caller works alone where the program touches x between calls. No result shows that, so what it knows has to."""

import platform

import numpy as np
import pytest

import bnorm
from bnorm import functional as F
from bnorm.kernels.cpu import entries, threads

LEAST, MOST, LOOKS, UNTOUCHED, OTHERS = 32, 512, 4, 64, 64  # as in touched.h
ROWS, WIDTH = 2048, 64  # 512 KB of float32
NEW = {"watched": 0, "calls": 0, "others": 0, "alone": 0, "next": LEAST, "pretended": 0}

pytestmark = pytest.mark.skipif(not threads.openmp_version(), reason="built without OpenMP")
looks = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason=f"no looks on {platform.machine()}"
)


@pytest.fixture(autouse=True)
def watch(set_threads):
    """A thread that has just begun, with one more, on every machine with the same size."""
    set_threads(2)
    sizes, before = entries.use_sizes(touched=1 << 20), entries.use_watch(**NEW)
    yield
    entries.use_watch(**before)
    entries.use_sizes(**sizes)


def array(rows=ROWS):
    return np.random.default_rng(0).standard_normal((rows, WIDTH), dtype=np.float32)


def layer_norm(x):
    F.layer_norm(x, normalized_shape=WIDTH)


def calls(n, x, function=F.batch_norm, on=2, **changed):
    """Call so many times. Setting the number of threads also forgets that a team came late."""
    entries.use_watch(**changed)
    for _ in range(n):
        bnorm.set_num_threads(on)
        function(x)
    return entries.use_watch()


@pytest.mark.parametrize(
    "function",
    [F.batch_norm, layer_norm, F.moments, lambda x: F.batch_norm(x, mean=np.zeros(WIDTH), var=np.ones(WIDTH))],
    ids=["batch norm", "layer norm", "moments", "inference"],
)
def test_a_caller_is_alone_while_the_program_touches_x(function):
    x, alone = array(), LEAST
    for _ in range(7):
        assert calls(1, x, function, pretended=1)["watched"] == x.ctypes.data  # a team reads x
        assert calls(1, x, function)["alone"] == alone - 1
        assert calls(alone - 1, x, function)["alone"] == 0
        alone = min(2 * alone, MOST)
    assert alone == MOST


def test_a_team_goes_on_with_an_x_that_is_not_touched():
    x = array()
    calls(1, x)
    for _ in range(3):
        assert calls(LOOKS, x, pretended=0)["alone"] == 0
        assert calls(UNTOUCHED - LOOKS, x, pretended=1)["alone"] == 0  # it is not looked at
    assert calls(1, x)["alone"] > 0


def test_one_look_in_turn_that_finds_it_is_enough():
    """A transform after a fit finds what the team of the fit has read. The next fit finds what the program did."""
    x = array()
    calls(1, x, F.moments)
    calls(1, x, pretended=0)
    assert calls(1, x, F.moments, pretended=1)["alone"] == LEAST - 1


def test_an_x_that_is_not_touched_makes_the_next_time_alone_short_again():
    x = array()
    calls(2, x, pretended=1)
    assert calls(LEAST - 1, x)["next"] == 2 * LEAST
    calls(1 + LOOKS, x, pretended=0)
    assert calls(1, x)["next"] == LEAST


def test_backwards_follow():
    x = array()
    _, saved = F.batch_norm(x)
    _, of_rows = F.layer_norm(x, normalized_shape=WIDTH)
    calls(1, x, pretended=0)  # if the team came late above, x is not watched yet
    assert calls(1, x, pretended=1)["alone"] == LEAST - 1
    assert calls(1, x, lambda x: F.backward(x, saved))["alone"] == LEAST - 2
    assert calls(1, x, lambda x: F.backward(x, of_rows))["alone"] == LEAST - 3


def test_another_x_is_watched_when_the_first_does_not_come_again():
    x, other = array(), array()
    calls(1, x)
    assert calls(OTHERS - 1, other)["watched"] == x.ctypes.data
    assert calls(1, x)["others"] == 0
    assert calls(OTHERS, other)["watched"] == other.ctypes.data


def test_what_one_thread_reads_says_nothing():
    x = array()
    calls(1, x, pretended=1)
    assert calls(1, x, on=1)["watched"] == 0
    assert calls(1, x)["alone"] == 0
    assert calls(1, x)["alone"] > 0
    assert calls(LEAST, x, on=1)["alone"] == LEAST - 1  # a call that has one thread anyway does not count


@pytest.mark.parametrize("rows", [512, 4097], ids=["one thread", "too large"])
def test_other_sizes_are_not_watched(rows):
    assert calls(3, array(rows), pretended=1) == NEW | {"pretended": 1}


def test_columns_that_threads_share_are_not_watched():
    """What a thread reads of a row lies beside what another reads, and would be fetched with it."""
    x = np.ones((256, 512), np.float32)
    assert calls(3, x, pretended=1) == NEW | {"pretended": 1}


# A look itself --------------------------------------------------------------------------------------------------------


def found(n, between):
    """Return how often a look finds the lines of x, of n times. An interrupt or another process can disturb a look."""
    x, stats, times = array(), np.ones((5, WIDTH)), 0
    bnorm.set_num_threads(2)
    for _ in range(n):
        entries.use_watch(**NEW | {"pretended": -1})
        with pytest.raises(TypeError, match="act"):  # the lines have been removed then, and nothing has read them
            entries.normalize(x, stats, act=None)
        between(x)
        times += calls(1, x)["alone"] > 0
    return times


@looks
def test_a_look_sees_what_the_program_has_written():
    assert found(50, lambda x: np.negative(x, out=x)) > 5


@looks
def test_a_look_sees_lines_that_are_in_no_cache():
    assert found(50, lambda x: None) < 5
