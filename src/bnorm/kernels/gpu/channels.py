"""Batch norm on CuPy arrays: the functions of `reference.py`, as launches of the plans of `plans.py`."""

from typing import Any

import numpy as np

from ..activation import IDENTITY, Activation
from ..cpu.launches import singles
from ..rule import POOL, Rule
from . import plans
from .calls import begun
from .gradients import Wanted, receiver
from .jobs import JOB, PROPAGATE, SKIP
from .statistics import of_forward, one_launch

Array = Any  # cupy.ndarray
FLOAT64, INT32 = np.dtype("float64"), np.dtype("int32")

# The fields of the struct Job that each call sets, in the order of the struct.
MOMENTS = JOB.packer("x", "weight", "parts", "partial", "tickets", "skipna")
FINISH = JOB.packer("gamma", "beta", "stats", "parts", "single", "eps")
NORMALIZE = JOB.packer("x", "y", "stats", "infinite", "slope")
GRAD_MOMENTS = JOB.packer("x", "dy", "stats", "sums", "partial", "tickets", "slope")
FINISH_GRADIENTS = JOB.packer("stats", "sums", "coefficients", "counts", "count_step", "count")
GRAD_INPUT = JOB.packer("x", "dy", "y", "weight", "stats", "coefficients", "slope")
INFERENCE = JOB.packer("x", "y", "gamma", "beta", "mean", "var", "stats", "single", "slope", "eps")
FORWARD = JOB.packer(
    *("x", "y", "weight", "gamma", "beta", "stats", "parts", "counts", "partial", "tickets"),
    *("single", "slope", "eps"),
)
MOVING = JOB.packer(  # a forward that also moves running statistics
    *("x", "y", "weight", "gamma", "beta", "stats", "counts", "partial", "tickets"),
    *("running_mean", "running_var", "seen", "counted", "mode", "wide", "nonfinite", "single"),
    *("slope", "eps", "momentum", "ddof", "uncounted"),
)
BACKWARD = JOB.packer(
    *("x", "dy", "y", "weight", "stats", "coefficients", "dgamma", "dbeta", "counts", "partial", "tickets"),
    *("gives", "slope", "count"),
)


def moments(x: Array, weight: Array | None = None, skipna: bool = False) -> Array:
    """Return parts, (4, C): count (sum of the weights), mean, m2 = sum w (x - mean)^2, low = mean - float64(mean)."""
    call = begun(x, None, writes=False)
    device = call.device
    parts = device.empty((4, call.channels), FLOAT64)
    careful = weight is not None or skipna
    plan = plans.reduction("moments", *call.size, careful, "", 0, device.limits)
    call.run(plan, MOMENTS(call.at, *device.addresses(weight, parts), *call.workspace(plan), skipna))
    return parts


def extremes(x: Array, weight: Array | None = None, skipna: bool = False) -> Array:
    """Return the least and the greatest value of each channel, (2, C), by CuPy's own reductions."""
    if not x.size:
        return np.full_like(x, np.nan, FLOAT64, shape=(2, x.shape[1]))
    x = x.reshape(x.shape[0], x.shape[1], -1)
    counts = np.ones_like(x, dtype=bool)
    if weight is not None:
        counts &= weight.reshape(len(x), 1, -1) != 0
    if skipna:
        counts &= ~np.isnan(x)
    few = counts.sum(axis=(0, 2)) == 0
    values = [np.where(counts, x, inf).astype(FLOAT64) for inf in (np.inf, -np.inf)]
    least, greatest = values[0].min(axis=(0, 2)), values[1].max(axis=(0, 2))
    return np.where(few, np.nan, np.stack([least, greatest])) + 0.0


def finish(parts: Array, gamma: Array | None, beta: Array | None, eps: float) -> Array:
    """Return stats, (5, C): mean, var, rstd, scale and shift, from the parts that `moments` returned, maybe merged."""
    call = begun(parts, None, writes=False)
    stats = call.device.empty((5, call.channels), FLOAT64)
    job = FINISH(*call.device.addresses(gamma, beta, stats), call.at, singles(gamma, beta), eps)
    call.run(plans.per_channel("finish_stats", call.channels), job)
    return stats


def normalize(
    x: Array, stats: Array, act: Activation = IDENTITY, out: Array | None = None, finite: bool = False
) -> Array:
    """Return the activation of (x - mean) scale + shift. NaN stays NaN.

    With finite=True, an infinity in x is a FloatingPointError; out is undefined then.
    """
    call = begun(x, out)
    device = call.device
    found = device.zeros((1,), INT32) if finite else None
    name = "finite" if finite else "normalize"
    plan = plans.map_only(name, *call.size, False, act.kind, device.limits)
    call.run(plan, NORMALIZE(call.at, call.result_at, *device.addresses(stats, found), act.slope))
    if found is not None and int(found[0]):
        raise FloatingPointError("x holds an infinity")
    return call.result


def grad_moments(dy: Array, x: Array, stats: Array, weight: Array | None = None, act: Activation = IDENTITY) -> Array:
    """Return sums, (2, C): sum dy and sum dy (x - mean). First, dy is multiplied by the derivative of the activation.

    With weights, a dy of 0 adds nothing, whatever its x.
    """
    call = begun(x, None, dy, writes=False)
    device = call.device
    sums = device.empty((2, call.channels), FLOAT64)
    plan = plans.reduction("sums", *call.size, weight is not None, "", act.kind, device.limits)
    job = GRAD_MOMENTS(call.at, call.dy_at, *device.addresses(stats, sums), *call.workspace(plan), act.slope)
    call.run(plan, job)
    return sums


def finish_gradients(sums: Array, stats: Array, count: Any) -> Array:
    """Return a, b, c of `grad_input`, (3, C). count: a number, or an array on the device of one, or one per channel."""
    call = begun(sums, None, writes=False)
    coefficients = call.device.empty((3, call.channels), FLOAT64)
    number, counts = (float(count), None) if isinstance(count, int | float) else (0.0, count)
    step = counts is not None and counts.size > 1
    stats_at, *behind = call.device.addresses(stats, coefficients, counts)
    places = stats_at, call.at, *behind
    call.run(plans.per_channel("finish_gradients", call.channels), FINISH_GRADIENTS(*places, step, number))
    return coefficients


def grad_input(
    dy: Array,
    x: Array,
    stats: Array,
    coefficients: Array,
    weight: Array | None = None,
    act: Activation = IDENTITY,
    out: Array | None = None,
) -> Array:
    """Return dx = a (dy + w (b (x - mean) + c)), with dy as in `grad_moments`, and w = 1 without weight."""
    call = begun(x, out, dy)
    plan = plans.map_only("gradient", *call.size, weight is not None, act.kind, call.device.limits)
    places = call.device.addresses(weight, stats, coefficients)
    call.run(plan, GRAD_INPUT(call.at, call.dy_at, call.result_at, *places, act.slope))
    return call.result


def forward(
    x: Array,
    gamma: Array | None,
    beta: Array | None,
    eps: float,
    mean: Array | None = None,
    var: Array | None = None,
    weight: Array | None = None,
    act: Activation = IDENTITY,
    running: Rule | None = None,
    out: Array | None = None,
) -> tuple[Array, Array, Any, Any]:
    """Batch normalization: return y, stats, count, left. stats is float64 (5, C): mean, var, rstd, scale, shift.

    count is a float, or with weights an array on the device. left: the calls that `settle` has to make; 0 without
    `running`. One of them may be the launch of the forward, which then moves the statistics too: y and stats are not
    computed before `settle`.
    """
    call = begun(x, out)
    device = call.device
    limits, kind = device.limits, act.kind
    count: Any = call.count
    stats = device.empty((5, call.channels), FLOAT64)
    if mean is not None and var is not None:
        plan = plans.map_only("normalize", *call.size, False, kind, limits)
        places = device.addresses(gamma, beta, mean, var, stats)
        single = singles(gamma, beta, mean, var)
        call.run(plan, INFERENCE(call.at, call.result_at, *places, single, act.slope, eps))
        return call.result, stats, count, 0
    counts = None
    if weight is not None:
        count = counts = device.zeros((), FLOAT64)
    plan = plans.reduction("moments", *call.size, weight is not None, "normalize", kind, limits)
    if running is not None and one_launch(running, count):
        return call.result, stats, count, _moving(call, plan, running, act, eps, weight, gamma, beta, stats, counts)
    parts = None if running is None else device.empty((4, call.channels), FLOAT64)
    places, single = device.addresses(weight, gamma, beta, stats, parts, counts), singles(gamma, beta)
    if running is not None and running.nonfinite == "raise":
        test = plans.reduction("moments", *call.size, weight is not None, "", kind, limits)
        call.run(test, FORWARD(call.at, call.result_at, *places, *call.workspace(test), single, act.slope, eps))
        of_forward(running, stats, parts, count, call.outer * call.inner).test()
    call.run(plan, FORWARD(call.at, call.result_at, *places, *call.workspace(plan), single, act.slope, eps))
    if running is None:
        return call.result, stats, count, 0
    moving = of_forward(running, stats, parts, count, call.outer * call.inner)
    return call.result, stats, count, (moving.calls, moving.values, moving.result, moving.arrays)


def _moving(
    call: Any, plan: plans.Plan, rule: Rule, act: Activation, eps: float, *arrays: Array | None
) -> tuple[list[Any], bool, int, Any]:
    """Prepare a forward that moves running statistics in its own launch. Return the argument `left` of `settle`, which
    makes this launch. arrays: the other arrays of the forward."""
    mode, nonfinite = rule.mode, rule.nonfinite
    counted = rule.left if nonfinite == "skip" else None
    arrays = *arrays, rule.mean, rule.var, rule.seen, counted
    weight, gamma, beta, stats, counts, *moved = call.device.addresses(*arrays)
    job = MOVING(
        *(call.at, call.result_at, weight, gamma, beta, stats, counts, *call.workspace(plan), *moved, mode),
        *(rule.mean.dtype == FLOAT64, PROPAGATE if nonfinite == "propagate" else SKIP, singles(*arrays[1:3])),
        *(act.slope, eps, rule.momentum, rule.ddof, float(rule.counters[3]) if mode == POOL else 0.0),
    )
    return [call.later(plan, job)], mode == POOL, 0, arrays


def backward(
    dy: Array,
    x: Array,
    stats: Array,
    count: Any,
    weight: Array | None = None,
    act: Activation = IDENTITY,
    frozen: bool = False,
    params: Wanted = True,
    out: Array | None = None,
) -> tuple[Array, Array | None, Array | None]:
    """Return dx, dgamma, dbeta for the `forward` that returned stats and count. frozen: it had constant statistics."""
    call = begun(x, out, dy)
    device = call.device
    kind, channels = act.kind, call.channels
    then = "frozen" if frozen else "gradient"
    if frozen and not params:
        plan = plans.map_only(then, *call.size, False, kind, device.limits)
        job = GRAD_INPUT(call.at, call.dy_at, call.result_at, 0, device.address(stats), 0, act.slope)
        call.run(plan, job)
        return call.result, None, None
    careful = weight is not None and not frozen
    plan = plans.reduction("sums", *call.size, careful, then, kind, device.limits)
    partial, tickets = call.workspace(plan, 3 * channels)
    coefficients = 0 if frozen else partial + 8 * plan.partial
    dgamma, dbeta, gives, holder, new = receiver(params, channels, device, dy, x, weight)
    number, counts = (count, None) if isinstance(count, float) else (0.0, count)
    weight_at, stats_at, *sums = device.addresses(weight, stats, dgamma, dbeta, counts)
    x_and_dy = call.at, call.dy_at, call.result_at, weight_at
    job = BACKWARD(*x_and_dy, stats_at, coefficients, *sums, partial, tickets, gives, act.slope, number)
    call.run(plan, job, holder)
    return call.result, *new
