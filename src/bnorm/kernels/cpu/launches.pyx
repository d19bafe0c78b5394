"""What a call on a device does around its launches, on arrays that have an address there and on kernels to be called.

CuPy's arrays are seen as any objects: nothing of CuPy or CUDA is needed to build or to import this.
"""

cimport numpy as cnp
from cpython.ref cimport Py_INCREF
from libc.string cimport memcpy

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    object PyArray_Empty(int, cnp.npy_intp*, cnp.dtype, bint)


def places(index, *arrays):
    """The addresses of arrays on the device of this number; 0 where there is none."""
    cdef list found = []
    for array in arrays:
        if array is None:
            found.append(0)
            continue
        memory = array if type(array) is Part else array.data
        if memory.device_id != index:
            raise ValueError(f"expected arrays on device {index}, where x is, got one on device {memory.device_id}")
        found.append(memory.ptr)
    return found


cdef job_of(bytes call, bytes geometry, cnp.dtype dtype):
    """A job: an array of one element, which CuPy passes by value."""
    cdef cnp.npy_intp one = 1
    cdef Py_ssize_t size = len(call), more = len(geometry)
    Py_INCREF(dtype)                    # which PyArray_Empty takes
    cdef cnp.ndarray job = PyArray_Empty(1, &one, dtype, False)
    if cnp.PyArray_NBYTES(job) != size + more:
        raise ValueError(f"job: expected {cnp.PyArray_NBYTES(job)} bytes, got {size + more}")
    cdef char* to = <char*>cnp.PyArray_DATA(job)
    memcpy(to, <const char*>call, size)
    memcpy(to + size, <const char*>geometry, more)
    return job


def launch(list prepared not None, holder=None):
    """Launch what plans have prepared, one after the other. Then `holder`, a layer or what holds one forward of it, has
    no forward any more. Nothing of Python's own runs meanwhile, so no signal does."""
    cdef list launches
    cdef bytes call
    for launches, call in prepared:
        for kernel, grid, block, shared, geometry, dtype in launches:
            kernel(grid, block, (job_of(call, geometry, dtype),), shared)
    if holder is not None:
        holder._saved = None


cdef bint away(begin, end, kind, other) except -1:
    """Whether these bytes certainly do not belong to an array of this type; False means unknown."""
    if other is None:
        return True
    if type(other) is not kind or not other.flags.c_contiguous:
        return False
    at = other.data.ptr
    return at >= end or begin >= at + other.nbytes


def ready(out, x, layout, tuple given not None):
    """As that of the entries: `out`, if a kernel may write to it as it is, or None. Kernels on a device see an address:
    the shape stays that of the layout."""
    kind = type(x)
    if type(out) is not kind or layout.order is not None or out.shape != layout.shape:
        return None
    dtype = out.dtype
    if dtype != x.dtype or dtype.kind in "bui" or not out.flags.c_contiguous:
        return None
    begin = out.data.ptr
    end = begin + out.nbytes
    for arrays in given:
        if type(arrays) is not dict:
            return None
        for array in (<dict>arrays).values():
            if not away(begin, end, kind, array):
                return None
    return out


def separate(tuple totals not None, size, dtype, tuple others not None):
    """Whether arrays on a device have this size and dtype, in one piece, and certainly share no memory with others."""
    for total in totals:
        if total is None:
            continue
        if total.size != size or total.dtype != dtype or not total.flags.c_contiguous:
            return False
        begin = total.data.ptr
        end = begin + total.nbytes
        for other in others:
            if not away(begin, end, type(total), other):
                return False
    return True


cdef dict NAMES = {}


def dtype_name(dtype):
    """Its name, which NumPy makes up anew each time."""
    name = NAMES.get(dtype)
    if name is None:
        name = NAMES[dtype] = dtype.name
    return name


cdef class Call:
    """The arrays of one call on a launching.Device: x, what is made of it, and dy beside it; and their addresses."""

    cdef readonly object device, stream, outer, channels, inner, dtype, result, at, dy_at, result_at, places
    cdef readonly bint captured, vectors
    cdef object space

    def __init__(self, device, x, out, dy, bint writes, vector_bytes):
        cdef tuple shape = x.shape
        cdef Py_ssize_t axis, inner = 1
        stream = device.stream()
        self.device, self.stream = device, stream.ptr
        self.captured = self.stream != 0 and device.capturing(stream)  # the default stream, 0, cannot be captured
        for axis in range(2, len(shape)):
            inner *= shape[axis]
        self.outer, self.channels, self.inner = (shape[0], shape[1], inner) if inner else (0, shape[1], 1)
        self.dtype = dtype_name(x.dtype)
        self.result = None if not writes else device.empty(shape, x.dtype) if out is None else out
        self.at, self.dy_at, self.result_at = device.addresses(x, dy, self.result)
        self.places = self.at | self.dy_at | self.result_at  # a power of two that divides this divides all of them
        self.vectors = self.places % vector_bytes == 0

    @property
    def size(self):
        """What plans are made of. Without channels nothing is launched, whatever the plan."""
        return self.outer, self.channels or 1, self.inner, self.dtype, self.vectors

    def workspace(self, plan, more=0):
        """The addresses of a plan's partial sums, which `more` numbers of the caller follow, and of its tickets.

        They are there for the next `run`, and no longer. 0 where there are none.
        """
        if not plan.partial + more:
            return 0, 0
        stream = None if self.captured else self.stream
        self.space = self.device.workspace(stream, plan.partial + more, plan.tickets)
        return self.space.addresses

    def run(self, plan, bytes job, holder=None):
        """Launch a plan. holder: as that of `launch`."""
        self.launch_prepared([self.prepared(plan, job)], holder)

    cdef prepared(self, plan, bytes job):
        """What `launch` takes; a device keeps it with the plan."""
        cdef list launches
        if not self.channels:
            return None
        launches = plan.ready.get(self.device)
        return self.device.prepared(plan, job) if launches is None else (launches, job)

    def run_all(self, list plans, holder=None):
        """Launch plans with their jobs, one after the other."""
        self.launch_prepared([self.prepared(plan, job) for plan, job in plans], holder)

    def later(self, plan, bytes job):
        """As `run`, as something to be called later: nothing of Python's own runs then, so no signal does."""
        return self.launch_prepared, ([self.prepared(plan, job)],), {}

    def launch_prepared(self, list prepared, holder=None):
        """Launch what plans have prepared, and let the next call have the workspace."""
        if self.channels:
            launch(prepared, holder)
        if self.space is not None:      # all that comes into the stream from now on runs later
            if not self.captured:
                self.device.workspaces.free[self.stream] = self.space
            self.space = None


cdef class Part:
    """Numbers of an array of float64 that only kernels read, such as statistics between a forward and its backward. An
    array of their own would take CuPy as long as the whole. It is its own `data`: an address that keeps the memory."""

    cdef readonly object whole, ptr, device_id
    cdef readonly Py_ssize_t size

    def __init__(self, whole, Py_ssize_t begin, Py_ssize_t size):
        memory = whole.data
        self.put(whole, memory.ptr + 8 * begin, memory.device_id, size)

    cdef void put(self, whole, ptr, device_id, Py_ssize_t size):
        self.whole, self.ptr, self.device_id, self.size = whole, ptr, device_id, size

    @property
    def data(self):
        return self


def parts_of(whole, tuple sizes not None):
    """Parts of an array, one behind the other, of so many numbers; None where a size is None."""
    cdef list found = []
    cdef Part part
    memory = whole.data
    ptr, device_id = memory.ptr, memory.device_id
    for size in sizes:
        part = None
        if size is not None:
            part = Part.__new__(Part)
            part.put(whole, ptr, device_id, size)
            ptr = ptr + 8 * size
        found.append(part)
    return found
