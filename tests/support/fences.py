"""Arrays between pages that may not be touched: `python tests/support/fences.py [PYTEST'S ARGUMENTS ...]`.

It runs tests/kernels, or other tests, for every SIMD level (or that of BNORM_SIMD): once with each NumPy array ending
where such a page begins, and once with each array beginning where one ends. A kernel that reads or writes one byte too
far ends the process, and standard error names the test. Memory that nobody has written has all bits set, which is NaN.
Memory that kernels allocate for themselves, and arrays that were freed, are left to `sanitizers.py`.

As a plugin of pytest (`-p fences`, FENCES=end or begin) it does so in one process; `raised(side)` does in any other.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from compiled import library

ROOT = Path(__file__).parents[2]
SIDES = ("end", "begin")
# Not these tests: they run in processes of their own, or depend on where NumPy's arrays begin.
OTHERS = ("fences", "headers", "same_bits", "threads", "view")
TESTS = ["tests/kernels", "-k", "not emulator and not clusters"]
TESTS += [f"--ignore=tests/kernels/test_{name}.py" for name in OTHERS]
SET_HANDLER = 304  # the place of PyDataMem_SetHandler in NumPy's table of C functions

# Fence at the end: [sizes] [the array] [no access]; at the beginning: [sizes] [no access] [the array]; in whole pages.
PROGRAM = r"""
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FILLED = 1 << 24, SPARE = 17 };
typedef struct Sizes {
    size_t all, room, size; /* bytes of the mapping, between both ends, and that were asked for */
    struct Sizes *next;
} Sizes;
static struct {
    char name[127];
    uint8_t version;
    struct {
        void *context, *(*malloc)(void *, size_t), *(*calloc)(void *, size_t, size_t),
            *(*realloc)(void *, void *, size_t);
        void (*free)(void *, void *, size_t);
    } allocator;
} handler = {"fences", 1};
static size_t page, arrays;
static int at_end;
static Sizes *spare[SPARE]; /* freed ones of so many pages, as the system takes long for a new one */

static Sizes *sizes(void *array)
{
    return (Sizes *)(((uintptr_t)array / page - (at_end ? 1 : 2)) * page);
}

static void *fresh(size_t size)
{
    size = size ? size : 1;
    size_t room = (size + page - 1) / page * page, pages = room / page;
    Sizes *of = pages < SPARE ? spare[pages] : 0;
    if (of)
        spare[pages] = of->next;
    else {
        of = mmap(0, room + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if ((void *)of == MAP_FAILED || mprotect((char *)of + page + (at_end ? room : 0), page, PROT_NONE))
            return 0;
    }
    of->all = room + 2 * page, of->room = room, of->size = size;
    arrays++;
    return (char *)of + (at_end ? page + room - size : 2 * page);
}

static void *zeros(void *context, size_t n, size_t each)
{
    void *array = fresh(n * each);
    return array && sizes(array)->room < SPARE * page ? memset(array, 0, n * each) : array;
}

static void *ones(void *context, size_t size)
{
    void *array = fresh(size);
    return array ? memset(array, 255, size < FILLED ? size : FILLED) : 0;
}

static void drop(void *context, void *array, size_t size)
{
    Sizes *of = array ? sizes(array) : 0;
    if (of && of->room < SPARE * page)
        of->next = spare[of->room / page], spare[of->room / page] = of;
    else if (of)
        munmap(of, of->all);
}

static void *moved(void *context, void *array, size_t size)
{
    void *other = ones(context, size);
    if (other && array) {
        memcpy(other, array, sizes(array)->size < size ? sizes(array)->size : size);
        drop(context, array, 0);
    }
    return other;
}

void *fences(int end)
{
    at_end = end;
    page = sysconf(_SC_PAGESIZE);
    handler.allocator.malloc = ones;
    handler.allocator.calloc = zeros;
    handler.allocator.realloc = moved;
    handler.allocator.free = drop;
    return &handler;
}

size_t fenced(void) { return arrays; }
"""


def raised(side: str) -> ctypes.CDLL:
    """From now on each new array of this thread has a fence at this side. `fenced()` of the returned library is the
    number of arrays that have had one so far."""
    fences = library(PROGRAM)
    fences.fences.restype, fences.fenced.restype = ctypes.c_void_p, ctypes.c_size_t
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    table = ctypes.pythonapi.PyCapsule_GetPointer
    table.restype, table.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    core = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]
    functions = (ctypes.c_void_p * 400).from_address(table(core._ARRAY_API, None))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(functions[SET_HANDLER])
    set_handler(capsule(fences.fences(SIDES.index(side) == 0), b"mem_handler", None))
    before = fences.fenced()
    np.empty(1)
    if fences.fenced() != before + 1:
        raise RuntimeError("expected NumPy to take memory from here")
    return fences


def pytest_configure() -> None:
    if side := os.environ.get("FENCES"):
        raised(side)


def main(*asked: str) -> int:
    from bnorm.kernels import cpu

    failed = 0
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    wanted = os.environ.get("BNORM_SIMD")
    for level in [wanted] if wanted else cpu.simd_levels():
        for side in SIDES:
            print(f"{level}, fences at the {side}", flush=True)
            environment = os.environ | {"PYTHONPATH": path, "FENCES": side}
            environment |= {"BNORM_SIMD": level, "BNORM_BUFFER_LIMIT": "0"}
            run = [sys.executable, "-m", "pytest", "-q", "-p", "fences", "-p", "no:cacheprovider", *(asked or TESTS)]
            failed |= subprocess.run(run, cwd=ROOT, env=environment, check=False).returncode
    return failed


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
