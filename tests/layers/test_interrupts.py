"""Ctrl-C at any time: what a call does to a layer has happened as a whole, or not at all."""

import signal
import threading
import time

import numpy as np
import pytest

import bnorm
from bnorm.layers.backward import OPEN
from layer_oracle import held

C = 64
TRIES = 150
rng = np.random.default_rng(0)
X, DY = rng.standard_normal((2, 32, C))

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread(),
    reason="interrupts need a timer and the main thread",
)


class Interrupted(BaseException):
    pass


@pytest.fixture
def alarm():
    """A function: raise Interrupted after so many seconds, wherever the program is then; after 0, never."""

    armed = False  # a signal that came just before the timer was stopped may be handled after it

    def interrupt(number, frame):
        if armed:
            raise Interrupted

    def after(seconds):
        nonlocal armed
        armed = seconds > 0
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield after
    finally:
        after(0)
        signal.signal(signal.SIGALRM, before)


def everything(layer):
    """All that a layer holds, and which forward waits for its backward."""
    seen = layer._running.seen.tobytes() if hasattr(layer, "_running") else None
    return held(layer) | {"waits": layer._saved is not None, "seen": seen}


def forward(layer):
    layer(X)


def backward(layer):
    layer.backward(DY)


def vjp(layer):
    layer.vjp(X)


def load(layer):
    layer.load_state_dict(STATES[type(layer)])


def zero_grad(layer):
    layer.zero_grad()


MAKE = {
    "batch": lambda: bnorm.BatchNorm1d(C, momentum=None),
    "batch in float32": lambda: bnorm.BatchNorm1d(C, dtype="float32"),
    "layer": lambda: bnorm.LayerNorm(C),
}
STATES = {type(make()): make().state_dict() for make in MAKE.values()}
CALLS = [
    # what is interrupted, and whether a forward waits at its beginning
    *((name, call) for name in MAKE for call in (forward, backward, vjp, load, zero_grad)),
]


def ready(name, call):
    """A layer that has been trained for a step."""
    layer = MAKE[name]()
    layer(X)
    layer.backward(DY)
    if call is backward:
        layer(X + 1)
    return layer


@pytest.mark.parametrize(("name", "call"), CALLS, ids=lambda value: getattr(value, "__name__", value))
def test_all_or_nothing(name, call, alarm):
    before, done = ready(name, call), ready(name, call)
    call(done)
    before, after = everything(before), everything(done)
    start = time.perf_counter()
    call(ready(name, call))
    call_takes = 2 * (time.perf_counter() - start)
    outcomes = {"before": 0, "after": 0}
    for _ in range(TRIES):
        layer = ready(name, call)
        try:
            alarm(rng.uniform(1e-6, call_takes + 2e-6))
            call(layer)
            alarm(0)
        except Interrupted:
            pass
        now = everything(layer)
        assert now in (before, after), {key: now[key] for key in now if now[key] not in (before[key], after[key])}
        outcomes["before" if now == before else "after"] += 1
        assert not OPEN
    assert sum(outcomes.values()) == TRIES


def test_the_timer_does_interrupt(alarm):
    """Else the tests above would see nothing."""
    with pytest.raises(Interrupted):
        alarm(1e-4)
        time.sleep(5)
