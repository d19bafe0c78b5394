"""The kernels on CuPy arrays: the functions of `reference.py`, as launches of the plans of `plans.py`.

Nothing here waits for the device, but for three things that a caller has to ask for: `normalize(finite=True)`, running
statistics with "raise", and the number of channels left alone, which is read when somebody looks at it (`LeftAlone`).
With weights the count that `forward` returns stays on the device too, an array of one number, for `backward` to take.

With `out` given, and after a first call with the same arrays, a call can be captured in a CUDA graph; its workspace
belongs to the stream it was captured on.

Float32 and bfloat16 numbers below 1.2e-38, which CuPy's compiler options turn into 0, count as 0 in the maps.
"""

from functools import cache
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from bnorm.kernels import MEAN_SQUARE, VARIANCE

from . import plans
from .launching import available, device_of, namespace
from .statistics import POOL, LeftAlone, Rule, assign, in_passing, known, merge, move, refuse, settle

__all__ = [
    "FLOATS",
    "LeftAlone",
    "add",
    "array_type",
    "asarray",
    "assign",
    "available",
    "backward",
    "capturing",
    "finish",
    "finish_gradients",
    "forward",
    "grad_input",
    "grad_moments",
    "known",
    "memory",
    "merge",
    "moments",
    "move",
    "normalize",
    "numbers",
    "rows_backward",
    "rows_forward",
    "settle",
]

FLOAT64, INT32 = np.dtype("float64"), np.dtype("int32")
FLOATS = tuple(plans.NAMES)
Array = Any  # cupy.ndarray


def array_type() -> Any:
    """That of CuPy's arrays; CuPy is imported if need be."""
    return namespace().ndarray


def asarray(value: Any) -> Array:
    """Anything as an array on the current device, of CuPy's base class; what is on the host is copied there."""
    kind = array_type()
    a = value if isinstance(value, kind) else namespace().asarray(value)
    return a if type(a) is kind else a.view(kind)


def memory(array: Array) -> Any:
    """A NumPy array at the address of this one: NumPy knows well whether two overlap, and does not look into them."""
    place = {"data": (array.data.ptr, False), "shape": array.shape, "strides": array.strides}
    return np.asarray(SimpleNamespace(__array_interface__=place | {"typestr": array.dtype.str, "version": 3}))


def numbers(*some: Array) -> list[float]:
    """Arrays of one number each, as Python's numbers: one transfer, which the host waits for."""
    found: list[float] = np.stack(some).tolist()
    return found


def capturing() -> bool:
    """Whether what is launched now goes into a CUDA graph, and runs later."""
    return bool(namespace().cuda.get_current_stream().is_capturing())


@cache
def dtype_name(dtype: Any) -> str:
    name: str = dtype.name  # which NumPy makes up anew each time
    return name


class Work:
    """One call: its array, and the arguments of its kernels by name. The host's time of a small call is spent here."""

    __slots__ = ("channels", "device", "dtype", "inner", "options", "outer", "pointers", "result", "vectors")

    def __init__(self, x: Array, out: Array | None, dy: Array | None = None, writes: bool = True) -> None:
        self.device = device = device_of(x)
        shape = x.shape
        self.outer, self.channels, self.inner = shape[0], shape[1], prod(shape[2:])
        if self.inner == 0:
            self.outer, self.inner = 0, 1
        self.dtype = dtype_name(x.dtype)
        self.result = None if not writes else device.empty(shape, x.dtype) if out is None else out
        self.pointers: dict[str, int] = {}
        self.options: dict[str, float] = {}
        self.give(x=x, dy=dy, y=self.result)
        at = 0
        for address in self.pointers.values():
            at |= address
        self.vectors = at % plans.VECTOR_BYTES == 0

    @property
    def size(self) -> tuple[int, int, int, str, bool]:
        """What plans are made of. Without channels nothing is launched, whatever the plan."""
        return self.outer, self.channels or 1, self.inner, self.dtype, self.vectors

    def give(self, **arrays: Array | None) -> None:
        """Arguments, by the names that the kernels know them by."""
        address = self.device.address
        for name, array in arrays.items():
            if array is not None:
                self.pointers[name] = address(array)

    def make(self, name: str, rows: int = 1, dtype: Any = FLOAT64) -> Array:
        """A new array of the channels, given to the kernels."""
        made = self.device.empty((rows, self.channels) if rows > 1 else (self.channels,), dtype)
        self.pointers[name] = self.device.address(made)
        return made

    def give_stats(self, stats: Array) -> None:
        """The rows of stats that maps read: a view of each would cost more time than the rest of the call."""
        at, row = self.device.address(stats), 8 * self.channels
        self.pointers |= {"stats": at, "mean": at, "scale": at + 3 * row, "shift": at + 4 * row, "a": at + 3 * row}

    def run(self, plan: plans.Plan, coefficients: bool = False, family: str = "channels") -> None:
        """coefficients: b and c of a gradient are passed on in the workspace."""
        if self.channels == 0:
            return
        pointers, device = self.pointers, self.device
        if plan.partial:
            space, tickets = device.workspace(plan.partial + 2 * self.channels, plan.tickets)
            pointers["partial"], pointers["tickets"] = device.address(space), device.address(tickets)
            if coefficients:
                pointers["b"] = pointers["partial"] + 8 * plan.partial
                pointers["c"] = pointers["b"] + 8 * self.channels
        before, after = plans.job_bytes(pointers, self.options)
        for launch in plan.launches:
            device.launch(family, launch, before + launch.geometry + after)

    def rule(self, rule: Rule, test: bool = False) -> LeftAlone:
        """The running statistics that are to be moved, or only tested; the channels that are left alone."""
        mode, mean, var, seen, nonfinite = rule[0], rule[1], rule[2], rule[4], rule[-1]
        self.give(running_mean=mean, running_var=var, seen=seen if mode == POOL else None)
        code = plans.NONFINITE["raise" if test else "propagate" if nonfinite == "propagate" else "skip"]
        wide = mean.dtype == FLOAT64
        self.options |= {"momentum": rule[9], "ddof": rule[11], "wide_running": wide, "nonfinite": code}
        return LeftAlone(self.make("left", dtype=INT32))


def moments(x: Array, weight: Array | None = None, skipna: bool = False) -> Array:
    """parts, (4, C): sum of the weights, mean, sum w (x - mean)^2, mean - float64(mean)."""
    work = Work(x, None, writes=False)
    work.give(weight=weight)
    work.options["skipna"] = skipna
    made = work.make("moments", 4)
    careful = weight is not None or skipna
    work.run(plans.reduction("moments", *work.size, careful, "", work.device.limits))
    return made.reshape(4, -1)


def finish(parts: Array, gamma: Array | None, beta: Array | None, eps: float) -> Array:
    """stats, (5, C), of what `moments` gives: mean, var, rstd, scale, shift."""
    count, mean, m2, low = parts
    var = m2 / np.where(count == 0, 1, count)
    v = var + eps
    rstd = np.where(count == 0, 0, 1 / np.sqrt(np.where(v == 0, 1, v)))
    scale = rstd if gamma is None else gamma * rstd
    return np.stack([mean + low, var, rstd, scale, np.zeros_like(rstd) if beta is None else beta])


def normalize(x: Array, stats: Array, slope: float = 1.0, out: Array | None = None, finite: bool = False) -> Array:
    """y = (x - mean) scale + shift, and with slope 0 no less than 0. NaN stays NaN.

    With finite, FloatingPointError where x holds an infinity; what was written to out by then is of no use.
    """
    work = Work(x, out)
    work.give(mean=stats[0], scale=stats[3], shift=stats[4])
    work.options["relu"] = cuts(slope)
    if finite:
        found = work.device.zeros((1,), INT32)
        work.give(infinite=found)
    work.run(plans.map_only("normalize", *work.size, False, work.device.limits))
    if finite and int(found[0]):
        raise FloatingPointError("x holds an infinity")
    return work.result


def grad_moments(dy: Array, x: Array, stats: Array, weight: Array | None = None, slope: float = 1.0) -> Array:
    """sums, (2, C): sum dy and sum dy (x - mean), dy before the activation. With weight a dy of 0 adds nothing."""
    work = Work(x, None, dy, writes=False)
    work.give(mean=stats[0], scale=stats[3], shift=stats[4])
    work.options |= {"relu": cuts(slope), "weighted": weight is not None}
    made = work.make("sums", 2)
    work.run(plans.reduction("sums", *work.size, weight is not None, "", work.device.limits))
    return made


def finish_gradients(sums: Array, stats: Array, count: Any) -> Array:
    """coefficients, (3, C), of what `grad_moments` gives: a, b, c. count: a number, or float64 (C,)."""
    total, dot = sums
    rstd, scale = stats[2], stats[3]
    values = np.where(count == 0, np.inf, count)
    return np.stack([scale, -(dot * rstd / values * rstd), -(total / values)])


def grad_input(
    dy: Array,
    x: Array,
    stats: Array,
    coefficients: Array,
    weight: Array | None = None,
    slope: float = 1.0,
    out: Array | None = None,
) -> Array:
    """dx = a (dy + w (b (x - mean) + c)), with dy as in `grad_moments` and w = 1 without weight."""
    work = Work(x, out, dy)
    a, b, c = coefficients
    work.give(mean=stats[0], a=a, b=b, c=c, weight=weight, scale=stats[3], shift=stats[4])
    work.options |= {"relu": cuts(slope), "weighted": weight is not None}
    work.run(plans.map_only("gradient", *work.size, weight is not None, work.device.limits))
    return work.result


def cuts(slope: float) -> bool:
    """Whether an activation of that slope below 0 is the ReLU, or none: these two are there."""
    if slope not in (0.0, 1.0):
        raise ValueError(f"activation: expected None or relu on the GPU, got one of slope {slope}")
    return slope == 0.0


def add(total: Array | None, part: Array | None, other: Array | None = None, other_part: Array | None = None) -> None:
    """total += part, and another such pair: gradients of parameters, float64, to those there are, which may be float32.

    A total that is None is left out.
    """
    if total is not None:
        total += part
    if other is not None:
        other += other_part


def forward(
    x: Array,
    gamma: Array | None,
    beta: Array | None,
    eps: float,
    mean: Array | None = None,
    var: Array | None = None,
    weight: Array | None = None,
    slope: float = 1.0,
    running: Rule | None = None,
    out: Array | None = None,
    seen: Array | None = None,
) -> tuple[Array, Array, Any, Any]:
    """Batch normalization: y, stats, count, skipped. stats is float64 (5, C): mean, var, rstd, scale, shift.

    count is a float, or with weights an array on the device; skipped is 0 or a `LeftAlone`.
    """
    work = Work(x, out)
    limits = work.device.limits
    count: Any = float(work.outer * work.inner)
    work.give(gamma=gamma, beta=beta)
    work.options |= {"eps": eps, "relu": cuts(slope), "count": count}
    stats = work.device.empty((5, work.channels), FLOAT64)
    work.give_stats(stats)
    if mean is not None and var is not None:
        work.give(mean=mean, var=var, seen=seen)
        work.run(plans.map_only("normalize", *work.size, False, limits))
        return work.result, stats, count, 0
    careful = weight is not None
    if careful:
        count = work.device.zeros((), FLOAT64)
        work.give(weight=weight, count_at=count)
    plan = plans.reduction("moments", *work.size, careful, "normalize", limits)
    if running is None or not in_passing(running):
        work.run(plan)
        return work.result, stats, count, 0
    if running[0] == POOL and running[8][3]:  # a saved state lost the counts: its batches were as large as this one
        running[4][...] += float(running[8][3]) * count
    if running[-1] != "raise":
        left = work.rule(running)
        work.run(plan)
        return work.result, stats, count, 0 if running[-1] == "propagate" else left
    test = plans.reduction("moments", *work.size, careful, "", limits)
    refuse(work.rule(running, test=True), lambda: work.run(test))
    work.rule(running)
    work.run(plan)
    return work.result, stats, count, 0


def backward(
    dy: Array,
    x: Array,
    stats: Array,
    count: Any,
    weight: Array | None = None,
    slope: float = 1.0,
    frozen: bool = False,
    params: bool = True,
    out: Array | None = None,
) -> tuple[Array, Array | None, Array | None]:
    """dx, dgamma, dbeta of the `forward` that returned stats and count. frozen: its statistics were constants."""
    work = Work(x, out, dy)
    limits, careful = work.device.limits, weight is not None and not frozen
    dgamma = work.make("dgamma") if params else None
    dbeta = work.make("dbeta") if params else None
    work.give_stats(stats)
    work.options |= {"relu": cuts(slope), "frozen": frozen, "weighted": careful}
    if careful:
        work.give(weight=weight)
    if isinstance(count, float):
        work.options["count"] = count
    else:
        work.give(count_at=count)
    if frozen and not params:
        work.run(plans.map_only("gradient", *work.size, False, limits))
    else:
        work.run(plans.reduction("sums", *work.size, careful, "gradient", limits), coefficients=True)
    return work.result, dgamma, dbeta


def rows_forward(
    x: Array,
    gamma: Array | None,
    beta: Array | None,
    eps: float,
    rule: int = VARIANCE,
    slope: float = 1.0,
    out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """y, mean, rstd: each of the N*G rows of x, (N, G, K, L), by its own statistics."""
    work = Work(x, out)
    n = x.shape[0] * x.shape[1]
    mean, rstd = (work.device.empty((n,), FLOAT64) for _ in range(2))
    work.give(mean=mean, scale=rstd, gamma=gamma, beta=beta)
    work.options |= {"eps": eps, "relu": cuts(slope), "weighted": rule == MEAN_SQUARE}
    if n:
        affine = gamma is not None or beta is not None
        plan = plans.rows("rows_forward", x.shape, work.dtype, work.vectors, affine, work.device.limits)
        work.run(plan, family="rows")
    return work.result, mean, rstd


def rows_backward(
    dy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    gamma: Array | None,
    beta: Array | None,
    rule: int = VARIANCE,
    slope: float = 1.0,
    params: bool = True,
    out: Array | None = None,
) -> tuple[Array, Array | None, Array | None]:
    """dx, dgamma, dbeta of the `rows_forward` that returned mean and rstd. beta is for the activation only."""
    work = Work(x, out, dy)
    limits, size = work.device.limits, x.shape[1] * x.shape[2]
    work.give(mean=mean, scale=rstd, gamma=gamma, beta=beta)
    work.options |= {"relu": cuts(slope), "weighted": rule == MEAN_SQUARE}
    dgamma = dbeta = None
    if params:
        dgamma, dbeta = (work.device.empty((size,), FLOAT64) for _ in range(2))
        work.give(dgamma=dgamma, dbeta=dbeta)
        if size:  # before dx, which may take the place of x or dy
            work.run(plans.row_params(x.shape, work.dtype, work.vectors, limits), family="rows")
    if mean.size:
        affine = gamma is not None or beta is not None
        plan = plans.rows("rows_backward", x.shape, work.dtype, work.vectors, affine, limits)
        work.run(plan, family="rows")
    return work.result, dgamma, dbeta
