"""Ctrl-C anywhere in a call on CuPy arrays: what it does to a layer has happened as a whole, or not at all.

The interrupt comes wherever the package can be interrupted, at one place after the other. A launch is one call into
CuPy, in which no signal is handled.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

import bnorm
from emulated.device import needs_emulator
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401
from layer_oracle import held

PACKAGE = str(Path(bnorm.__file__).parent)
KINDS = {
    "average": {},
    "pool": {"momentum": None},
    "raise": {"nonfinite": "raise"},
    "propagate, float32": {"nonfinite": "propagate", "dtype": "float32"},
}


class Interrupted(BaseException):
    pass


class Interrupt:
    """For sys.setprofile: raises at the place with this number. Places are where Python handles signals: where one of
    its functions begins, and after a call into C."""

    def __init__(self, at):
        self.at, self.seen = at, 0

    def __call__(self, frame, event, _):
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            self.seen += 1
            if self.seen == self.at:
                raise Interrupted


def everything(layer):
    found = held(layer) | {"waits": layer._saved is not None}
    return found | ({"counters": layer._running.counters.tobytes()} if hasattr(layer, "_running") else {})


def outcomes(made, call, before, after):
    """Whether a call has happened, for interrupts at all places, one after the other."""
    found, places = [], 1
    while True:
        layer, interrupt = made(), Interrupt(places)
        sys.setprofile(interrupt)
        try:
            call(layer)
        except Interrupted:
            pass
        finally:
            sys.setprofile(None)
        now = everything(layer)
        assert now in (before, after), {key: now[key] for key in now if now[key] not in (before[key], after[key])}
        found.append(now == after)
        if interrupt.seen < places:
            return found
        places += 1


@needs_emulator
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_all_or_nothing(cupy, options):
    x = cupy.asarray(np.random.default_rng(0).standard_normal((8, 3)).astype("f4"))

    def trained():
        layer = bnorm.BatchNorm1d(3, device="cuda", **options)
        layer(x)
        layer.backward(x)
        return layer

    before = everything(trained())
    done = trained()
    done(x + 1)
    batch = x + 1
    found = outcomes(trained, lambda layer: layer(batch), before, everything(done))
    assert len(found) > 15 and {True, False} == set(found)


BACKWARDS = {
    "batch": (lambda: bnorm.BatchNorm1d(3, device="cuda"), (8, 3)),
    "rows": (lambda: bnorm.LayerNorm(3, device="cuda", dtype="float32"), (8, 3)),
    "groups": (lambda: bnorm.GroupNorm(2, 4, device="cuda"), (5, 4)),  # with sums in a launch before dx
}


@needs_emulator
@pytest.mark.parametrize(("make", "shape"), BACKWARDS.values(), ids=BACKWARDS)
def test_all_or_nothing_of_a_backward(cupy, make, shape):
    """Gradients are added, and there is no forward any more, or neither."""
    x, dy = (cupy.asarray(a) for a in np.random.default_rng(0).standard_normal((2, *shape)).astype("f4"))

    def forwarded():
        layer = make()
        layer(x)
        layer.backward(x)
        layer(x)
        return layer

    before, done = everything(forwarded()), forwarded()
    done.backward(dy)
    found = outcomes(forwarded, lambda layer: layer.backward(dy), before, everything(done))
    assert len(found) > 15 and {True, False} == set(found)
