"""The tools that test CUDA kernels without a device: each planted bug is seen, and what is right passes.

The bugs are in cuda_on_cpu/planted.cu. They run in processes of their own (planted.py beside it): one for each way of
looking, and for AddressSanitizer, which ends its process, one for each bug.
"""

import ctypes
import json
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import child
from cuda_on_cpu import building, nvrtc, planted
from cuda_on_cpu.emulator import ORDERS, Emulator, EmulatorError, environment, located, missing

pytestmark = pytest.mark.cuda

MODES = (None, "undefined", "races", "address")


def read(name: str) -> str:
    return (building.HERE / name).read_text(encoding="utf-8")


def line(text: str) -> int:
    """The number of the one line of planted.cu that has this text."""
    (found,) = (i for i, content in enumerate(planted.SOURCE.splitlines(), 1) if text in content)
    return found


STORED, MIRRORED, SHUFFLE = line("tile[t + "), line("const T mirrored"), line("s += __shfl_down_sync")
PARTS, MERGED, NAP = (
    f"({line('parts[part]')}|{line('sizes.parts + part]')})",
    line("sum += parts["),
    line("__nanosleep"),
)

# Each bug, what looks for it, and what it finds in every order: the error; "wrong", a result, in some order is enough.
FOUND = [
    ("NO_BARRIER", None, "wrong"),
    ("NO_BARRIER", "races", rf"race in shared memory: planted.cu:({STORED} writes|{MIRRORED} reads)"),
    ("NO_SECOND_BARRIER", None, "wrong"),
    ("NO_SECOND_BARRIER", "races", r"race in shared memory: planted.cu:\d+ (writes what .* read|reads what .* wrote)"),
    ("EARLY_RETURN", None, r"at a barrier that others will never reach .* 1 thread from 77 on ended"),
    ("OTHER_BARRIER", None, r"threads meet at different barriers .* 128 threads from 128 on at __syncthreads"),
    ("HALF_WARP", None, rf"wait for each other forever .* __shfl_down_sync, planted.cu:{SHUFFLE}, mask ffffffff"),
    (
        "STRANGER",
        None,
        rf"planted.cu:{SHUFFLE}: __shfl_down_sync: lane 8 calls, and its mask 000000ff does not name it",
    ),
    ("WRONG_WIDTH", None, "wrong"),
    ("READ_PAST", None, "wrong"),
    ("READ_PAST", "address", r"heap-buffer-overflow planted.cu:\d+"),
    ("WRITE_PAST", None, r"something was written behind an array of 24 bytes"),
    ("WRITE_PAST", "address", rf"heap-buffer-overflow planted.cu:{PARTS}"),
    ("SHARED_PAST", None, r"planted.cu:\d+: an index out of bounds, thread \(224, 0, 0\)"),
    ("SHARED_PAST", "races", r"something was written behind shared array warps \(28 bytes\)"),
    ("SHARED_PAST", "address", r"use-after-poison planted.cu:\d+"),
    ("DYNAMIC_PAST", None, r"something was written behind shared array \(dynamic\) \(1024 bytes\)"),
    ("DYNAMIC_PAST", "address", rf"use-after-poison planted.cu:{STORED}"),
    ("SAME_PART", None, "wrong"),
    ("SAME_PART", "races", rf"race in device memory: planted.cu:{PARTS} writes what thread 0 of another block wrote"),
    ("NO_FENCE", "races", rf"planted.cu:{MERGED} reads what thread 0 of another block wrote at planted.cu:{PARTS}"),
    ("TICKET_FIRST", "races", rf"planted.cu:{MERGED} reads what thread 0 of another block wrote at planted.cu:{PARTS}"),
    ("WRONG_COUNT", None, rf"every thread that is left spins, .* at (__nanosleep|atomicAdd), planted.cu:{NAP}"),
    ("OVERFLOW", "undefined", r"planted.cu:\d+: a signed product overflows"),
    ("MISALIGNED", None, r"planted.cu:\d+: misaligned: 16 bytes are wanted"),
    ("MISALIGNED", "undefined", r"planted.cu:\d+: misaligned: 16 bytes are wanted"),
]


def needs(sanitize: str | None = None) -> None:
    if reason := missing(sanitize):
        pytest.skip(reason)


def needs_nvrtc() -> None:
    if reason := nvrtc.missing():
        pytest.skip(reason)


def run_planted(sanitize: str | None, *bugs: str) -> dict[str, list[str]]:
    """What a process sees of these bugs; of the one that ended it, its report."""
    done = child.run(building.HERE / "planted.py", sanitize, *bugs, **environment(sanitize))
    seen: dict[str, list[str]] = {}
    for text in done.stdout.splitlines():
        seen |= json.loads(text)
    if done.returncode:
        seen[bugs[len(seen)]] = [located(done.stderr)]
    return seen


@pytest.fixture(scope="module")
def seen() -> dict[str | None, dict[str, list[str]]]:
    """By what looks, and by bug."""
    jobs = []
    for mode in MODES:
        if not missing(mode):
            building.build(planted.SOURCE, planted.NAMES, mode, planted.LABEL)
            bugs = ["NONE", *dict.fromkeys(bug for bug, looks, _ in FOUND if looks == mode)]
            jobs += [(mode, bug) for bug in bugs] if mode == "address" else [(mode, *bugs)]
    found: dict[str | None, dict[str, list[str]]] = {mode: {} for mode in MODES}
    with ThreadPoolExecutor(2) as pool:
        for (mode, *_), result in zip(jobs, pool.map(lambda job: run_planted(*job), jobs), strict=True):
            found[mode] |= result
    return found


@pytest.mark.parametrize("mode", MODES)
def test_what_is_right_passes(seen, mode):
    needs(mode)
    assert seen[mode]["NONE"] == ["right"] * 2 * len(ORDERS)


@pytest.mark.parametrize(("bug", "mode", "what"), FOUND)
def test_what_is_wrong_is_seen(seen, bug, mode, what):
    needs(mode)
    results = seen[mode][bug]
    if what == "wrong":
        assert "wrong" in results
    else:
        assert all(re.search(what, result) for result in results), results


def test_every_bug_is_looked_for():
    bugs = building.bugs_of(planted.SOURCE)
    assert len(bugs) == 16
    assert {bug for bug, _, _ in FOUND} == {*bugs, "MISALIGNED"} == {*planted.BUGS} - {"NONE"}


def test_the_portable_switch():
    needs()
    done = child.run(building.HERE / "planted.py", None, "NONE", "HALF_WARP", EMULATOR_UCONTEXT=1)
    assert done.returncode == 0, done.stderr
    right, error = (json.loads(text) for text in done.stdout.splitlines())
    assert right == {"NONE": ["right"] * 2 * len(ORDERS)}
    assert all("wait for each other forever" in text for text in error["HALF_WARP"])


ORDERED = read("ordered.cu")


@pytest.mark.parametrize("name", ["lanes", "flag", "relay", "relay_and_fence", "bytes"])
def test_what_orders_two_accesses(name):
    needs("races")
    emulator = Emulator(
        ORDERED, [f"{name}<{right}>" for name in re.findall(r"void (\w+)\(", ORDERED) for right in (0, 1)], "races"
    )
    for order in (*ORDERS, 3, 4):
        shape, dtype = (128, "i1") if name == "bytes" else (32, "i4")
        out, data, flag = emulator.empty(shape, dtype), emulator.empty(32, "i4"), emulator.copy(np.zeros(1, "u4"))
        args, grid = (out, data, flag), (1,) if name in ("lanes", "bytes") else (2,)
        emulator.launch(f"{name}<1>", grid, (32,), 0, args, order)
        np.testing.assert_array_equal(out, np.repeat(np.arange(32) ^ 1, len(out) // 32))
        flag[...] = 0
        with pytest.raises(EmulatorError, match="a race in"):
            emulator.launch(f"{name}<0>", grid, (32,), 0, args, order)


# The words of CUDA ----------------------------------------------------------------------------------------------------

WORDS = read("words.cu")


@pytest.fixture(scope="module")
def words():
    needs()
    return Emulator(WORDS, re.findall(r"void (\w+)\(", WORDS))


@pytest.mark.parametrize("width", [4, 8, 16, 32])
def test_shuffles(words, width):
    """By the words of the programming guide: segments of `width` lanes, out of which a lane keeps its own value."""
    lane = np.arange(32)
    first = lane // width * width
    up, down, across = lane - 3, lane + 3, lane ^ 12
    want = [
        first + 9 % width,
        np.where(up < first, lane, up),
        np.where(down >= first + width, lane, down),
        np.where(across >= first + width, lane, across),  # a lower segment may be read
    ]
    for order in ORDERS:
        out = words.empty((4, 32), "i4")
        words.launch("shuffles", (1,), (32,), 0, (out, np.int32(width)), order)
        np.testing.assert_array_equal(out, want)


def test_votes(words):
    for order in ORDERS:
        out = words.empty((2, 6), "u4")
        words.launch("votes", (1,), (64,), 0, (out,), order)
        np.testing.assert_array_equal(out, [[0xAAAAAAAA, 1, 0, 13, 0, 0], [0xAAAAAAAA, 0, 1, 13, 0, 0]])


def test_arguments(words):
    pair = np.array((7, 2.5), np.dtype([("a", "i4"), ("b", "f8")], align=True))
    out, rest = words.empty(5, "f8"), (np.float32(0.5), np.uint8(200), None)

    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))

    for value in (pair[()], pair.tobytes(), Pair(7, 2.5)):
        out[...] = np.nan
        words.launch("arguments", (1,), (1,), 0, (out, value, *rest))
        np.testing.assert_array_equal(out, [7, 2.5, 0.5, 200, 1])
    words.launch("arguments", (1,), (1,), 0, (np.uintp(out.ctypes.data), pair[()], *rest))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "expected 2 arguments, got 0"),
        ((None, np.int32(4), None), "expected 2 arguments, got 3"),
        ((None, 4), "argument 1: expected a integer of 4 bytes, got int"),
        ((None, np.int64(4)), "argument 1: expected a integer of 4 bytes, got int64"),
        ((None, np.float32(4)), "argument 1: expected a integer of 4 bytes, got float32"),
        ((None, np.uint32(4)), "argument 1: expected a integer of 4 bytes, got uint32"),
        ((None, b"1234"), "argument 1: expected a integer of 4 bytes, got 4 bytes"),
        ((np.int64(0), np.int32(4)), "argument 0: expected a pointer of 8 bytes, got int64"),
        ((np.zeros(32, "f4"), np.int32(4)), "argument 0: expected an array of i4, got one of float32"),
        ((np.zeros(32, "i8"), np.int32(4)), "argument 0: expected an array of i4, got one of int64"),
    ],
)
def test_wrong_arguments(words, args, message):
    with pytest.raises(EmulatorError, match=re.escape(f"shuffles: {message}") + "|" + message):
        words.launch("shuffles", (1,), (32,), 0, args)


@pytest.mark.parametrize(
    ("grid", "block", "shared"),
    [
        ((0,), (32,), 0),
        ((1, 65536), (32,), 0),
        ((2**31,), (1,), 0),
        ((1,), (1025,), 0),
        ((1,), (1, 1, 65), 0),
        ((1,), (32, 33), 0),
        ((1,), (32,), 227 * 1024 + 1),
        ((1,), (32,), -1),
    ],
)
def test_launches_that_no_device_takes(words, grid, block, shared):
    with pytest.raises(EmulatorError, match="expected"):
        words.launch("indices", grid, block, shared, (None,))


def test_indices(words):
    grid, block = (3, 2, 2), (5, 3, 2)
    want = np.arange(12)[:, None] * 1000 + np.arange(30)
    for order in (*ORDERS, 3):
        out = words.empty(want.shape, "u4")
        words.launch("indices", grid, block, 0, (out,), order)
        np.testing.assert_array_equal(out, want)


def test_some_blocks_of_a_grid_too_large(words):
    out = words.empty(1, "i8")
    words.launch("mark", (2**31 - 1,), (1,), 0, (out, np.int32(10)), only=[0, 1_500_000_000])
    assert out[0] == 15_000_000_000


def test_atomics(words):
    x = words.copy(np.zeros(4, "u4"))
    words.launch("atomics", (3,), (32,), 0, (x,), order=2)
    assert x.tolist() == [96, 31, 96 % 10, 2**32 - 1]


def test_sums_of_floats_by_atomics_do_not_compile():
    needs()
    with pytest.raises(EmulatorError, match="atomicAdd of integers only"):
        Emulator("__global__ void sum(float* x) { atomicAdd(x, 1.0f); }", ["sum"])


def test_compile_errors_name_the_line():
    needs()
    with pytest.raises(EmulatorError, match=r"some\.cu:2:3: error"):
        Emulator("__global__ void f() {\n  g();\n}", ["f"], label="some.cu")


def test_no_room(words):
    with pytest.raises(EmulatorError, match="the stack of thread 0 overflows"):
        words.launch("deep", (1,), (1,), 0, (words.empty(1, "i4"), np.int32(100000)))
    with pytest.raises(EmulatorError, match="the launch gives none"):
        words.launch("first_values", (1,), (1,), 0, (words.empty(1, "f4"),))


def test_memory_is_poison_before_it_is_written(words):
    out = words.copy(np.zeros(1, "f4"))
    words.launch("first_values", (1,), (32,), 256, (out,))
    assert np.isnan(out[0])
    assert np.isnan(words.empty((2, 3), "f8")).all()
    assert words.empty(3, "f4", offset=1).ctypes.data % 256 == 4


def test_shared_memory_is_aligned_as_declared(words):
    with pytest.raises(EmulatorError, match="misaligned: 16 bytes are wanted"):
        words.launch("vector_of_numbers", (1,), (8,), 0, (words.empty(4, "f4"),))


def test_too_few_blocks_at_a_time():
    """A barrier of the grid needs all of its blocks on the device."""
    needs()
    emulator = planted.emulator(None)
    blocks = planted.BLOCKS
    args = (emulator.empty(blocks, "f4"), emulator.empty(blocks, "f4"), emulator.copy(np.zeros(1, "u4")))
    emulator.launch("shares<float, NONE>", (blocks,), (32,), 0, args, resident=blocks)
    with pytest.raises(EmulatorError, match="every thread that is left spins"):
        emulator.launch("shares<float, NONE>", (blocks,), (32,), 0, args, resident=blocks - 1)


# NVRTC ----------------------------------------------------------------------------------------------------------------

LOCAL = read("local.cu")


def test_nvrtc_compiles_for_every_architecture():
    needs_nvrtc()
    found = nvrtc.architectures()
    assert {"sm_75", "sm_80", "sm_90", "sm_100"} <= set(found) or nvrtc.version() < (12, 8), found
    names = ["total<float, NONE>", "total<double, NONE>", "shares<float, NONE>"]
    for arch in found:
        usage = nvrtc.compile(planted.SOURCE, names, arch)
        assert list(usage) == names
        assert [u.shared for u in usage.values()] == [48, 80, 0], arch  # eight sums and an int, in units of 16 bytes
        assert all(8 < u.registers <= 64 and not u.spills and not u.stack for u in usage.values()), (arch, usage)


def test_nvrtc_reports_what_is_local_and_what_spills():
    needs_nvrtc()
    usage = nvrtc.compile(LOCAL, ["local", "spills"], "sm_90")
    assert usage["local"].stack == 400
    assert usage["local"].shared == 256
    assert usage["local"].spills == 0
    assert usage["spills"].registers <= 32
    assert usage["spills"].spills > 0


@pytest.mark.parametrize(
    ("text", "message"), [("void f() { g(); }", r"kernels.cu\(1\): error"), ("", '"f" is undefined')]
)
def test_nvrtc_says_what_does_not_compile(text, message):
    needs_nvrtc()
    with pytest.raises(nvrtc.CompileError, match=message):
        nvrtc.compile(f"__global__ {text}" if text else "", ["f"], "sm_90")


def test_nvrtc_with_the_options_of_cupy():
    needs_nvrtc()
    if reason := nvrtc.cupy_missing():
        pytest.skip(reason)
    options = nvrtc.cupy_options("sm_90")
    assert "-ftz=true" in options
    usage = nvrtc.compile(planted.SOURCE, ["total<float, NONE>"], "sm_90", options)
    assert not usage["total<float, NONE>"].spills


def test_this_folder_shares_its_name():
    """`cuda` is also where the packages of NVIDIA are: a file __init__.py would hide one of the two."""
    assert not (building.HERE / "__init__.py").exists()
    code = f"import sys; sys.path.insert(0, {str(building.HERE.parent)!r}); import cuda_on_cpu.emulator, cuda.bindings"
    if nvrtc.missing():
        code = code.removesuffix(", cuda.bindings")
    done = child.run("-c", code)
    assert done.returncode == 0, done.stderr
