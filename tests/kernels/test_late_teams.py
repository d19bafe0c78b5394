"""When a caller works alone, as its team came too late: the rule by itself, on a clock of its own."""

from concurrent.futures import ThreadPoolExecutor
from functools import wraps

import numpy as np
import pytest

from bnorm.kernels.cpu.threads import judged, resting

ALONE, SHARED, TURN = 1e-3, 5e-4, 4e-3  # seconds: a call, the same on two threads, what another process takes


class Clock:
    """Calls of a program, by a thread that has made none before. `late`: another process delays them."""

    def __init__(self):
        self.now = self.alone_until = 0.0

    def call(self, late=False):
        took = SHARED + TURN * late
        if self.now < self.alone_until:
            took = ALONE
        else:
            self.alone_until = self.now + took + judged(self.now, took, ALONE)
        self.now += took

    def rests(self):
        """Return how long the caller works alone from now on."""
        return max(0.0, self.alone_until - self.now)

    def wait(self):
        self.now = max(self.now, self.alone_until)


def of_a_new_thread(call):
    """What a thread knows of its team is its own."""

    @wraps(call)
    def run():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call).result()

    return run


@of_a_new_thread
def test_a_team_that_is_always_late_rests_longer_and_longer():
    clock, rests = Clock(), []
    for _ in range(12):
        clock.call(late=True)
        if rests:  # its threads had to wake
            assert clock.rests() == 0
            clock.call(late=True)
        rests.append(clock.rests())
        clock.wait()
    took = SHARED + TURN
    assert rests == pytest.approx([min(2.0, 16 * took * min(2**i, 16)) for i in range(12)])


@of_a_new_thread
def test_the_first_late_call_after_a_rest_may_come_at_any_time():
    clock = Clock()
    clock.call(late=True)
    clock.wait()
    clock.now += 10  # of other work
    clock.call(late=True)
    assert clock.rests() == 0
    clock.call(late=True)
    assert clock.rests() > 0


@of_a_new_thread
def test_late_calls_may_lose_what_a_team_has_gained():
    clock = Clock()
    for _ in range(20):  # 0.5 ms each
        clock.call()
    for _ in range(2):  # 3.5 ms each
        clock.call(late=True)
        assert clock.rests() == 0
    clock.call(late=True)
    assert clock.rests() > 0


@of_a_new_thread
def test_a_long_time_without_late_calls_counts_for_30_ms():
    clock = Clock()
    for _ in range(10_000):
        clock.call()
    late = 0
    while not clock.rests():
        clock.call(late=True)
        late += 1
    assert late == 9  # of 3.5 ms


@of_a_new_thread
def test_threads_that_prove_useful_again_are_trusted_again():
    clock, longest = Clock(), 0.0
    for _ in range(8):
        clock.call(late=True)
        longest = max(longest, clock.rests())
        clock.wait()
    assert longest > 0.5
    for _ in range(70):
        clock.call()
    while not clock.rests():
        clock.call(late=True)
    assert clock.rests() == pytest.approx(16 * (SHARED + TURN))


BRIEF, SLOW = 2e-5, 1e-4  # seconds: a small call alone, and on threads that are slow to write its result
FUTURE = 1e9  # by the real clock, so that a rest does not end during a test


def rest_after(*calls, pause=0.0):
    """Make these calls again and again, with a pause after each. Return when the caller rests, and for how long."""
    now = FUTURE
    for _ in range(2000):
        for took in calls:
            if rest := judged(now, took, BRIEF, 1000):
                return now - FUTURE, rest
            now += took + pause
    return None


@of_a_new_thread
def test_a_slow_team_rests_for_sixteen_times_what_it_has_lost():
    when, rest = rest_after(SLOW)
    assert when == pytest.approx(0.032, abs=2 * SLOW)  # its threads may have shared a core until then
    assert rest == pytest.approx(16 * 0.032 * (SLOW - 1.5 * BRIEF) / SLOW, rel=0.02)


@of_a_new_thread
def test_a_slow_team_rests_though_half_of_its_calls_are_fast():
    assert rest_after(SLOW, BRIEF / 2)


@of_a_new_thread
def test_a_team_whose_calls_are_seldom_slow_does_not_rest():
    assert rest_after(SLOW, *[BRIEF / 2] * 10) is None


@of_a_new_thread
def test_a_team_that_sleeps_between_its_calls_does_not_rest():
    assert rest_after(SLOW, pause=6e-3) is None


@of_a_new_thread
def test_after_slow_calls_the_caller_is_alone_on_small_calls_only():
    assert rest_after(SLOW)
    assert resting(2000)
    assert not resting(2001)


@of_a_new_thread
def test_large_calls_are_not_set_off_against_small_ones():
    now = FUTURE
    for _ in range(1000):
        rest = judged(now, SLOW, BRIEF, 1000) or judged(now + SLOW, SHARED, ALONE, 100_000)
        now += SLOW + SHARED
        if rest:
            break
    assert rest
    assert resting(1000)
    assert not resting(100_000)


@of_a_new_thread
def test_after_a_long_delay_the_caller_is_alone_on_all_calls():
    assert judged(FUTURE, SHARED + TURN, ALONE, 1000) > 0
    assert resting(10**9)


SHARES = [0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0]


@pytest.mark.parametrize("share", SHARES)
def test_calls_that_are_late_by_chance_cost_what_the_better_way_costs(share):
    """With all threads always, or alone always; and one part in twenty, for the first late calls and for trials."""
    assert mean(Clock(), by_chance(share)) < 1.05 * min(ALONE, mean(Always(), by_chance(share)))


@pytest.mark.parametrize("period", [0.02, 0.2, 1.0, 5.0])
@pytest.mark.parametrize("share", SHARES)
def test_a_process_that_comes_and_goes_costs_little_more(share, period):
    """A rest is up to 72 ms long at first, whenever the process goes: that is most beside turns of 40 ms."""

    def late(now):
        return now % period < period * share

    assert mean(Clock(), late) < 1.3 * min(ALONE, mean(Always(), late))


def by_chance(share):
    rng = np.random.default_rng(0)
    return lambda now: rng.random() < share


class Always(Clock):
    """Calls that always use all threads."""

    def call(self, late=False):
        self.now += SHARED + TURN * late


def mean(clock, late):
    """Return what a call takes in the mean."""

    @of_a_new_thread
    def calls():
        n = 0
        while clock.now < 20:
            clock.call(late(clock.now))
            n += 1
        return clock.now / n

    return calls()
