"""An interrupt at any moment of a call that moves statistics: what is stored is as before the call, or as after."""

import copy
import pickle

import numpy as np
import pytest

import bnorm
from interrupts import interrupted, moments

C = 3
LAYERS = {
    "average": bnorm.BatchNorm1d(C),
    "every value counts the same": bnorm.BatchNorm1d(C, momentum=None),
    "instance": bnorm.InstanceNorm1d(C, track_running_stats=True, affine=True),
    "stream": bnorm.RunningNorm(C),
    "fading stream": bnorm.RunningNorm(C, halflife=4.0),
}


def pooled(layer, x):
    with layer.pooled_stats():
        layer(x)
        layer(x + 1)


def load(layer, x):
    other = copy.deepcopy(layer)
    other(x * 2)
    layer.load_state_dict(other.state_dict())


CALLS = {
    "forward": lambda layer, x: layer(x),
    "pooled": pooled,
    "load": load,
    "reset": lambda layer, x: layer.reset_running_stats(),
}
OF_STREAMS = ["forward", "load"]
OF_INSTANCES = ["forward", "load", "reset"]
OWN = {"instance": OF_INSTANCES, "stream": OF_STREAMS, "fading stream": OF_STREAMS}


@pytest.mark.parametrize(("name", "call"), [(name, call) for name in LAYERS for call in OWN.get(name, CALLS)])
def test_before_or_after(name, call):
    first, x = copy.deepcopy(LAYERS[name]), np.random.default_rng(0).normal(3.0, 2.0, (8, C))
    x = np.stack([x, x - 1], axis=2) if name == "instance" else x
    first(x)
    before, trial = pickle.dumps(first), copy.deepcopy(first)
    last = moments(lambda: CALLS[call](trial, x + 2))
    after, seen = pickle.dumps(trial), []
    assert before != after
    for at in range(1, last + 1):
        layer = copy.deepcopy(first)
        assert interrupted(lambda layer=layer: CALLS[call](layer, x + 2), at)
        seen.append(pickle.dumps(layer))
        assert seen[-1] in (before, after), at
    assert seen[0] == before and seen[-1] == after
