"""The GPU backend on NumPy arrays: its calls and plans, with the CPU emulator where the device would be."""

import functools

import numpy as np
import pytest

from bnorm.kernels.gpu import launching, plans
from cuda_on_cpu.emulator import Emulator, missing
from emulated import fake_streams, usual

needs_emulator = pytest.mark.skipif(bool(missing()), reason=f"the emulator: {missing()}")
of_the_emulator = [
    pytest.mark.cuda,
    pytest.mark.skipif(bool(missing("races")), reason=f"the emulator: {missing('races')}"),
]
SMALL = plans.Limits(processors=3, shared=64 << 10, clusters=False)  # so that small arrays are cut into chunks
RESIDENT = 2  # blocks that share a processor; a device asks its driver about each kernel
CLUSTERED = SMALL._replace(clusters=True)
MEETING = SMALL._replace(processors=6)  # for blocks that meet


class EmulatedDevice:
    """What the backend takes for a device. `order` is the schedule of blocks and threads; new memory holds NaN."""

    def __init__(self, limits=SMALL, emulator=Emulator):
        self.limits, self.order, self.log, self.emulators = limits, 0, [], {}
        self.emulator = emulator
        self.only = None  # all blocks
        self.workspaces, self.stream = launching.Workspaces(), lambda: fake_streams.null

    def empty(self, shape, dtype):
        values = np.empty(shape, dtype)
        values.view(np.uint8).reshape(-1)[...] = 0xFF
        return values

    def zeros(self, shape, dtype):
        return np.zeros(shape, dtype)

    def addresses(self, *arrays):
        return [0 if array is None else array.ctypes.data for array in arrays]

    def address(self, array):
        return self.addresses(array)[0]

    def workspace(self, stream, numbers, tickets):
        """Of exactly the size that was asked for, so that a sanitizer sees what is written beyond it."""
        before = self.workspaces.free.get(stream)
        assert before is None or not before.arrays[1].any(), "the call before left a ticket behind"
        arrays = self.empty((numbers,), np.float64), np.zeros(tickets, np.uint32)
        return launching.Workspace(tuple(self.addresses(*arrays)), numbers, tickets, arrays)

    def prepared(self, plan, call):
        """What `launch` takes, as a Device prepares it."""
        made = []
        for launch in plan.launches:
            size = len(call) + len(launch.geometry)
            kernel = functools.partial(self.called, launch, call)
            made.append((kernel, launch.grid, launch.block, launch.shared, launch.geometry, launching.JOBS[size], None))
        return made, call

    def called(self, launch, call, grid, block, args, shared):
        assert args[0].tobytes() == call + launch.geometry
        self.launch(launch, call)

    run = launching.Device.run

    def launch(self, launch, call):
        self.log.append(launch)
        emulator = self.compiled(launch.family, launch.kernel)
        blocks = None if self.only is None else self.only(launch)
        grid = launch.grid
        if launch.persistent:
            grid = min(grid[0], launch.persistent * RESIDENT * self.limits.processors), 1
        size = grid, launch.block, launch.shared
        resident = self.limits.processors if launch.meeting else 0
        emulator.launch(launch.kernel, *size, (call + launch.geometry,), self.order, resident, blocks)

    def compiled(self, family, kernel):
        """The emulator that has this kernel: compiled with all of its family that are usual, if it is one of them."""
        if kernel not in self.emulators:
            together = usual.kernels(family)
            self.build(family, together if kernel in together else [kernel])
        return self.emulators[kernel]

    def build(self, family, names):
        emulator = self.emulator(launching.source(family), list(names), label=f"{family}.cu")
        self.emulators |= dict.fromkeys(names, emulator)

    def kernels(self):
        """The names of what was launched since the last question."""
        names = [launch.kernel for launch in self.log]
        self.log.clear()
        return names


class PlanningDevice(EmulatedDevice):
    """Launches nothing: what would be launched is in its log. Nobody touches its memory."""

    def empty(self, shape, dtype):
        return np.empty(shape, dtype)

    def launch(self, launch, call):
        self.log.append(launch)


@functools.cache
def emulated():
    """The device of all tests in this process."""
    return EmulatedDevice()


@pytest.fixture(name="device")
def emulated_device(monkeypatch):
    """The backend on the emulator."""
    device = emulated()
    device.log.clear()
    monkeypatch.setattr(launching, "device_of", lambda x: device)
    return device
