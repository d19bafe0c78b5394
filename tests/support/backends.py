"""The backends, so that one test runs on each: the processor, CUDA on the emulator (with clusters too) and on a device.

A test takes the fixture `backend`, gives it arrays of NumPy and gets such back: `backend("moments", x)`; or it moves
them itself, by `backend.up` and `backend.down`. `on_backends` says what it runs over: every case and type, with
settings drawn so that each value of one meets each of another (drawing.py); with CUDA, as the emulator is slow, fewer
cases. `-m slow` runs the processor over all combinations.
"""

from itertools import product

import numpy as np
import pytest

import drawing
from bnorm.kernels import cpu, gpu, reference
from bnorm.kernels.activation import GELU, IDENTITY, RELU, SILU, leaky
from bnorm.kernels.gpu import launching, plans
from bnorm.kernels.gpu.calls import begun
from bnorm.kernels.gpu.jobs import JOB
from cases import CASES, DTYPES, Case, c_order
from drawing import pairwise, text
from emulated.device import CLUSTERED, SMALL, emulated, needs_emulator
from kernel_checks import exact

SWITCH = (False, True)
ACTIVATIONS = (IDENTITY, RELU, leaky(0.2), SILU, GELU)

MORE = [  # what the launch plans of CUDA tell apart, beside the cases of everything
    Case((70, 3, 49), 1, c_order, "rows of channels, an inner of 49, and a rest: widened columns"),
    Case((3, 200, 49), 1, c_order, "many channels of a few images of 7x7: one launch"),
    Case((600, 130), 1, c_order, "several tiles, chunks and blocks that are not full"),
    Case((9, 2, 1100), 1, c_order, "long runs, several chunks"),
    Case((7, 3, 333), 1, c_order, "long runs that no vector divides"),
    Case((5, 2, 2052), 1, c_order, "long runs of whole vectors but for float16"),
]
ENDS = [  # where values are at their ends, what they are matters more than how many
    Case((70, 6), 1, c_order, "one launch"),
    Case((600, 130), 1, c_order, "several tiles and chunks"),
    Case((100, 3), 1, c_order, "widened, with a rest"),
    Case((5, 3, 333), 1, c_order, "runs, scalar loads"),
    Case((9, 2, 1100), 1, c_order, "runs, whole vectors, several chunks"),
]
CUDA_CASES = [case for case in CASES if case.memory is c_order] + MORE
# Every case in float32; the other types share the code, and run over those that reach all of their instances.
CUDA_RUNS = [(case, "float32") for case in CUDA_CASES]
CUDA_RUNS += [(case, dtype) for case in dict.fromkeys(CUDA_CASES[::3] + MORE) for dtype in ("float16", "float64")]


# Channels that only a cluster holds: in the forward, in the backward, and in both, as far as the type makes them large.
CLUSTER_RUNS = [
    (Case((5, 4, 8100), 1, c_order, "for clusters, whole vectors"), "float32"),
    (Case((6, 3, 7501), 1, c_order, "for clusters, no vectors"), "float32"),
    (Case((3, 4, 6002), 1, c_order, "for clusters, pairs"), "float64"),
]


class Backend:
    """Its kernels, and the way of arrays there and back."""

    def __init__(self, name, kernels):
        self.name, self.kernels = name, kernels

    def up(self, value):
        return value

    def down(self, value):
        if isinstance(value, gpu.LeftAlone):
            return int(value)
        return tuple(map(self.down, value)) if isinstance(value, tuple) else value

    def __call__(self, name, *args, **options):
        """What a kernel returns; it leaves its arguments as they were."""
        given = [self.up(a) for a in args], {key: self.up(a) for key, a in options.items()}
        arrays = [a for a in (*args, *options.values()) if isinstance(a, np.ndarray)]
        before = [a.tobytes() for a in arrays]
        got = self.down(getattr(self.kernels, name)(*given[0], **given[1]))
        there = [self.down(a) for a in (*given[0], *given[1].values())]
        assert [a.tobytes() for a in there if isinstance(a, np.ndarray)] == before, f"{name} wrote to its arguments"
        return got

    def adds_otherwise(self, name, then, x):
        """Whether this reduction adds up in another order than its pieces do: where blocks meet, and about a center
        that all threads know, where moments are those of channel runs that are kept."""
        if self.kernels is cpu:
            return False
        call = begun(self.up(x), None, writes=False)
        launch = plans.reduction(name, *call.size, False, then, 0, call.device.limits).launches[0]
        of = JOB.placed(launch.geometry)
        return launch.meeting or (name == "moments" and of["keep"] > 0 and of["base"] > 1)

    def both(self, name, *args, **options):
        """What the kernel and the reference return."""
        want = getattr(reference, name)(*map(exact, args), **{key: exact(a) for key, a in options.items()})
        return self(name, *args, **options), want


class Device(Backend):
    """By CuPy."""

    def up(self, value):
        import cupy

        return cupy.asarray(value) if isinstance(value, np.ndarray) else value

    def down(self, value):
        import cupy

        return cupy.asnumpy(value) if isinstance(value, cupy.ndarray) else super().down(value)


MARKS = {
    "cpu": (),
    "emulator": (needs_emulator,),
    "clusters": (needs_emulator,),
    "device": (pytest.mark.gpu, pytest.mark.skipif(gpu.available() is not None, reason=str(gpu.available()))),
}


@pytest.fixture
def backend(request, monkeypatch):
    """The backend of a parameter's name."""
    match request.param:
        case "cpu":
            return Backend("cpu", cpu)
        case "emulator" | "clusters":
            device = emulated()
            device.log.clear()
            monkeypatch.setattr(device, "limits", CLUSTERED if request.param == "clusters" else SMALL)
            monkeypatch.setattr(launching, "device_of", lambda x: device)
            return Backend("emulator", gpu)
    return Device("device", gpu)


def param(name, *values, id, marks=()):
    return pytest.param(name, *values, id=f"{name}-{id}", marks=(*MARKS[name], *marks))


def parametrized(names, runs, **slow):
    """Of runs by backend: where there is no device, the first of its runs stands for all that are skipped. `slow` are
    all runs of a backend, by its name: what is left of them is for the slow tests."""
    chosen = [(name, run) for name, all_ in runs.items() for run in all_]
    if gpu.available() is not None:
        first = runs["device"][0]
        chosen = [(name, run) for name, run in chosen if name != "device" or run is first]
    shown = [param(name, *run, id="-".join(map(text, run))) for name, run in chosen]
    for name, every in slow.items() if drawing.ALL else ():
        there = set(runs[name])
        rest = [run for run in every if run not in there]
        shown += [param(name, *run, id="-".join(map(text, run)), marks=(pytest.mark.slow,)) for run in rest]
    return pytest.mark.parametrize(["backend", *names], shown, indirect=["backend"])


def on_backends(cuda=CUDA_RUNS, **settings):
    """Parameters backend, case, dtype and the settings, each with its values: on the processor every two of them meet,
    over all cases and types, and those that were made for CUDA in float32. CUDA takes each case and type once, and of
    ACTIVATIONS only the first, as each is another instance to compile."""
    few = [all_[:2] if all_ is ACTIVATIONS else all_ for all_ in settings.values()]
    there, clustered = (pairwise(rows, *few, once=True) for rows in (cuda, CLUSTER_RUNS))
    rows = [*product(CASES, DTYPES), *product(MORE, ["float32"])]
    runs = {"cpu": pairwise(rows, *settings.values()), "emulator": there, "clusters": clustered}
    every = ((*row, *more) for row in rows for more in product(*settings.values()))
    return parametrized(["case", "dtype", *settings], runs | {"device": there + clustered}, cpu=every)


def at_the_ends(dtypes=("float32", "float64"), **settings):
    """The same for tests that turn all values, where CUDA takes every setting of few cases."""
    there = list(product(ENDS, [d for d in dtypes if d != "float16"], *settings.values()))
    here = pairwise(list(product(CASES, dtypes)), *settings.values())
    runs = {"cpu": here, "emulator": there, "device": there}
    return parametrized(["case", "dtype", *settings], runs, cpu=product(CASES, dtypes, *settings.values()))


def each_backend(**settings):
    """Parameters backend and the settings: drawn as above, of more than two; the processor takes all of two."""
    every, drawn = list(product(*settings.values())), pairwise([()], *settings.values())
    runs = dict.fromkeys(("cpu", "emulator", "device"), drawn)
    if len(settings) > 2:
        return parametrized([*settings], runs, cpu=every)
    return parametrized([*settings], runs | {"cpu": every})
