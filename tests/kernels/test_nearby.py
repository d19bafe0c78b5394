"""Large results go through the caches where arrays are found there, and past them elsewhere. Results do not change."""

import platform
import sys

import numpy as np
import pytest

import compiled
from bnorm import functional as F
from bnorm.kernels.cpu import entries
from child import run

ROWS, WIDTH = 2048, 160  # 1.25 MiB of float32
FIRST, FETCHED = 8, ("far", "far_two", "far_alone", "far_maps", "far_rows")
SIZES = ("looked", "stream", "stream_one", "stream_two", *FETCHED)
TRIED, LEAST_WAIT, MOST_WAIT, ENOUGH, STAYED = 8, 16, 512, 13, 256  # as in nearby.h
ABSENT = 16  # lines of x and dy that a look finds in memory
LOOKS = entries.use_sizes()["looked"] < 1 << 30  # whether calls look on this processor if no test asks for it

pytestmark = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason=f"no looks on {platform.machine()}"
)
of_outputs = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux a look reads outputs")


@pytest.fixture(autouse=True)
def habit():
    """A thread that has just begun, on every machine with the same sizes."""
    sizes = entries.use_sizes(**dict.fromkeys(SIZES, 1 << 20))
    before = entries.use_habit(through=0, calls=FIRST, excess=0, wait=LEAST_WAIT)
    yield
    entries.use_habit(**before)
    entries.use_sizes(**sizes)


def array(seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype(dtype)


def calls(n, x, out, /, **changed):
    entries.use_habit(**changed)
    for _ in range(n):
        F.layer_norm(x, normalized_shape=WIDTH, out=out)
    return entries.use_habit()


def test_a_try_goes_on_while_arrays_are_near():
    x, y = array(), np.empty((ROWS, WIDTH), np.float32)
    assert calls(FIRST - 1, x, y, pretended=0)["through"] == 0
    assert calls(1, x, y)["through"] == 1
    assert calls(1000, x, y)["through"] == 1
    assert calls(1000, x, y, excess=100)["excess"] == 0  # what was bad is forgotten


def test_a_try_ends_where_arrays_are_in_memory():
    """Each time the thread waits twice as long, up to a limit; a try that has proved right resets that."""
    x, y = array(), np.empty((ROWS, WIDTH), np.float32)
    wait = LEAST_WAIT
    calls(FIRST, x, y, pretended=ABSENT)
    for _ in range(7):
        assert calls(TRIED + ENOUGH - 1, x, y)["through"] == 1
        found = calls(1, x, y)
        assert (found["through"], found["calls"]) == (0, wait)
        assert calls(wait - 1, x, y)["through"] == 0
        assert calls(1, x, y)["through"] == 1
        wait = min(2 * wait, MOST_WAIT)
    assert wait == MOST_WAIT
    assert calls(STAYED - 1, x, y, pretended=0)["wait"] == MOST_WAIT
    assert calls(1, x, y)["wait"] == LEAST_WAIT


def test_one_line_in_a_call_is_too_many_if_it_goes_on():
    x, y = array(), np.empty((ROWS, WIDTH), np.float32)
    calls(FIRST + TRIED, x, y, pretended=1)
    assert calls(110, x, y)["through"] == 1
    assert calls(1, x, y)["through"] == 0


def test_arrays_of_other_sizes_are_not_looked_for():
    x, y = array(), np.empty((ROWS, WIDTH), np.float32)
    few = ROWS * 3 // 4  # less than 1 MiB
    start = entries.use_habit(pretended=0)
    assert calls(FIRST, x[:few], y[:few]) == start | {"pretended": 0}
    assert calls(FIRST, x, y, most=x.nbytes - 1)["calls"] == FIRST
    assert calls(FIRST, x, y, most=x.nbytes)["through"] == 1


def every_result(dtype):
    """Return results of all kinds of kernels whose outputs may go past the caches."""
    x, dy = array(0, dtype), array(1, dtype)
    images, gradients = (a.reshape(-1, 8, 5, 16) for a in (x, dy))
    gamma, eight = np.linspace(0.5, 2.0, WIDTH), np.linspace(0.5, 2.0, 8)
    forwards = [
        (F.batch_norm(x, gamma, gamma), dy),
        (F.batch_norm(x, gamma, gamma, mean=gamma, var=gamma), dy),
        (F.batch_norm(images, eight, eight), gradients),
        (F.batch_norm(images, eight, eight, mean=eight, var=eight), gradients),
        (F.layer_norm(x, gamma, gamma, normalized_shape=WIDTH), dy),
        (F.instance_norm(images), gradients),
    ]
    return [np.asarray(a) for (y, saved), g in forwards for a in (y, *F.backward(g, saved)) if a is not None]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("pretended", [0, 1, ABSENT])
def test_the_same_bits(pretended, dtype):
    entries.use_habit(most=0)
    past = every_result(dtype)
    entries.use_habit(through=1, calls=TRIED, most=1 << 30, pretended=pretended)
    for one, other in zip(past, every_result(dtype), strict=True):
        np.testing.assert_array_equal(one, other)


def found_near(shape, gradient=False, **changed):
    """Return what a look at the inputs of a call has found, or None if there was none."""
    x = array().reshape(shape)
    _, saved = F.batch_norm(x)
    entries.use_habit(near=2, **changed)
    F.backward(x, saved) if gradient else F.batch_norm(x)
    near = entries.use_habit()["near"]
    return None if near == 2 else bool(near)


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "backward"])
def test_images_are_fetched_ahead_unless_they_are_near(gradient):
    """Results do not show it, so what the look has found has to."""
    images = -1, 8, 5, 16
    assert found_near(images, gradient, pretended=0) is True
    assert found_near(images, gradient, pretended=1) is True  # one line of many, by chance
    assert found_near(images, gradient, pretended=2) is False
    assert found_near(images, gradient, pretended=0, most=0) is None
    entries.use_habit(most=1 << 20)
    assert found_near((ROWS, WIDTH), gradient, pretended=0) is None
    entries.use_sizes(**dict.fromkeys(FETCHED, 2 << 20))  # so none is fetched ahead anyway
    assert found_near(images, gradient, pretended=0) is None


def test_a_look_sees_whether_images_are_near():
    """An interrupt or another process can disturb a look, so it is tried several times."""
    images = -1, 8, 5, 16
    entries.use_habit(pretended=-1)
    x, y = array(), np.empty((ROWS, WIDTH), np.float32)
    for _ in range(20):
        calls(1, x, y, through=0, calls=1)  # notes how long memory takes
        if any(found_near(images) for _ in range(8)):
            return
    raise AssertionError("not once near, though nothing else was read")


ones = np.ones(WIDTH)
EIGHT = (ROWS // 8, 8, WIDTH)
STEPS = {
    "batch norm": lambda x, y: F.batch_norm(x, out=y),
    "images, inference": lambda x, y: F.batch_norm(x.reshape(EIGHT), mean=ones[:8], var=ones[:8], out=y.reshape(EIGHT)),
    "layer norm": lambda x, y: F.layer_norm(x, normalized_shape=WIDTH, out=y),
}
WAYS = (0, ABSENT), (TRIED, 0), (TRIED, 1)  # calls of a try, and what a look finds: the result goes through the caches
NEAR, GONE = 5, 6  # the excess of a look is below the one, or above the other


def look(write, read, **changed):
    """Return the excess of the look of `read` after `write`, which treats the caches as given."""
    for _ in range(2):
        entries.use_habit(through=1, calls=TRIED, pretended=0)
        read()
        entries.use_habit(**changed)
        write()
    entries.use_habit(through=1, calls=TRIED, excess=0, pretended=-1)
    read()
    return entries.use_habit()["excess"]


def differs(write, read):
    """Whether a look finds what was written in the caches, or in memory if it went past them. Other processes use the
    caches too, and interrupt a look, so it is tried several times."""
    for _ in range(20):
        entries.use_habit(through=0, calls=1)
        read()  # notes how long memory takes
        through = [look(write, read, through=1, calls=calls, pretended=lines) for calls, lines in WAYS]
        past = [look(write, read, through=0, calls=100) for _ in range(3)]
        if max(through) < NEAR and min(past) > GONE:
            return True
    return False


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_where_results_are(step):
    x, y, z = (array(i) for i in range(3))
    assert differs(lambda: step(x, y), lambda: step(y, z))


@of_outputs
@pytest.mark.skipif(
    not LOOKS, reason="on AMD's processors it comes into the caches after a few calls; no call looks there"
)
def test_an_output_that_is_in_memory_stays_there():
    """A store through the caches would first read the line of such a y."""
    x, y = array(), np.empty((ROWS, WIDTH), np.float32)
    for _ in range(20):
        calls(2, x, y, through=0, calls=2)
        found = [calls(1, x, y, through=1, calls=TRIED, excess=0)["excess"] for _ in range(6)]
        if min(found) > GONE:
            return
    raise AssertionError(found)


@of_outputs
def test_every_array_counts():
    """If only y, or only dy, is in memory, a look finds that too."""
    x, y, dx = (array(i).reshape(1, ROWS, WIDTH) for i in range(3))
    _, saved = F.instance_norm(x)
    write = lambda: F.instance_norm(x, out=y)  # noqa: E731
    assert differs(write, write)
    assert differs(write, lambda: F.backward(y, saved, out=dx))


@compiled.needs_compiler
@pytest.mark.parametrize("side", ["end", "begin"])
def test_looks_stay_within_the_arrays(side):
    """In a process of its own: a look beyond an array would end it."""
    code = f"""import sys
sys.path[:0] = {sys.path!r}
import fences
fences.raised({side!r})
import numpy as np
from bnorm.kernels.cpu import entries
entries.use_sizes(**dict.fromkeys({SIZES!r}, 1 << 20))
for extra in (0, 1, 1024, 4095, 7 << 12, 15 << 11):  # whole eighths of the pages, and not
    x = np.full((1 << 20) + extra, 3, np.int8).reshape(-1, 1)
    for _ in range(300):
        entries.use_habit(through=1, calls={TRIED}, excess=0)
        entries.forward(x, None, None, 1e-5)
    x = np.ones((1, 1, 1, (1 << 18) + extra // 4), np.float32)
    _, mean, rstd = entries.rows_forward(x, None, None, 1e-5)
    for _ in range(300):
        entries.use_habit(through=1, calls={TRIED}, excess=0)
        entries.rows_backward(x, x, mean, rstd, None, None, params=False, out=np.empty_like(x))
print("done")"""
    done = run("-c", code)
    assert (done.stdout.strip(), done.returncode) == ("done", 0), done.stderr
