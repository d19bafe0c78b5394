"""Runs header-free CUDA C++ on the CPU, and finds the errors that a device hides.

    emulator = Emulator(source, ["scale<float, 4>"])
    x, y = emulator.copy(x), emulator.empty(x.shape, x.dtype)
    emulator.launch("scale<float, 4>", (blocks,), (256,), 0, (x, y, np.float32(2), np.int64(n)), order=1)

g++ compiles the text against shim.h into a shared library, which is kept. Threads are fibers; runtime.cpp says what is
checked. Shared memory is declared by BN_SHARED(T, name, count) and BN_DYN_SHARED(T, name), which the text defines for a
device itself, under `#ifndef BN_ON_CPU`.

`sanitize` is None, or what else to look for: "undefined" (all of UBSan), "races" (two threads at the same bytes, one of
them writing, and nothing that orders them; or a thread at what a copy under way writes), "address" (AddressSanitizer:
in a process with `environment("address")`).

CuPy compiles with -ftz=true: subnormal float32 numbers are 0 to a device, but where they are only moved. So they are
here, unless EMULATOR_SUBNORMALS is set, which keeps them. The processor does it to float64 numbers too, which a device
does not: kernels whose elements are double run without.
"""

import ctypes
import math
import os
import platform
import re
import shutil
import subprocess
import threading
import weakref

import numpy as np

from cuda_on_cpu.building import EmulatorError, build, environment, missing

__all__ = ["ORDERS", "Emulator", "EmulatorError", "environment", "located", "missing"]

ORDERS = (0, 1, 2)  # forward, backward, and the first of the shuffled ones: any larger number is another
CLUSTER = 8  # blocks that every device with clusters can run together
LIMITS = {"grid": (2**31 - 1, 65535, 65535), "block": (1024, 1024, 64)}
MAX_THREADS = 1024
MAX_DYNAMIC_SHARED = 227 * 1024
MAX_PARAMETER_BYTES = 4096
ZONE = 256  # bytes around an array, and what its address is a multiple of
POISON = 0xFF  # NaN in every format
FLUSH = platform.machine() in ("x86_64", "AMD64") and not os.environ.get("EMULATOR_SUBNORMALS")
LAUNCHING = threading.Lock()  # a library runs one launch at a time


class Parameter(ctypes.Structure):
    """As in shim.h: i, u, f (arithmetic), p (pointer), s (struct); and what a pointer points to."""

    _fields_ = [
        ("kind", ctypes.c_char),
        ("target", ctypes.c_char),
        ("bytes", ctypes.c_int),
        ("target_bytes", ctypes.c_int),
    ]

    def __str__(self):
        kinds = {"p": "pointer", "s": "struct", "i": "integer", "u": "unsigned integer", "f": "floating-point number"}
        return f"{kinds[self.kind.decode()]} of {self.bytes} bytes"


def located(report: str) -> str:
    """A report, of AddressSanitizer too, with places in the text: of addresses, where it has not found them itself."""
    report = re.sub(r"/\S+/(\w+\.cu:\d+)", r"\1", report)

    def place(match: re.Match) -> str:
        command = ["addr2line", "-i", "-e", match[1], match[2]]
        found = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
        ours = [
            line.split()[0].rpartition("/")[2] for line in found if line and not re.search(r"(shim|messages)\.h:", line)
        ]
        return ours[0] if ours else match[0]

    return re.sub(r"\((/\S+\.so)\+(0x\w+)\)", place, report) if shutil.which("addr2line") else report


class Emulator:
    """Instances of the kernels of one text. `label` is what errors call the text."""

    def __init__(self, source: str, names: list[str], sanitize: str | None = None, label: str = "kernels.cu"):
        self.names = list(dict.fromkeys(names))
        self.sanitize, self.label = sanitize, label
        self.path = build(source, self.names, sanitize, label)
        self.library = ctypes.CDLL(str(self.path))
        self.library.emu_error.restype = ctypes.c_char_p
        self.clusters = clusters(source)
        self.parameters = {name: self._parameters(i) for i, name in enumerate(self.names)}
        self._guarded: dict[int, tuple[weakref.ref, int, int]] = {}

    def _parameters(self, index: int) -> list[Parameter]:
        found = (Parameter * self.library.emu_parameters(index, None))()
        self.library.emu_parameters(index, found)
        return list(found)

    def launch(self, name, grid, block, shared_bytes, args, order=0, resident=0, only=None, flush=None):
        """Run a kernel as cuLaunchKernel would, and return when it has ended; EmulatorError if it did wrong.

        `args`: an array or None for a pointer, NumPy scalars of exactly the parameter's type, the bytes of a struct
        (also np.void or a ctypes.Structure). `order` chooses the schedule of blocks and threads. `resident` is how many
        blocks there can be at a time, 0 for any number. `only` are the linear indices of the blocks to run, for grids
        that are too large to run whole. `flush`: whether subnormal numbers are 0; None: as CuPy has it.
        """
        if name not in self.parameters:
            raise EmulatorError(f"{name}: not among the instances {', '.join(self.names)}")
        grid, block = ((*map(int, size), 1, 1)[:3] for size in (grid, block))
        check_size(name, grid, block, shared_bytes)
        cluster = self.clusters.get(name.partition("<")[0], (1, 1, 1))
        check_cluster(name, grid, cluster)
        packed = pack(name, self.parameters[name], args)
        blocks = np.array([] if only is None else only, np.uint64)
        call = (
            self.names.index(name),
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            (ctypes.c_uint * 3)(*cluster),
            ctypes.c_uint64(shared_bytes),
            (ctypes.c_void_p * len(packed))(*(memory.ctypes.data for memory in packed)),
            ctypes.c_uint64(order),
            ctypes.c_uint64(resident),
            None if only is None else ctypes.c_void_p(blocks.ctypes.data),
            ctypes.c_uint64(blocks.size),
            ctypes.c_int(FLUSH and "<double" not in name if flush is None else flush),
        )
        with LAUNCHING:
            failed = self.library.emu_launch(*call)
            message = re.sub(r"@(0x\w+)", rf"({self.path}+\1)", self.library.emu_error().decode())
        if failed:
            raise EmulatorError(f"{name}: {located(message)}")
        self._check_zones(name)

    # Memory with zones around it ----------------------------------------------------------------------------------

    def empty(self, shape, dtype, offset=0) -> np.ndarray:
        """An array whose bytes are 0xFF, and so are those around it: each launch has to leave these alone.

        The first element is `offset` elements behind an address that 256 divides: a device's memory starts at such.
        """
        shape, dtype = tuple(np.atleast_1d(shape)) if np.ndim(shape) else (int(shape),), np.dtype(dtype)
        size, skip = math.prod(shape) * dtype.itemsize, offset * dtype.itemsize
        exact = self.sanitize == "address"  # knows every allocation, so there is nothing around the array
        buffer = np.full(size + skip + (0 if exact else 3 * ZONE), POISON, np.uint8)
        start = skip if exact else -buffer.ctypes.data % ZONE + ZONE + skip
        if not exact:
            self._guarded[id(buffer)] = (weakref.ref(buffer), start, start + size)
        return buffer[start : start + size].view(dtype).reshape(shape)

    def copy(self, array, offset=0) -> np.ndarray:
        """A copy of an array, in such memory."""
        copied = self.empty(np.shape(array), np.asarray(array).dtype, offset)
        copied[...] = array
        return copied

    def _check_zones(self, name: str) -> None:
        for key, (reference, start, stop) in list(self._guarded.items()):
            buffer = reference()
            if buffer is None:
                del self._guarded[key]
                continue
            for zone, place in ((buffer[:start], "before"), (buffer[stop:], "behind")):
                if np.any(zone != POISON):
                    zone[...] = POISON
                    raise EmulatorError(f"{name}: something was written {place} an array of {stop - start} bytes")


def check_size(name, grid, block, shared_bytes):
    """What no device can launch is an error."""
    for what, size in (("grid", grid), ("block", block)):
        if any(not 0 < n <= most for n, most in zip(size, LIMITS[what], strict=True)):
            raise EmulatorError(f"{name}: {what}: expected from 1 to {LIMITS[what]}, got {size}")
    if math.prod(block) > MAX_THREADS:
        raise EmulatorError(f"{name}: block: expected at most {MAX_THREADS} threads, got {math.prod(block)}")
    if not 0 <= shared_bytes <= MAX_DYNAMIC_SHARED:
        raise EmulatorError(f"{name}: dynamic shared memory: expected at most {MAX_DYNAMIC_SHARED}, got {shared_bytes}")


def clusters(source: str) -> dict[str, tuple[int, ...]]:
    """The kernels that say of how many blocks a cluster of theirs is, and that."""
    found = {}
    for size, rest in re.findall(r"__cluster_dims__\(([^()]*)\)([^;{]*)\{", source):
        name = re.findall(r"(\w+)\s*\([^()]*\)\s*$", rest)[0]
        found[name] = tuple(int(number) for number in (size + ", 1, 1").split(",")[:3])
    return found


def check_cluster(name, grid, cluster):
    if math.prod(cluster) > CLUSTER:
        raise EmulatorError(f"{name}: cluster: expected at most {CLUSTER} blocks, got {cluster}")
    if any(n % together for n, together in zip(grid, cluster, strict=True)):
        raise EmulatorError(f"{name}: grid: expected whole clusters of {cluster}, got {grid}")


def pack(name, parameters, args) -> list[np.ndarray]:
    """Each argument in memory of its own, checked against its parameter."""
    if len(args) != len(parameters):
        raise EmulatorError(f"{name}: expected {len(parameters)} arguments, got {len(args)}")
    if (total := sum(p.bytes for p in parameters)) > MAX_PARAMETER_BYTES:
        raise EmulatorError(f"{name}: {total} bytes of parameters, at most {MAX_PARAMETER_BYTES}")
    return [pack_one(f"{name}: argument {i}", p, a) for i, (p, a) in enumerate(zip(parameters, args, strict=True))]


def pack_one(what: str, parameter: Parameter, value) -> np.ndarray:
    kind, target = parameter.kind.decode(), parameter.target.decode()
    if kind == "p" and value is None:
        value = np.uint64(0)
    if kind == "p" and isinstance(value, np.ndarray):
        check_target(what, target, parameter.target_bytes, value.dtype)
        value = np.uint64(value.ctypes.data)
    if isinstance(value, (bytes, bytearray, np.void, ctypes.Structure)):
        raw, fits = np.frombuffer(bytes(value), np.uint8), kind == "s"
        got = f"{raw.size} bytes"
    elif isinstance(value, np.generic):
        raw = np.array([value]).view(np.uint8)
        fits = value.dtype.kind in {"p": "u", "u": "ub", "s": "fV"}.get(kind, kind)
        got = type(value).__name__
    else:
        raise EmulatorError(f"{what}: expected a {parameter}, got {type(value).__name__}, which has no exact type")
    if not fits or raw.size != parameter.bytes:
        raise EmulatorError(f"{what}: expected a {parameter}, got {got}")
    memory = np.zeros(-(-raw.size // 16), np.complex128).view(np.uint8)  # aligned to 16 bytes
    memory[: raw.size] = raw
    return memory


def check_target(what: str, target: str, target_bytes: int, dtype: np.dtype) -> None:
    """An array for a pointer to numbers has these numbers; bytes, and pointers to structs, take any."""
    if target in ("i", "u", "f") and target_bytes > 1 and (target, target_bytes) != (dtype.kind, dtype.itemsize):
        raise EmulatorError(f"{what}: expected an array of {target}{target_bytes}, got one of {dtype}")
