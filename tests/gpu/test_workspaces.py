"""The memory between the launches of a call: nobody else's, whatever threads, streams and graphs do in between."""

import threading

import numpy as np
import pytest

import bnorm.functional as F
from bnorm.kernels import gpu
from bnorm.kernels.activation import RELU
from bnorm.kernels.gpu import launching
from compare import assert_same
from emulated import fake_array, fake_cupy
from emulated.device import needs_emulator
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401
from emulated.pairs import back, there
from rules import rule

RNG = np.random.default_rng(0)
TABLE, OTHER = RNG.standard_normal((2, 600, 70)).astype("f4")  # more than all blocks keep that meet


def batch_forward(x):
    return gpu.forward(there(x), None, None, 1e-5, act=RELU)[:2]


def batch_backward(x):
    stats = np.stack([np.mean(x, 0), np.var(x, 0), *np.ones((2, x.shape[1])), np.zeros(x.shape[1])]).astype("f8")
    return gpu.backward(there(x[::-1].copy()), there(x), there(stats), float(len(x)))


def rows_backward(x):
    rows = there(x.reshape(-1, 1, 3000, 1))  # so many columns that a launch of its own adds them up
    numbers = there(np.linspace(0, 1, len(rows))), there(np.linspace(1, 2, len(rows)))
    return gpu.rows_backward(rows, rows, *numbers, there(np.linspace(0.5, 2, 3000)), None)


def groups_backward(x):
    rows = there(x[:20].reshape(-1, 2, 35, 1))  # whose columns are added up before dx
    numbers = there(np.linspace(0, 1, 40)), there(np.linspace(1, 2, 40))
    return gpu.rows_backward(rows, rows, *numbers, there(np.linspace(0.5, 2, 70)), None)


CALLS = [batch_forward, batch_backward, rows_backward, groups_backward]
every_call = pytest.mark.parametrize("call", CALLS)


def bits(found):
    return [back(a).tobytes() for a in found]


def between(monkeypatch, other):
    """From now on `other` runs behind every launch, but for those of its own."""
    launch, busy = fake_cupy.Kernel.__call__, []

    def launched(self, *args, **options):
        launch(self, *args, **options)
        if not busy:
            busy.append(True)
            other()
            busy.clear()

    monkeypatch.setattr(fake_cupy.Kernel, "__call__", launched)


def in_a_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@needs_emulator
@every_call
@pytest.mark.parametrize("ptr", [0, 7])
def test_another_thread_comes_in_between(cupy, call, ptr, monkeypatch):
    """CuPy lets other threads run while it launches. Here one always does, on the same stream."""
    stream = cupy.cuda.Stream(ptr)
    with stream:
        want, found = bits(call(TABLE)), []

        def other():
            with stream:
                found.append(bits(call(OTHER)))

        alone = bits(call(OTHER))
        between(monkeypatch, lambda: in_a_thread(other))
        cupy.launched.clear()
        assert bits(call(TABLE)) == want
    assert len(cupy.launched) >= 4 and found and all(again == alone for again in found)


@needs_emulator
@every_call
def test_the_same_thread_comes_in_between(cupy, call, monkeypatch):
    """Such as a finalizer that calls bnorm."""
    want = bits(call(TABLE))
    between(monkeypatch, lambda: call(OTHER))
    assert bits(call(TABLE)) == want


def taken(device, numbers=10):
    """What a call finds that leaves it there."""
    stream = device.stream().ptr
    device.workspaces.free[stream] = space = device.workspace(stream, numbers, 3)
    return space


def test_a_call_finds_what_the_one_before_left(cupy):
    device = launching._device(0)
    first = taken(device)
    assert taken(device, 100) is first  # never so small that the next call needs another
    with cupy.cuda.Stream(7):
        assert taken(device) is not first
    assert taken(device) is first
    in_use = device.workspace(0, 10, 3)
    assert in_use is first and device.workspace(0, 10, 3).addresses[0] != first.addresses[0]
    device.workspaces.free[0] = in_use
    large = [taken(device, numbers).numbers for numbers in ((1 << 16) + 1, (1 << 20) + 1, 10)]
    assert large == [1 << 17, (1 << 20) + 1, (1 << 20) + 1]
    assert not back(taken(device).arrays[1]).any()  # tickets


def test_streams_of_threads_have_one_number(cupy):
    """The default stream of each thread is number 2, and theirs run beside each other."""
    device, found = launching._device(0), []

    def of_a_thread():
        with cupy.cuda.Stream(2):
            found.append(taken(device))

    of_a_thread()
    in_a_thread(of_a_thread)
    of_a_thread()
    assert found[0] is found[2] and found[0].addresses[0] != found[1].addresses[0]


def test_a_capture_in_the_pool_of_all_is_refused(cupy):
    stream, x = cupy.cuda.Stream(7), there(TABLE)
    running = rule(there(np.zeros(70)), there(np.ones(70)), 0.1)
    with stream:
        stream.begin_capture()
        for call in (
            lambda: gpu.forward(x, None, None, 1e-5, running=running),
            lambda: gpu.rows_forward(x.reshape(600, 1, 70, 1), None, None, 1e-5),
            lambda: gpu.moments(x),
        ):
            with pytest.raises(RuntimeError, match=r"bnorm: expected a memory pool of its own .*using_allocator\(pool"):
                call()
        assert not stream.end_capture().nodes
    assert_same(back(running.mean), np.zeros(70))


@needs_emulator
@every_call
def test_a_graph_shares_no_memory(cupy, call, monkeypatch):
    """It runs behind every launch of other calls, as it may on another stream, and they run behind each of its own."""
    stream, pool = cupy.cuda.Stream(7), cupy.cuda.MemoryPool()
    with stream:
        want, alone = bits(call(TABLE)), bits(call(OTHER))
        with cupy.cuda.using_allocator(pool.malloc):
            arrays = [there(TABLE)]
            monkeypatch.setattr(f"{__name__}.there", lambda a: arrays.append(fake_array.wrapped(a)) or arrays[-1])
            stream.begin_capture()
            made = call(TABLE)
            graph = stream.end_capture()
        assert graph.nodes and bits(made) != want  # nothing has run yet
        graph.launch()
        assert bits(made) == want
        eager = []
        for node in graph.nodes:
            node()
            eager.append(call(OTHER))
        assert bits(made) == want
        nodes = iter(graph.nodes)
        for a in made:
            back(a).fill(0)
        between(monkeypatch, lambda: [next(nodes, lambda: None)() for _ in range(2)])
        while any(not back(a).any() for a in made):
            eager.append(call(OTHER))
        assert bits(made) == want and all(bits(found) == alone for found in eager)


def sets_to_0(cupy, stream, pool, call):
    """How often a graph of a call sets memory to 0. Kernels are no nodes of it, as nothing is launched."""
    with cupy.cuda.using_allocator(pool.malloc):
        x = there(TABLE)
        stream.begin_capture()
        call(x)
        return len(stream.end_capture().nodes)


def test_a_graph_sets_no_tickets_to_0(cupy, monkeypatch):
    """It takes some that are 0 from those that a call on its stream left there, and no two calls take the same ones."""
    monkeypatch.setattr(launching, "SPARE", 40)
    device, stream, pool = launching._device(0), cupy.cuda.Stream(7), cupy.cuda.MemoryPool()

    def call(x):
        gpu.forward(x, None, None, 1e-5)

    with stream, cupy.launches_nothing():
        call(there(TABLE))
        assert sets_to_0(cupy, stream, pool, call) == 0
        array, taken = device.workspaces.spare[7]
        assert device.of_graphs == [array] and 0 < taken <= 20
        places = [device.workspace(None, 8, taken).addresses[1] for _ in range(40 // taken - 1)]
        assert places == [array.data.ptr + 4 * i * taken for i in range(1, 40 // taken)]
        assert sets_to_0(cupy, stream, pool, call) == 1  # no more are left
        call(there(TABLE))
        assert sets_to_0(cupy, stream, pool, call) == 0
        assert len(device.of_graphs) == 2 and array is device.of_graphs[0]
        with cupy.cuda.Stream(8) as other:  # where no call has been
            assert sets_to_0(cupy, other, pool, call) == 1


def test_graphs_take_so_many_tickets_and_no_more(cupy, monkeypatch):
    monkeypatch.setattr(launching, "MOST_SPARE", 3)
    monkeypatch.setattr(launching, "SPARE", 1)
    device = launching._device(0)
    for _ in range(9):
        taken(device)
        device.workspace(None, 8, 1)
        device.workspace(None, 8, 1)
    assert len(device.of_graphs) == 3


@needs_emulator
def test_what_a_backward_needs_is_in_one_array(cupy):
    """Copies of gamma and beta, which may change before it, are made by the launch of the forward."""
    x, gamma = cupy.asarray(np.random.default_rng(0).standard_normal((5, 6))), cupy.asarray(np.linspace(1, 2, 6))
    before = fake_cupy.launched[:], fake_array.ufuncs
    _, saved = F.layer_norm(x, gamma, gamma, normalized_shape=6)
    assert len(fake_cupy.launched) == len(before[0]) + 1 and fake_array.ufuncs == before[1]
    want = F.backward(x, saved)
    gamma.fill(np.nan)
    for got, then in zip(F.backward(x, saved), want, strict=True):
        assert_same(got.host, then.host)
    parts = saved.mean, saved.rstd, saved.gamma, saved.beta
    assert [part.data.ptr - saved.mean.data.ptr for part in parts] == [0, 40, 80, 128]
