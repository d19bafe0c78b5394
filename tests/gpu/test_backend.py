"""The GPU backend without a device: when it comes in, what it says where there is none, and how it launches."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import child
from bnorm.kernels import BACKENDS, cpu, gpu
from bnorm.kernels.activation import IDENTITY
from bnorm.kernels.cpu.launches import launch
from bnorm.kernels.gpu import jobs, launching, plans, row_plans
from cuda_on_cpu.emulator import environment, missing
from emulated.device import EmulatedDevice


class FakeArray:
    """Its type is what CuPy's is."""


@pytest.fixture
def fake_cupy(monkeypatch):
    cupy = ModuleType("cupy")
    cupy.ndarray, cupy.__version__ = FakeArray, "14.0"
    runtime = SimpleNamespace(getDeviceCount=lambda: 0, getDevice=lambda: 0)
    cupy.RawModule = lambda code, options: SimpleNamespace(compile=lambda: None)
    cupy.cuda = SimpleNamespace(runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    gpu.available.cache_clear()
    yield cupy
    gpu.available.cache_clear()
    BACKENDS.pop(FakeArray, None)


def test_the_backend_comes_in_with_the_first_array(fake_cupy):
    assert FakeArray not in BACKENDS
    assert BACKENDS[FakeArray] is gpu
    assert FakeArray in BACKENDS and BACKENDS[np.ndarray] is cpu


def test_other_types_have_none():
    with pytest.raises(KeyError):
        BACKENDS[list]
    with pytest.raises(KeyError):
        BACKENDS[FakeArray]


def test_importing_the_backend_imports_no_cupy():
    code = "import sys, bnorm.kernels.gpu; assert 'cupy' not in sys.modules"
    done = child.run("-c", code)
    assert done.returncode == 0, done.stderr


def test_available_says_why_not(fake_cupy, monkeypatch):
    assert gpu.available() == "CuPy 14.0 finds no CUDA device."

    def no_driver():
        raise RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")

    fake_cupy.cuda.runtime.getDeviceCount = no_driver
    gpu.available.cache_clear()
    assert gpu.available().startswith("CuPy 14.0 finds no CUDA device: cudaErrorInsufficientDriver")
    fake_cupy.cuda.runtime.getDeviceCount = lambda: 1
    gpu.available.cache_clear()
    assert gpu.available() is None

    def no_compiler(code, options):
        raise RuntimeError("DynamicLibNotFoundError: libnvrtc")

    fake_cupy.RawModule = no_compiler
    gpu.available.cache_clear()
    reason = gpu.available()
    assert reason.startswith("CuPy 14.0 cannot compile: DynamicLibNotFoundError: libnvrtc. pip install 'bnorm[gpu]'")
    monkeypatch.setitem(sys.modules, "cupy", None)
    gpu.available.cache_clear()
    assert gpu.available() == "CuPy is not installed: pip install 'bnorm[gpu]'."


def on_device(make):
    """Arrays with the addresses that CuPy's have."""

    def made(shape, dtype):
        array = make(shape, dtype)
        return SimpleNamespace(host=array, data=SimpleNamespace(ptr=array.ctypes.data, device_id=0))

    return made


@pytest.fixture
def recorded(monkeypatch):
    """A Device with a CuPy that only takes down what it is asked to do."""
    log = []

    class Kernel:
        def __init__(self, name):
            self.name = name

        def __setattr__(self, key, value):
            object.__setattr__(self, key, value)
            if key != "name":
                log.append((self.name, key, value))

        ptr, kernel = 7, property(lambda self: self)

        def __call__(self, grid, block, args, shared_mem):
            (job,) = args
            # CuPy passes a NumPy array of one element by value, and refuses others
            assert isinstance(job, np.ndarray) and job.size == 1 and job.itemsize in launching.JOBS
            log.append((self.name, grid, block, shared_mem))

    class Module:
        def __init__(self, code, options, name_expressions):
            assert code in (launching.source("channels"), launching.source("rows")) and options == launching.OPTIONS
            log.append(("compile", *name_expressions))

        def get_function(self, name):
            return Kernel(name)

    limits = {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 227 << 10}
    cuda = SimpleNamespace(
        driver=SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=lambda *asked: log.append(asked) or 3),
        Device=lambda index: SimpleNamespace(attributes=limits, compute_capability="90"),
        get_current_stream=lambda: None,
        runtime=SimpleNamespace(getDevice=lambda: 0),
    )
    cupy = SimpleNamespace(RawModule=Module, cuda=cuda, empty=on_device(np.empty), zeros=on_device(np.zeros))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    for cached in (launching._device, launching.current_stream):
        cached.cache_clear()
    yield launching._device(0), log
    for cached in (launching._device, launching.current_stream):
        cached.cache_clear()


def test_a_kernel_is_compiled_once_and_given_its_shared_memory(recorded):
    device, log = recorded
    assert device.limits == plans.Limits(132, 227 << 10, clusters=True)
    size = 32, 512, 784, "float32", True
    plan = plans.reduction("moments", *size, False, "normalize", IDENTITY.kind, device.limits)
    (large,) = plan.launches
    assert large.shared > 48 << 10
    device.run(plan, bytes(jobs.JOB.size - len(large.geometry)))
    launch([device.prepared(plan, bytes(jobs.JOB.size - len(large.geometry)))])
    name = large.kernel
    asked = (7, 256, large.shared)  # how many blocks run at a time, which then go on
    run = (name, (3 * 132, 1), large.block, large.shared)
    most = (name, "max_dynamic_shared_size_bytes", 216 << 10)
    assert log == [("compile", name), most, asked, run, run]


def test_a_kernel_may_ask_for_as_much_memory_whichever_plan_comes_last(recorded):
    """Two threads may prepare plans of one kernel at the same time, and what the second one says of it holds."""
    device, log = recorded
    call = bytes(jobs.JOB.size - 8 * len(jobs.JOB.geometry))
    for outer in (28, 32, 24):
        size = outer, 512, 784, "float32", True
        device.prepare(plans.reduction("moments", *size, False, "normalize", 0, device.limits), call)
    found = [entry[2] for entry in log if entry[1:2] == ("max_dynamic_shared_size_bytes",)]
    assert found == [216 << 10] * 3 and len([entry for entry in log if entry[0] == "compile"]) == 1


def test_rows_get_as_many_blocks_as_run_at_a_time(recorded):
    """Those that go on from row to row; where they leave sums behind, the plan says how many there are."""
    device, log = recorded
    # and late ones of the last rows: three for each, or one that leaves sums
    for rows, params, blocks in ((10**6, False, 4 * 3 * 132), (132, False, 132), (10**6, True, 2 * 2 * 132)):
        plan = row_plans.rows("rows_backward", (rows, 1, 1024, 1), "bfloat16", False, params, 0, device.limits)
        device.run(plan, bytes(jobs.ROW_JOB.size - len(plan.launches[0].geometry)))
        launched = [entry for entry in log if entry[1:2] == ((blocks, 1),)]
        asked = [entry for entry in log if entry[:1] == (7,)]
        assert launched and asked == ([] if params else [(7, 256, plan.launches[0].shared)])
        log.clear()


def test_an_array_of_another_device_is_refused(recorded):
    with pytest.raises(ValueError, match=r"x: expected an array on the current device, 0, got one on device 1"):
        launching.device_of(SimpleNamespace(data=SimpleNamespace(device_id=1)))


def test_arrays_beside_x_are_on_its_device(recorded):
    device, _ = recorded
    assert device.address(SimpleNamespace(data=SimpleNamespace(ptr=64, device_id=0))) == 64
    with pytest.raises(ValueError, match=r"expected arrays on device 0, where x is, got one on device 1"):
        device.address(SimpleNamespace(data=SimpleNamespace(ptr=64, device_id=1)))


def test_the_number_left_alone_is_read_when_looked_at():
    left = gpu.LeftAlone(np.array([0, 1, 1], np.int32))
    assert (int(left), bool(left), repr(left)) == (2, True, "2")
    assert left == 2 and left != 1 and [1, 2, 3][left] == 3


def test_new_memory_of_the_emulated_device_is_no_number():
    assert np.isnan(EmulatedDevice().empty((2, 3), np.float32)).all()


@pytest.mark.cuda
@pytest.mark.parametrize("sanitize", ["address", "undefined", "races"])
def test_the_kernels_under_sanitizers(sanitize):
    if reason := missing(sanitize):
        pytest.skip(reason)
    script = Path(child.__file__).with_name("emulated") / "sanitized.py"
    done = child.run(script, sanitize, **environment(sanitize))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "launches of" in done.stdout
