"""The backends, so that one test runs on each: the processor, CUDA on the emulator (with clusters too) and on a device.

A test takes the fixture `backend`, gives it NumPy arrays and gets NumPy arrays back: `backend("moments", x)`; or it
moves them itself, by `backend.up` and `backend.down`. `on_backends` chooses its parameters: every block and type once,
with settings drawn so that values meet that have not met yet (drawing.py); with CUDA fewer cases, as the emulator is
slow. `-m slow` runs the processor over all combinations.
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
from drawing import by_first, in_turn, pairwise, text
from emulated.device import CLUSTERED, SMALL, emulated, needs_emulator
from kernel_checks import BLOCKS, exact

ON_A_DEVICE = [pytest.mark.gpu, pytest.mark.skipif(gpu.available() is not None, reason=str(gpu.available()))]
SWITCH = (False, True)
ACTIVATIONS = (IDENTITY, RELU, leaky(0.2), SILU, GELU)

MORE = [  # for further branches of the launch plans of CUDA, which CASES do not reach
    Case((70, 3, 49), 1, c_order, "rows of channels, an inner of 49, and a rest: widened columns"),
    Case((3, 200, 49), 1, c_order, "many channels of a few images of 7x7: one launch"),
    Case((600, 130), 1, c_order, "several tiles, chunks and blocks that are not full"),
    Case((9, 2, 1100), 1, c_order, "long runs, several chunks"),
    Case((7, 3, 333), 1, c_order, "long runs that no vector divides"),
    Case((5, 2, 2052), 1, c_order, "long runs of whole vectors but for float16"),
]
ENDS = [  # for values at the ends of their range: what they are matters more than how many
    Case((70, 6), 1, c_order, "one launch"),
    Case((600, 130), 1, c_order, "several tiles and chunks"),
    Case((100, 3), 1, c_order, "widened, with a rest"),
    Case((5, 3, 333), 1, c_order, "runs, scalar loads"),
    Case((9, 2, 1100), 1, c_order, "runs, whole vectors, several chunks"),
]
CUDA_CASES = [case for case in CASES if case.memory is c_order] + MORE
# Every case in float32; the other types share the code, and run over cases that reach all of their instances.
CUDA_RUNS = [(case, "float32") for case in CUDA_CASES]
CUDA_RUNS += [(case, dtype) for case in dict.fromkeys(CUDA_CASES[::3] + MORE) for dtype in ("float16", "float64")]


# Channels that only a cluster can keep: in the forward, in the backward, or in both, depending on the size of the type.
CLUSTER_RUNS = [
    (Case((5, 4, 8100), 1, c_order, "for clusters, whole vectors"), "float32"),
    (Case((6, 3, 7501), 1, c_order, "for clusters, no vectors"), "float32"),
    (Case((3, 4, 6002), 1, c_order, "for clusters, pairs"), "float64"),
]


class Backend:
    """The kernels of a backend, and functions that move arrays to it (`up`) and back (`down`)."""

    def __init__(self, name, kernels):
        self.name, self.kernels = name, kernels

    def up(self, value):
        return value

    def down(self, value):
        if isinstance(value, gpu.LeftAlone):
            return int(value)
        return tuple(map(self.down, value)) if isinstance(value, tuple) else value

    def __call__(self, name, *args, **options):
        """Return what a kernel returns, and check that it does not change its arguments."""
        given = [self.up(a) for a in args], {key: self.up(a) for key, a in options.items()}
        arrays = [a for a in (*args, *options.values()) if isinstance(a, np.ndarray)]
        before = [a.tobytes() for a in arrays]
        got = self.down(getattr(self.kernels, name)(*given[0], **given[1]))
        there = [self.down(a) for a in (*given[0], *given[1].values())]
        assert [a.tobytes() for a in there if isinstance(a, np.ndarray)] == before, f"{name} wrote to its arguments"
        return got

    def adds_otherwise(self, name, then, x):
        """Whether this reduction adds in another order than its pieces do. It does if blocks meet, and for moments of
        channel runs that are kept, which are about a center that all threads know."""
        if self.kernels is cpu:
            return False
        call = begun(self.up(x), None, writes=False)
        launch = plans.reduction(name, *call.size, False, then, 0, call.device.limits).launches[0]
        of = JOB.placed(launch.geometry)
        return launch.meeting or (name == "moments" and of["keep"] > 0 and of["base"] > 1)

    def both(self, name, *args, **options):
        """Return what the kernel returns, and what the reference returns."""
        want = getattr(reference, name)(*map(exact, args), **{key: exact(a) for key, a in options.items()})
        return self(name, *args, **options), want


class Device(Backend):
    """A device, by CuPy."""

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
    "device": ON_A_DEVICE,
}


@pytest.fixture
def backend(request, monkeypatch):
    """The backend that a parameter names."""
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


def param(name, runs, id, marks=()):
    return pytest.param(name, runs, id=f"{name}-{id}" if id else name, marks=(*MARKS[name], *marks))


def parametrized(names, runs, **slow):
    """Tests of runs by backend: those that begin with the same value are one test, but on a device each is. Without a
    device, only the first of its runs is shown, as skipped. `slow` has all runs of a backend, by its name: those that
    are not in `runs` are slow tests."""
    shown = []
    for name, some in runs.items():
        if name == "device":
            here = some if gpu.available() is None else some[:1]
            shown += [param(name, [run], "-".join(map(text, run))) for run in here]
        else:
            shown += [param(name, of, first) for first, of in by_first(some).items()]
    for name, every in slow.items() if drawing.ALL else ():
        there = set(runs[name])
        rest = by_first(run for run in every if run not in there)
        shown += [param(name, of, f"{first}-rest", (pytest.mark.slow,)) for first, of in rest.items()]
    return lambda test: pytest.mark.parametrize(["backend", "runs"], shown, indirect=["backend"])(in_turn(test, names))


def on_backends(cuda=CUDA_RUNS, **settings):
    """Parameters backend, case, dtype and the settings, each with its values. Each case and type comes once, those made
    for CUDA on the processor in float32 alone; there every two settings meet, and every setting each type. CUDA takes
    only the first two of ACTIVATIONS, as each is another instance to compile."""
    few = [all_[:2] if all_ is ACTIVATIONS else all_ for all_ in settings.values()]
    there, clustered = (pairwise(rows, *few, once=True) for rows in (cuda, CLUSTER_RUNS))
    rows = [*product(BLOCKS, DTYPES), *product(MORE, ["float32"])]
    runs = {"cpu": pairwise(rows, *settings.values(), once=True), "emulator": there, "clusters": clustered}
    every = ((*row, *more) for row in rows for more in product(*settings.values()))
    return parametrized(["case", "dtype", *settings], runs | {"device": there + clustered}, cpu=every)


def at_the_ends(dtypes=("float32", "float64"), **settings):
    """The same for tests that change all values, where CUDA takes every setting of few cases."""
    there = list(product(ENDS, [d for d in dtypes if d != "float16"], *settings.values()))
    here = pairwise(list(product(BLOCKS, dtypes)), *settings.values(), once=True)
    runs = {"cpu": here, "emulator": there, "device": there}
    return parametrized(["case", "dtype", *settings], runs, cpu=product(BLOCKS, dtypes, *settings.values()))


def each_backend(**settings):
    """Parameters backend and the settings: drawn as above, but the processor takes all combinations of two settings."""
    every, drawn = list(product(*settings.values())), pairwise([()], *settings.values())
    runs = dict.fromkeys(("cpu", "emulator", "device"), drawn)
    if len(settings) > 2:
        return parametrized([*settings], runs, cpu=every)
    return parametrized([*settings], runs | {"cpu": every})
