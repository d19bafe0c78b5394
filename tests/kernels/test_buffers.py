"""Memory of large results: handed out again, but never while somebody holds it."""

import gc
import os
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

import bnorm
import child
from bnorm import functional as F
from bnorm.kernels.cpu import buffers

MB = 1 << 20
X = np.random.default_rng(0).standard_normal((4096, 128)).astype("float32")  # 2 MB


def address(a):
    return a.ctypes.data


@pytest.fixture(autouse=True, scope="module")
def nothing_else():
    """What the tests before have left is not looked through again and again by those that collect garbage here."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def limited():
    """64 MB, and nothing kept before and after."""
    before = bnorm.get_buffer_limit()
    gc.collect()
    bnorm.set_buffer_limit(0)
    bnorm.set_buffer_limit(64 * MB)
    yield
    gc.collect()
    bnorm.set_buffer_limit(0)
    bnorm.set_buffer_limit(before)


def result(x=X):
    return F.batch_norm(x)[0]


def test_memory_that_nobody_holds_serves_again():
    y = result()
    first = address(y)
    del y
    assert address(result()) == first
    assert buffers.kept_bytes() == X.nbytes


@pytest.mark.parametrize(
    "hold",
    [
        lambda y: y,
        lambda y: y[7:9, ::2],
        lambda y: y.T.reshape(-1),
        lambda y: memoryview(y),
        lambda y: np.from_dlpack(y),
        lambda y: y.view("uint8")[:, :1],
        lambda y: np.lib.stride_tricks.sliding_window_view(y, 3, axis=1),
    ],
    ids=["the array", "a part", "a transpose", "a buffer", "DLPack", "its bytes", "windows"],
)
def test_memory_that_somebody_holds_is_left_alone(hold):
    held = hold(result())
    before = np.array(held)
    others = [result(X + k) for k in range(3)]
    np.testing.assert_array_equal(np.asarray(held), before)
    assert not any(np.may_share_memory(np.asarray(held), other) for other in others)


def test_gradients_come_from_there_too():
    y, saved = F.batch_norm(X)
    dx = F.backward(y, saved)[0]
    where = address(dx)
    del dx
    assert address(F.backward(y, saved)[0]) == where


@pytest.mark.parametrize("offset", [0, 4, 12, 16, 500, 1000])
@pytest.mark.parametrize(("shape", "same"), [((4000, 20), True), ((250, 320), False), ((50, 4, 20, 20), False)])
def test_results_begin_where_x_does_in_its_page(offset, shape, same):
    """Loads and stores whose addresses end in the same 12 bits wait for each other: no load follows such a store. y
    of a narrow table begins at the place of x in a cache line, other results begin a line."""
    memory = np.zeros(100_000, np.float32)
    x = memory[offset : offset + 80_000].reshape(shape)
    y, saved = F.batch_norm(x)
    for a in (y, F.backward(x, saved)[0]):
        assert (address(x) - address(a)) % 4096 == (0 if same else address(x) % 64)


def test_results_of_another_type_or_by_rows_start_on_a_cache_line():
    x = X.ravel()[4:-4].reshape(-1, 8)
    for y in (result(x.astype(np.int8)), F.layer_norm(x, normalized_shape=8)[0]):
        assert address(y) % 64 == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_results_are_ordinary_arrays(dtype):
    y = result(X[:100].astype(dtype))
    assert y.flags.owndata
    assert buffers.kept_bytes() == 0


def test_the_limit_holds():
    bnorm.set_buffer_limit(5 * MB)
    held = [result() for _ in range(4)]  # 8 MB in all
    assert buffers.kept_bytes() == 4 * MB
    assert sum(y.flags.owndata for y in held) == 2  # these are not kept
    del held
    larger = result(np.concatenate([X, X]))  # 4 MB: what is free makes room
    assert not larger.flags.owndata
    assert buffers.kept_bytes() == 4 * MB


def test_off():
    result()
    bnorm.set_buffer_limit(0)
    assert buffers.kept_bytes() == 0
    assert result().flags.owndata


def test_statistics_of_many_rows_come_from_there_too():
    x = np.ones((1 << 16, 4), "float32")
    saved = F.layer_norm(x, normalized_shape=4)[1]
    assert buffers.kept_bytes() == x.nbytes + 2 * 8 * len(x)
    del saved
    F.layer_norm(x, normalized_shape=4)
    assert buffers.kept_bytes() == x.nbytes + 2 * 8 * len(x)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_minflt is what Linux counts")
@pytest.mark.parametrize(
    ("mode", "shape"),
    [("training", (4, 16384)), ("inference", (4, 16384)), ("backward", (4, 16384)), ("training", (2, 800000))],
)
def test_what_a_call_needs_meanwhile_serves_again(mode, shape):
    """With statistics and sums of many channels: glibc gives such memory back to the system in every call."""
    import resource

    bnorm.set_buffer_limit(128 * MB)
    bn, x = bnorm.BatchNorm1d(shape[1]).train(mode != "inference"), np.ones(shape, "float32")

    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(8):
            bn(x)
            if mode == "backward":
                bn.backward(x)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()
    assert min(faults() for _ in range(3)) < 8 * 4


def test_a_call_without_such_memory():
    x = np.random.default_rng(1).standard_normal((4, 16384))
    want = F.batch_norm(x)[0].copy()
    bnorm.set_buffer_limit(0)
    assert np.array_equal(F.batch_norm(x)[0], want)
    assert buffers.kept_bytes() == 0


def test_a_number_of_buffers_is_the_most():
    bnorm.set_buffer_limit(1 << 30)
    held = [result(X[:256]) for _ in range(600)]
    assert 500 < sum(not y.flags.owndata for y in held) < 600


LITTLE_MEMORY = """
import resource
import numpy as np, bnorm, bnorm.functional as F

bnorm.set_num_threads(1), bnorm.set_buffer_limit(1 << 30)
x = np.ones((1 << 18, 64), "f4")  # 64 MB
F.batch_norm(x[:4096])
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), resource.RLIM_INFINITY))
for rows in (1 << 17, 3 << 16, 1 << 18):  # the results take 32, 48 and 64 MB
    F.batch_norm(x[:rows])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_kept_is_free_for_a_result_that_has_no_memory():
    done = child.run("-c", LITTLE_MEMORY, OPENBLAS_NUM_THREADS=1)
    assert done.returncode == 0, done.stderr


def test_a_lower_limit_gives_back_at_once():
    held = [result() for _ in range(4)]
    assert buffers.kept_bytes() == 8 * MB
    del held
    bnorm.set_buffer_limit(3 * MB)
    assert buffers.kept_bytes() <= 3 * MB


def test_what_is_not_used_any_more_is_given_back():
    result(np.concatenate([X] * 4))
    for n in range(400):  # of other sizes, so that new buffers are made
        result(X[: 4096 - 5 * n])
    assert buffers.kept_bytes() < 8 * MB


def test_many_threads():
    """Without the GIL they take buffers and give them back at the same time: no two may have the same one."""
    gate = Barrier(8)

    def work(own):
        x, gamma, beta = np.ones((64, 512), "float32"), np.zeros(512), np.full(512, own)  # as much as a buffer has
        held = deque(maxlen=3)
        gate.wait()
        for n in range(1000):
            held.append(F.layer_norm(x, gamma, beta, normalized_shape=512)[0][n % 7 :])
            if not all((part == own).all() for part in held):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.parametrize("bad", [True, 1.5, "1", None])
def test_limits_of_a_wrong_type(bad):
    with pytest.raises(TypeError, match="set_buffer_limit: n_bytes: expected an integer"):
        bnorm.set_buffer_limit(bad)


def test_limits_below_zero():
    with pytest.raises(ValueError, match="set_buffer_limit: n_bytes: expected 0 or more"):
        bnorm.set_buffer_limit(-1)


@pytest.mark.parametrize(
    ("value", "output"),
    [("0", "0"), ("1000000", "1000000"), ("lots", "BNORM_BUFFER_LIMIT"), ("-1", "BNORM_BUFFER_LIMIT: expected")],
)
def test_environment(value, output):
    done = subprocess.run(
        [sys.executable, "-c", "import bnorm; print(bnorm.get_buffer_limit())"],
        env={**os.environ, "BNORM_BUFFER_LIMIT": value},
        capture_output=True,
        text=True,
        timeout=child.LIMIT,
    )
    assert output in done.stdout + done.stderr
    assert (done.returncode == 0) == value.isdigit()
