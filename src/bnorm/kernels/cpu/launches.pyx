"""The work that a call on a device does on the host around its launches: it finds addresses and calls kernels.

CuPy's arrays and kernels are plain Python objects here: this module is built and imported without CuPy or CUDA.
"""

cimport numpy as cnp
from cpython.ref cimport Py_INCREF
from libc.string cimport memcpy

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    object PyArray_Empty(int, cnp.npy_intp*, cnp.dtype, bint)


def places(index, *arrays):
    """Return the addresses of arrays on the device number `index`; the address of None is 0."""
    cdef list found = []
    for array in arrays:
        if array is None:
            found.append(0)
            continue
        if type(array) is Part and (<Part>array).device_id == index:
            found.append((<Part>array).ptr)
            continue
        memory = array.data
        if memory.device_id != index:
            raise ValueError(f"expected arrays on device {index}, where x is, got one on device {memory.device_id}")
        found.append(memory.ptr)
    return found


cdef job_of(bytes call, bytes geometry, cnp.dtype dtype):
    """Return a job: an array of one element of `dtype`, which CuPy passes to a kernel by value."""
    cdef cnp.npy_intp one = 1
    cdef Py_ssize_t size = len(call), more = len(geometry)
    Py_INCREF(dtype)                    # PyArray_Empty steals a reference
    cdef cnp.ndarray job = PyArray_Empty(1, &one, dtype, False)
    if cnp.PyArray_NBYTES(job) != size + more:
        raise ValueError(f"job: expected {cnp.PyArray_NBYTES(job)} bytes, got {size + more}")
    cdef char* to = <char*>cnp.PyArray_DATA(job)
    memcpy(to, <const char*>call, size)
    memcpy(to + size, <const char*>geometry, more)
    return job


cpdef launch(list prepared, holder=None):
    """Launch what plans have prepared, one after the other. Then `holder`, a layer or an object that holds one of its
    forwards, drops its saved forward. No Python bytecode runs meanwhile, so no signal handler does."""
    cdef list launches
    cdef bytes call
    for launches, call in prepared:
        launch_all(launches, call)
    if holder is not None:
        holder._saved = None


cdef launch_all(list launches, bytes call):
    """Launch kernels with the job `call`. refused: None, or a function that is called when a launch has failed and has
    changed nothing; it returns the launches that replace it."""
    for kernel, grid, block, shared, geometry, dtype, refused in launches:
        try:
            kernel(grid, block, (job_of(call, geometry, dtype),), shared)
        except Exception as error:
            if refused is None:
                raise
            launch_all(refused(call, error), call)


cdef bint away(size_t begin, size_t end, kind, other) except -1:
    """Whether these bytes certainly do not belong to `other`; False means unknown, as for any type but `kind`."""
    cdef size_t at, size
    if other is None:
        return True
    if type(other) is not kind or not other.flags.c_contiguous:
        return False
    at, size = other.data.ptr, other.nbytes
    return at >= end or begin >= at + size


def ready(out, x, layout, tuple given not None):
    """Return `out` if a kernel may write to it directly, or None if that is unknown, as `ready` of the entries does.
    Kernels on a device get only an address, so `out` keeps the shape of the layout."""
    kind = type(x)
    if type(out) is not kind or layout.order is not None or out.shape != layout.shape:
        return None
    cdef cnp.dtype dtype = out.dtype
    if dtype != x.dtype or dtype.kind in b"bui" or not out.flags.c_contiguous:
        return None
    cdef size_t begin = out.data.ptr, size = out.nbytes, end = begin + size
    for arrays in given:
        if type(arrays) is not dict:
            return None
        for array in (<dict>arrays).values():
            if not away(begin, end, kind, array):
                return None
    return out


def separate(tuple totals not None, size, dtype, tuple others not None):
    """Whether all totals that are not None are contiguous, of this size and dtype, and certainly share no memory with
    the others."""
    cdef size_t begin, end, bytes_of
    for total in totals:
        if total is None:
            continue
        if total.size != size or total.dtype != dtype or not total.flags.c_contiguous:
            return False
        begin, bytes_of = total.data.ptr, total.nbytes
        end = begin + bytes_of
        for other in others:
            if not away(begin, end, type(total), other):
                return False
    return True


def singles(*arrays):
    """Return which of these arrays, float64 or float32 or None, are float32: bit i for number i."""
    cdef int found = 0, bit = 1
    for array in arrays:
        if array is not None and (<cnp.dtype?>array.dtype).itemsize == 4:
            found |= bit
        bit *= 2
    return found


cdef dict NAMES = {}


cpdef dtype_name(dtype):
    """Return the name of a dtype. NumPy builds the string anew each time, so it is kept."""
    name = NAMES.get(dtype)
    if name is None:
        name = NAMES[dtype] = dtype.name
    return name


cdef class Call:
    """The arrays of one call on a launching.Device, x, dy and the result, and their addresses."""

    cdef readonly object device, stream, dtype, result
    cdef readonly Py_ssize_t outer, channels, inner
    cdef readonly size_t at, dy_at, result_at, places
    cdef readonly bint captured, vectors
    cdef object space

    def __init__(self, device, x, out, dy, bint writes, size_t vector_bytes):
        cdef tuple shape = x.shape
        cdef Py_ssize_t axis, inner = 1
        stream = device.stream()
        self.device, self.stream = device, stream.ptr
        self.captured = self.stream != 0 and device.capturing(stream)  # the default stream, 0, cannot be captured
        for axis in range(2, len(shape)):
            inner *= shape[axis]
        self.outer = shape[0] if inner else 0
        self.channels, self.inner = shape[1], inner or 1
        self.dtype = dtype_name(x.dtype)
        self.result = None if not writes else device.empty(shape, x.dtype) if out is None else out
        self.at, self.dy_at, self.result_at = device.addresses(x, dy, self.result)
        self.places = self.at | self.dy_at | self.result_at  # a power of two that divides this divides all of them
        self.vectors = self.places % vector_bytes == 0

    @property
    def size(self):
        """The arguments of a plan. Without channels nothing is launched, so any plan will do."""
        return self.outer, self.channels or 1, self.inner, self.dtype, self.vectors

    @property
    def count(self):
        """The number of values of a channel, as the float that kernels take."""
        return <double>(self.outer * self.inner)

    def workspace(self, plan, Py_ssize_t more=0):
        """Return the addresses of a plan's partial sums, which `more` numbers of the caller follow, and of its tickets.

        They are valid until the end of the next `run`. Both are 0 if the plan needs no memory.
        """
        cdef Py_ssize_t numbers = plan.partial
        numbers += more
        if not numbers and not plan.tickets:
            return 0, 0
        self.space = self.device.workspace(None if self.captured else self.stream, numbers, plan.tickets)
        return self.space.addresses

    def run(self, plan, bytes job, holder=None):
        """Launch a plan with this job. holder: see `launch`."""
        self.launch_prepared([self.prepared(plan, job)], holder)

    cdef prepared(self, plan, bytes job):
        """Return what `launch` takes for a plan, which the device keeps with the plan, and the job."""
        cdef list launches
        cdef dict ready
        if not self.channels:
            return None
        ready = plan.ready
        launches = ready.get(self.device)
        return self.device.prepared(plan, job) if launches is None else (launches, job)

    def run_all(self, list plans, holder=None):
        """Launch plans with their jobs, one after the other."""
        self.launch_prepared([self.prepared(plan, job) for plan, job in plans], holder)

    def later(self, plan, bytes job):
        """Return a function, its arguments and its keywords; to call it later does what `run` does.

        No Python bytecode runs in that call, so no signal handler does.
        """
        return self.launch_prepared, ([self.prepared(plan, job)],), {}

    cpdef launch_prepared(self, list prepared, holder=None):
        """Launch what plans have prepared, and release the workspace for the next call."""
        if self.channels:
            launch(prepared, holder)
        if self.space is not None:      # whatever uses it next is in the same stream, so it runs later
            if not self.captured:
                self.device.workspaces.free[self.stream] = self.space
            self.space = None


cdef class Part:
    """Part of a float64 array that only kernels read, such as statistics between a forward and its backward. As a CuPy
    array, each part would take as long to make as the full one. A Part is its own `data`: an address that keeps the
    memory."""

    cdef readonly object whole, device_id
    cdef readonly size_t ptr
    cdef readonly Py_ssize_t size

    @property
    def data(self):
        return self


def small(device, Py_ssize_t many, gamma, beta, dtype):
    """Return memory for mean and rstd of `many` rows, and for copies of gamma and beta or None where they are None, as
    parts of one array. dtype: float64, as an object."""
    cdef Py_ssize_t of_gamma = 0 if gamma is None else gamma.size, of_beta = 0 if beta is None else beta.size
    whole = device.empty((2 * many + of_gamma + of_beta,), dtype)
    memory = whole.data
    at, index = memory.ptr, memory.device_id
    return (
        part_of(whole, at, index, 0, many), part_of(whole, at, index, many, many),
        None if gamma is None else part_of(whole, at, index, 2 * many, of_gamma),
        None if beta is None else part_of(whole, at, index, 2 * many + of_gamma, of_beta),
    )


cdef Part part_of(whole, size_t at, index, Py_ssize_t begin, Py_ssize_t size):
    cdef Part part = Part.__new__(Part)
    part.whole, part.ptr, part.device_id, part.size = whole, at + 8 * begin, index, size
    return part
