"""Several forwards of one layer before a backward, and forwards without one."""

import copy
import gc
import os
import pickle
import threading
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest

import bnorm
import child
from bnorm import passes
from compare import assert_same

C = 4
MAKE = {
    "batch": lambda **options: bnorm.BatchNorm1d(C, **options),
    "inference": lambda **options: bnorm.BatchNorm1d(C, **options).eval(),
    "layer": lambda **options: bnorm.LayerNorm(C, **options),
    "rms": lambda **options: bnorm.RMSNorm(C, **options),
    "group": lambda **options: bnorm.GroupNorm(2, C, **options),
}
every_layer = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
rng = np.random.default_rng(0)


class Array(np.ndarray):
    """An array that a weak reference can watch."""


def one(make, x, dy):
    """y, dx and the gradients of the parameters, by a layer of its own."""
    layer = make()
    return layer(x), layer.backward(dy), [p.grad for p in layer.parameters()]


@every_layer
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_any_number_in_any_order(make, order):
    xs, dys = rng.standard_normal((2, 3, 6, C))
    layer, totals = make(), [np.zeros(C) for _ in make().parameters()]
    opened = [layer.vjp(x) for x in xs]
    for i in order:
        y, dx, grads = one(make, xs[i], dys[i])
        assert_same(opened[i][0], y)
        assert_same(opened[i][1](dys[i]), dx)
        for total, grad in zip(totals, grads, strict=True):
            total += grad
    for p, total in zip(layer.parameters(), totals, strict=True):
        assert_same(p.grad, total)


@every_layer
def test_once(make):
    layer = make()
    x, dy = rng.standard_normal((2, 6, C))
    _, pull = layer.vjp(x)
    pull(dy)
    grads = [p.grad.copy() for p in layer.parameters()]
    with pytest.raises(RuntimeError, match=r"pull: expected one call for each vjp"):
        pull(dy)
    for p, grad in zip(layer.parameters(), grads, strict=True):
        assert_same(p.grad, grad)


@every_layer
def test_the_forward_that_waits_goes_on_waiting(make):
    layer = make()
    x, dy, x2, dy2 = rng.standard_normal((4, 6, C))
    layer(x)
    _, pull = layer.vjp(x2)
    assert_same(layer.backward(dy), one(make, x, dy)[1])
    assert_same(pull(dy2), one(make, x2, dy2)[1])
    layer.vjp(x)
    with pytest.raises(RuntimeError, match=r"backward: expected a forward .*layer\.vjp\(x\)"):
        layer.backward(dy)


@every_layer
@pytest.mark.parametrize("again", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_of_a_layer_and_its_open_backward(make, again):
    layer = make()
    x, dy = rng.standard_normal((2, 6, C))
    _, pull = layer.vjp(x)
    other, other_pull = again((layer, pull))
    assert_same(other_pull(dy), pull(dy))
    for p, q in zip(layer.parameters(), other.parameters(), strict=True):
        assert_same(q.grad, p.grad)
        assert not np.shares_memory(q.grad, p.grad)


def test_an_error_in_pull_leaves_it_open():
    bn = bnorm.BatchNorm1d(C)
    x, dy = rng.standard_normal((2, 6, C))
    _, pull = bn.vjp(x)
    with pytest.raises(ValueError, match=r"^BatchNorm1d\(4\): dy: expected the shape of x"):
        pull(dy[:2])
    assert_same(pull(dy), one(MAKE["batch"], x, dy)[1])


def test_an_error_in_vjp_leaves_nothing_behind():
    bn = bnorm.BatchNorm1d(C)
    with pytest.raises(ValueError, match="expected 4 channels"):
        bn.vjp(np.ones((3, C + 1)))
    x, dy = rng.standard_normal((2, 6, C))
    bn(x)
    assert_same(bn.backward(dy), one(MAKE["batch"], x, dy)[1])


def test_training_moves_the_statistics_and_takes_all_arguments():
    bn, other = bnorm.BatchNorm1d(C), bnorm.BatchNorm1d(C)
    x, dy = rng.standard_normal((2, 6, C))
    weight, out, dx = np.arange(6.0), np.empty_like(x), np.empty_like(x)
    y, pull = bn.vjp(x, weight, out=out)
    assert y is out
    assert_same(y, other(x, weight))
    assert pull(dy, out=dx) is dx
    assert_same(dx, other.backward(dy))
    assert_same(bn.running_mean, other.running_mean)
    assert (bn.num_batches_tracked, other.num_batches_tracked) == (1, 1)


def test_it_keeps_the_mode_and_the_parameters_of_its_forward():
    bn, other = bnorm.BatchNorm1d(C), bnorm.BatchNorm1d(C)
    x, dy = rng.standard_normal((2, 6, C))
    _, pull = bn.vjp(x)
    bn.eval()
    bn.gamma = np.full(C, 7.0)
    other(x)
    assert_same(pull(dy), other.backward(dy))


def test_a_shared_layer_has_the_true_gradient():
    """f(x) = sum(w * ln(ln(x) + x)), by central differences."""
    ln = bnorm.LayerNorm(C)
    ln.gamma, ln.beta = rng.uniform(0.5, 2, C), rng.standard_normal(C)
    x, w = rng.standard_normal((2, 3, C))

    def loss(x):
        return float(np.sum(w * ln(ln(x) + x)))

    y, first = ln.vjp(x)
    _, second = ln.vjp(y + x)
    d = second(w)
    dx = first(d) + d
    way, h = rng.standard_normal(x.shape), 1e-6
    slope = (loss(x + h * way) - loss(x - h * way)) / (2 * h)
    assert np.sum(dx * way) == pytest.approx(slope, rel=1e-6)
    for p in (ln.gamma, ln.beta):
        way, start = rng.standard_normal(C), p.data.copy()
        p.data = start + h * way
        above = loss(x)
        p.data = start - h * way
        slope = (above - loss(x)) / (2 * h)
        p.data = start
        assert np.sum(p.grad * way) == pytest.approx(slope, rel=1e-6)


def test_a_subclass_with_a_backward_needs_a_vjp():
    """A pull would not call that backward, and return another gradient."""

    class Cubed(bnorm.BatchNorm1d):
        def forward(self, x):
            self.x = x
            return super().forward(x**3)

        def backward(self, dy, out=None):
            return 3 * self.x**2 * super().backward(dy)

    class Both(Cubed):
        def vjp(self, x):
            y, pull = super(Cubed, self).vjp(x)
            return y, lambda dy: 3 * x**2 * pull(dy)

    x, dy = rng.standard_normal((2, 6, C))
    for layer in (Cubed(C), type("Further", (Cubed,), {})(C)):
        layer(x)
        with pytest.raises(TypeError, match=r"^(Cubed|Further)\(4\): vjp: expected .* got one that Cubed defines"):
            layer.vjp(x)
        assert layer.num_batches_tracked == 1
    dx = layer.backward(dy)
    assert_same(Both(C).vjp(x)[1](dy), dx)


def test_a_subclass_that_wraps_the_call():
    class Twice(bnorm.BatchNorm1d):
        def __call__(self, x):
            return super().__call__(2 * x)

    x, dy = rng.standard_normal((2, 6, C))
    _, pull = Twice(C).vjp(x)
    assert_same(pull(dy), one(MAKE["batch"], 2 * x, dy)[1])


# Without a backward --------------------------------------------------------------------------------------------------


@every_layer
def test_no_backward_keeps_nothing(make):
    layer = make()
    x = rng.standard_normal((6, C)).view(Array).astype(np.float32, subok=True)
    plain = np.asarray(x)
    watched = weakref.ref(x)
    with bnorm.no_backward():
        y = layer(plain)
    assert layer._saved is None
    del x, plain
    if watched() is not None:  # in a cycle; looking for one takes seconds
        gc.collect()
    assert watched() is None
    with pytest.raises(RuntimeError, match=r"no_backward\(\) keeps none"):
        layer.backward(y)


def test_nothing_is_made_for_a_backward_that_will_not_come(monkeypatch):
    """In inference; in training batch norm needs what it saves to move its statistics."""
    refuse = Mock(side_effect=AssertionError("made something for a backward"))
    monkeypatch.setattr(passes, "ChannelSaved", refuse)
    monkeypatch.setattr(passes, "RowSaved", refuse)
    x = rng.standard_normal((6, C), dtype=np.float32)
    layers = [
        bnorm.BatchNorm1d(C),
        bnorm.LayerNorm(C),
        bnorm.RMSNorm(C),
        bnorm.GroupNorm(1, C),
        bnorm.InstanceNorm1d(C),
        bnorm.InstanceNorm1d(C, track_running_stats=True),
    ]
    for layer in layers:
        layer.eval()
        images = x[:, :, None].repeat(2, axis=2) if isinstance(layer, bnorm.InstanceNorm1d) else x
        with bnorm.no_backward():
            layer(images)
            layer(images, out=np.empty_like(images))
        with pytest.raises(AssertionError, match="made something"):
            layer(images)


def test_no_backward_copies_no_parameters():
    layer = bnorm.LayerNorm(30_000)
    x = rng.standard_normal((1, 30_000), dtype=np.float32)
    out = np.empty_like(x)
    with bnorm.no_backward():
        assert memory_of(layer, x, out) < x.nbytes // 2
    assert memory_of(layer, x, out) >= x.nbytes  # gamma in the type of x


def memory_of(call, *args):
    call(*args)
    tracemalloc.start()
    call(*args)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@every_layer
def test_no_backward_does_not_change_the_result(make):
    layer, other = make(), make()
    x, dy = rng.standard_normal((2, 6, C))
    layer(x)  # waits, and is given up by the next
    with bnorm.no_backward():
        y = layer(x)
    other(x)
    assert_same(y, other(x))
    assert {name: a.tobytes() for name, a in layer.state_dict().items()} == {
        name: a.tobytes() for name, a in other.state_dict().items()
    }
    layer(x)  # after the block all is as before
    other(x)
    assert_same(layer.backward(dy), other.backward(dy))


@every_layer
def test_vjp_inside_of_no_backward(make):
    x, dy = rng.standard_normal((2, 6, C))
    layer = make()
    with bnorm.no_backward():
        y, pull = layer.vjp(x)
        assert layer._saved is None
        with bnorm.no_backward():
            layer(x)
        layer(x)
    want_y, want_dx, _ = one(make, x, dy)
    assert_same(y, want_y)
    assert_same(pull(dy), want_dx)


def test_no_backward_ends_with_an_error():
    bn = bnorm.BatchNorm1d(C)
    with pytest.raises(KeyError), bnorm.no_backward():
        raise KeyError
    x = rng.standard_normal((6, C))
    bn(x)
    assert bn.backward(x).shape == x.shape


def test_no_backward_is_of_one_thread():
    x = rng.standard_normal((6, C))
    inside, go = threading.Event(), threading.Event()
    left = {}

    def other():
        with bnorm.no_backward():
            inside.set()
            assert go.wait(60)
            layer = bnorm.LayerNorm(C)
            layer(x)
            left["there"] = layer._saved

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(60)
    layer = bnorm.LayerNorm(C)
    layer(x)
    go.set()
    thread.join()
    assert left == {"there": None}
    assert layer.backward(x).shape == x.shape


FORKS = """
import os, threading, bnorm
from bnorm.layers.backward import OPEN

inside, go = threading.Event(), threading.Event()

def wait():
    with bnorm.no_backward():
        inside.set()
        go.wait()

thread = threading.Thread(target=wait)
thread.start()
inside.wait()
bnorm.set_debug(True)
with bnorm.no_backward():
    pid = os.fork()
    left = len(OPEN)
if pid == 0:
    os._exit(0 if (left, len(OPEN)) == (2, 1) else 1)
go.set()
thread.join()
assert (left, len(OPEN), os.waitpid(pid, 0)[1]) == (3, 1, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_leaves_the_other_threads_behind():
    """A thread of the child may get the identity of one of them; the block of the thread that forks goes on."""
    done = child.run("-c", FORKS)
    assert done.returncode == 0, done.stderr


def test_a_forward_of_another_thread_during_a_vjp():
    """It is the layer's own, whichever thread is inside of a vjp of the same layer meanwhile."""
    inside, go = threading.Event(), threading.Event()

    class Waits(bnorm.LayerNorm):
        def __call__(self, x, *args, **options):
            if threading.current_thread() is thread:
                inside.set()
                assert go.wait(60)
            return super().__call__(x, *args, **options)

    ln, pulls, (x, dy) = Waits(C), [], rng.standard_normal((2, 6, C))
    thread = threading.Thread(target=lambda: pulls.append(ln.vjp(2 - x)[1]))
    thread.start()
    assert inside.wait(60)
    ln(x)
    go.set()
    thread.join()
    for got, of in ((ln.backward(dy), x), (pulls[0](dy), 2 - x)):
        np.testing.assert_array_equal(got, one(MAKE["layer"], of, dy)[1])


def test_threads_do_not_take_each_others_forward():
    """One layer, whose forwards of many threads are open at once."""
    ln = bnorm.LayerNorm(C)
    ln.gamma.requires_grad = ln.beta.requires_grad = False
    xs, dys = rng.standard_normal((2, 8, 50, 6, C))
    wrong = []

    def work(mine, theirs):
        for x, dy in zip(mine, theirs, strict=True):
            y, pull = ln.vjp(x)
            want_y, want_dx, _ = one(MAKE["layer"], x, dy)
            if not (np.array_equal(y, want_y) and np.array_equal(pull(dy), want_dx)):
                wrong.append(x)

    with ThreadPoolExecutor(len(xs)) as pool:
        list(pool.map(work, xs, dys))
    assert not wrong
