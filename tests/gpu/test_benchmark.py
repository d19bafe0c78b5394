"""The benchmark on a GPU: what it compares with is right, and its bounds tell faults from rounding."""

import argparse
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks import gpu as benchmark
from benchmarks import gpu_torch
from benchmarks.gpu_exact import EPS, compare, exact_batch, exact_rows, ours, theirs
from benchmarks.shapes import CHANNEL_PASSES

import child
from bnorm.kernels import MEAN_SQUARE, VARIANCE, gpu, reference
from bnorm.kernels.gpu import plans
from compare import assert_close
from emulated.device import emulated_device, needs_emulator  # noqa: F401

pytestmark = pytest.mark.bench

RNG = np.random.default_rng(0)
LARGE = plans.Limits()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(30, 4), (5, 3, 7)], ids=str)
def test_exact_batch(shape, weighted):
    x, dy = RNG.standard_normal((2, *shape))
    gamma, beta, mean = RNG.standard_normal((3, shape[1]))
    var = RNG.uniform(0.5, 2, shape[1])
    weight = RNG.uniform(0, 1, (shape[0], 1, *shape[2:])) if weighted else 1.0
    found = exact_batch(np, x, dy, gamma, beta, mean, var, weight=weight).results()
    w = weight.reshape(shape[0], -1) if weighted else None
    y, stats, count, _ = reference.forward(x, gamma, beta, EPS, weight=w)
    known = reference.forward(x, gamma, beta, EPS, mean, var)[0]
    want = {"forward": [y], "inference": [known], "backward": reference.backward(dy, x, stats, count, w)}
    for name, results in want.items():
        for got, result in zip(found[name], results, strict=True):
            assert_close(got, result, 1e-13, what=name)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rule", [VARIANCE, MEAN_SQUARE])
@pytest.mark.parametrize("shape", [(6, 1, 9, 1), (4, 2, 3, 5)], ids=str)
def test_exact_rows(shape, rule, weighted):
    x, dy = RNG.standard_normal((2, *shape))
    gamma, beta = RNG.standard_normal((2, shape[1] * shape[2]))
    weight = RNG.uniform(0.1, 1, (shape[0], 1, 1, shape[3])) if weighted else 1.0
    found = exact_rows(np, x, dy, gamma, beta, rms=rule == MEAN_SQUARE, weight=weight).results()
    of = {"weight": weight.reshape(shape[0], -1)} if weighted else {}
    y, mean, rstd = reference.rows_forward(x, gamma, beta, EPS, rule, **of)
    backward = reference.rows_backward(dy, x, mean, rstd, gamma, beta, rule, **of)
    for got, want in zip([*found["forward"], *found["backward"]], (y, *backward), strict=True):
        assert_close(got, want, 1e-13, shape=shape)


# Bounds --------------------------------------------------------------------------------------------------------------


FAULTS = {  # as a kernel may have them: where, and what becomes of the results
    "a row is left out of a sum": ("backward", 2, lambda r, dy: r - dy[100]),
    "divided by n - 1": ("forward", 0, lambda r, dy: r * np.sqrt(1 - 1 / len(dy))),
    "without eps": ("forward", 0, lambda r, dy: r * (1 + EPS / 2)),
    "a mean of float16": ("forward", 0, lambda r, dy: r + 2.0**-11),
    "dx without the mean of dy": ("backward", 0, lambda r, dy: r + dy.mean(0)),
    "nothing": ("backward", 0, lambda r, dy: r * np.nan),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_rounding_cannot_do_is_a_fault(fault):
    rows, channels = 3000, 6
    x, dy = ((RNG.standard_normal((rows, channels)) + 0.5).astype("f4") for _ in range(2))
    exact = exact_batch(np, x, dy, np.linspace(0.5, 2, channels), np.linspace(-1, 1, channels))
    results = exact.results()
    bounds = exact.bounds(ours("float32"), results)
    name, place, change = FAULTS[fault]
    got = [*results[name]]
    assert compare(np, name, got, results[name], bounds[name]) == (0.0, 0.0)
    got[place] = change(got[place], dy.astype("f8"))
    with pytest.raises(ArithmeticError, match="times what rounding does"):
        compare(np, name, got, results[name], bounds[name])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("kind", ["batch_norm", "group_norm"])
def test_pytorch_is_within_its_bounds(kind, dtype):
    """Its own backward in float32 was refused."""
    torch = pytest.importorskip("torch")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    shape = (20000, 8) if kind == "batch_norm" else (20, 4, 3, 300)
    of = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    x, dy = ((RNG.standard_normal(shape) + 0.5).astype("f4").astype(of) for _ in range(2))
    channels = 8 if kind == "batch_norm" else 12
    gamma, beta = (np.rint(np.linspace(*ends, channels) * 64) / 64 for ends in ((0.5, 2), (-1, 1)))
    exact = (exact_batch if kind == "batch_norm" else exact_rows)(np, x, dy, gamma, beta)
    results = exact.results()
    names = gpu_torch.types(kind, dtype)
    bounds = exact.bounds(theirs(*names), results)
    case = benchmark.Case(kind, shape, dtype)
    a, e = (gpu_torch.layout(case, torch.from_numpy(v.astype("f8")).to(getattr(torch, dtype))) for v in (x, dy))
    affine = [torch.from_numpy(v).to(getattr(torch, names[1])).requires_grad_() for v in (gamma, beta)]
    a.requires_grad_()
    f = torch.nn.functional
    y = (
        f.batch_norm(a, None, None, *affine, True, eps=EPS)
        if kind == "batch_norm"
        else f.group_norm(a, 4, *affine, EPS)
    )
    gradients = torch.autograd.grad(y, [a, *affine], e)
    for name, tensors in (("forward", [y]), ("backward", gradients)):
        got = [t.detach().double().numpy() for t in tensors]
        compare(np, name, got, results[name], bounds[name])


# PyTorch's streams ---------------------------------------------------------------------------------------------------


class Cuda:
    """Its streams: what is current, and that no capture meets what another stream has made."""

    def __init__(self):
        self.now, self.capturing = "default", None

    def Stream(self):
        return SimpleNamespace(synchronize=lambda: None)

    @contextmanager
    def stream(self, stream):
        before, self.now = self.now, stream
        yield
        self.now = before

    def CUDAGraph(self):
        return SimpleNamespace(replay=lambda: None)

    @contextmanager
    def graph(self, graph, stream):
        self.capturing = stream
        with self.stream(stream):
            yield
        self.capturing = None

    def Event(self, enable_timing):
        return SimpleNamespace(record=lambda s: None, synchronize=lambda: None, elapsed_time=lambda e: 1.0)


def test_a_backward_is_captured_on_the_stream_of_its_outputs(monkeypatch):
    torch = pytest.importorskip("torch")
    cuda, made = Cuda(), {}
    forward, backward = torch.nn.functional.batch_norm, torch.autograd.grad
    copies = []

    def on_a_stream(x, *args, **options):
        y = forward(x, *args, **options)
        made[id(y)] = y, cuda.now  # kept, so that its id is its own
        return y

    def behind(y, *args, **options):
        if cuda.capturing not in (None, made[id(y)][1]):
            raise RuntimeError("CUDA error 906: capturing stream has unjoined work")
        return backward(y, *args, **options)

    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch.nn.functional, "batch_norm", on_a_stream)
    monkeypatch.setattr(torch.autograd, "grad", behind)
    monkeypatch.setattr(gpu_torch, "torch_version", lambda: "2, CUDA 13")
    stream = SimpleNamespace(synchronize=lambda: None)
    cupy = SimpleNamespace(
        cuda=SimpleNamespace(get_current_stream=lambda: stream), from_dlpack=lambda t: copies.append(t) or t.numpy()
    )
    x, dy = (RNG.standard_normal((2, 30, 4)).astype("f4") for _ in range(2))
    vectors = {name: np.linspace(1, 2, 4) for name in ("gamma", "beta", "mean", "var")}
    case = benchmark.Case("batch_norm", (30, 4), "float32")
    some = SimpleNamespace(cupy=cupy, case=case, x=list(x), dy=list(dy), passes=CHANNEL_PASSES, **vectors)
    libraries = []
    for library, calls in gpu_torch.torch_calls(some, EPS):
        libraries.append(library)
        for timed, results in calls.values():
            results()
            assert timed() > 0
    assert libraries == ["torch as a graph", "torch", "torch with cuDNN as a graph", "torch with cuDNN"]
    assert all(where != "default" for _, where in made.values())


class Capturing:
    """A stream of CuPy, and the graph of its capture."""

    def __init__(self):
        self.log = []

    def __getattr__(self, name):
        return lambda *args, **options: self.log.append(name) or self

    @contextmanager
    def using_allocator(self, allocator):
        self.log.append("own memory")
        yield
        self.log.append("back")


@pytest.fixture
def capturing(monkeypatch):
    """CuPy's streams, for the timing of calls: each is a millisecond."""
    stream = Capturing()
    cuda = SimpleNamespace(MemoryPool=lambda: SimpleNamespace(malloc=None), using_allocator=stream.using_allocator)
    cuda.Event = lambda: SimpleNamespace(record=lambda s: None, synchronize=lambda: None)
    cuda.get_elapsed_time = lambda start, end: 1.0
    cuda.get_current_stream = lambda: stream
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(**{**vars(np), "cuda": cuda}))
    return stream


def test_a_graph_has_memory_of_its_own_and_a_failed_capture_ends(capturing):
    stream = capturing
    called = []
    # two sets take a millisecond, so that a graph has four calls
    assert benchmark.replayed(stream, called.append, 2) == pytest.approx(1e-3 / 4)
    assert stream.log[:4] == ["own memory", "synchronize", "begin_capture", "end_capture"]
    assert set(stream.log[4:-1]) == {"launch"} and stream.log[-1] == "back"
    assert called[-4:] == [0, 1, 0, 1]

    def fails(i):
        if stream.log[-1] == "begin_capture":
            raise MemoryError("first call while capturing")

    with pytest.raises(MemoryError, match="while capturing"):
        benchmark.replayed(stream, fails, 2)
    assert stream.log[-2:] == ["begin_capture", "end_capture"]


@needs_emulator
@pytest.mark.parametrize(
    "case",
    [
        benchmark.Case("batch_norm", (70, 6), "float32"),
        benchmark.Case("batch_norm", (70, 6), "bfloat16"),
        benchmark.Case("rms_norm", (30, 1, 64, 1), "float32"),
        benchmark.Case("group_norm", (6, 4, 2, 49), "float32"),
    ],
    ids=str,
)
def test_a_row_from_end_to_end(capturing, device, monkeypatch, case):
    """On the emulator, whose arrays are NumPy's, and with PyTorch on the processor."""
    pytest.importorskip("ml_dtypes")
    monkeypatch.setattr(benchmark, "ROTATED", 1 << 10)
    monkeypatch.setattr(pytest.importorskip("torch"), "cuda", Cuda())
    monkeypatch.setattr(gpu_torch, "torch_version", lambda: "2, CUDA 13")
    options = argparse.Namespace(check=False, once=False)
    row = benchmark.measured(sys.modules["cupy"], capturing, case, options, False)
    for name, cells in row["operations"].items():
        assert 0 < cells["of bound"] <= 1 and cells["bnorm"] > 0, (name, cells)
        assert all(cells[library] > 0 for library in ("torch as a graph", "torch")), (name, cells)
    assert row["copy GB/s"] > 0
    options.check = True
    checked = benchmark.measured(sys.modules["cupy"], capturing, case, options, False)["operations"]
    assert all(cells.keys() == {"error", "of bound"} for cells in checked.values())


# The program ---------------------------------------------------------------------------------------------------------


def test_what_fails_costs_no_other_row(monkeypatch):
    """The host's time too."""

    def broken(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(benchmark, "host", broken)
    monkeypatch.setattr(benchmark, "measured", lambda *_: {"operations": {}})
    pool = SimpleNamespace(free_all_blocks=lambda: None)
    cupy = SimpleNamespace(get_default_memory_pool=lambda: pool)
    options = argparse.Namespace(check=False, once=False, after=0, compiled=0)
    found = list(benchmark.rows(cupy, None, benchmark.CASES[:2], options))
    assert [row.get("failed") for row in found] == ["RuntimeError: out of memory", None, None]


def test_every_operation_has_its_passes():
    kinds = {case.kind for case in benchmark.CASES}
    assert kinds == {"batch_norm", "layer_norm", "rms_norm", "group_norm"}
    for case in benchmark.CASES:
        assert len(case.shape) == 4 if case.kind != "batch_norm" else len(case.shape) in (2, 3)
        assert ours(case.dtype).unit and theirs(*gpu_torch.types(case.kind, case.dtype)).unit


def test_the_floor_is_that_of_the_fewest_passes():
    def passes(kind, shape, dtype, limits=LARGE):
        return benchmark.fewest_passes(benchmark.Case(kind, shape, dtype), limits)

    images = 128, 256, 56 * 56
    assert passes("batch_norm", (65536, 1024), "float32") == {"forward": 3, "inference": 2, "backward": 5}
    assert passes("batch_norm", images, "float32") == {"forward": 2, "inference": 2, "backward": 5}
    assert passes("batch_norm", images, "bfloat16") == {"forward": 2, "inference": 2, "backward": 3}
    older = plans.Limits(clusters=False)
    assert passes("batch_norm", images, "bfloat16", older) == {"forward": 3, "inference": 2, "backward": 5}
    assert passes("batch_norm", (256, 64), "float32") == {"forward": 2, "inference": 2, "backward": 3}
    assert passes("group_norm", (64, 32, 8, 3136), "float32") == {"forward": 2, "backward": 3}


def test_it_says_why_it_cannot_run():
    if gpu.available() is None:
        pytest.skip("there is a device here")
    paths = [str(Path(__file__).parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    done = child.run("-m", "benchmarks.gpu", PYTHONPATH=os.pathsep.join(paths))
    assert done.returncode == benchmark.NO_DEVICE
    assert done.stderr.strip() == gpu.available()
