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
    return held(layer) | {"waits": layer._saved is not None, "counters": layer._running.counters.tobytes()}


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
    after, outcomes, places = everything(done), [], 1
    batch = x + 1
    while True:
        layer, interrupt = trained(), Interrupt(places)
        sys.setprofile(interrupt)
        try:
            layer(batch)
        except Interrupted:
            pass
        finally:
            sys.setprofile(None)
        now = everything(layer)
        assert now in (before, after), {key: now[key] for key in now if now[key] not in (before[key], after[key])}
        outcomes.append(now == after)
        if interrupt.seen < places:
            break
        places += 1
    assert places > 40 and {True, False} == set(outcomes)
