"""Layer, group, instance and RMS norm on CuPy arrays: the functions of `reference.py`, by the plans of row_plans.py."""

from typing import Any

import numpy as np

from ..activation import IDENTITY, Activation
from ..cpu.launches import singles, small
from . import plans, row_plans
from .calls import begun
from .gradients import Wanted, receiver
from .jobs import GAMMA_ALONE, GAMMA_AND_BETA, JOB, NO_AFFINE, ROW_JOB, STATISTICS_JOB

Array = Any  # cupy.ndarray
FLOAT64 = np.dtype("float64")

FORWARD = ROW_JOB.packer(
    *("x", "y", "gamma", "beta", "mean", "rstd", "weight", "gamma_kept", "beta_kept", "rule", "slope", "eps", "inverse")
)
BACKWARD = ROW_JOB.packer(
    *("x", "dy", "y", "gamma", "beta", "mean", "rstd", "dgamma", "dbeta", "partial", "weight", "tickets"),
    *("rule", "gives", "slope", "inverse"),
)
COPY = STATISTICS_JOB.packer("total", "part", "other", "other_part", "single")
SUMS = JOB.packer(
    *("x", "dy", "weight", "gamma", "beta", "dgamma", "dbeta", "partial", "tickets", "row_mean", "row_rstd", "gives"),
    "slope",
)


def moved(result: Array, out: Array | None) -> Array:
    """Return the result of copied arrays, in `out` if it is given. Arrays are copied if they do not begin at a vector,
    because kernels load whole vectors, and sums are cut by vectors."""
    if out is None:
        return result
    out[...] = result.reshape(out.shape)
    return out


def rows_forward(
    x: Array,
    gamma: Array | None,
    beta: Array | None,
    eps: float,
    rule: int = 0,
    act: Activation = IDENTITY,
    out: Array | None = None,
    residual: Array | None = None,
    weight: Array | None = None,
    copies: bool = False,
) -> tuple[Any, ...]:
    """Return y, mean, rstd: each of the N*G rows of x is normalized by its own statistics.

    x: (N, G, K, L), or (N, D) for (N, 1, D, 1). With copies, gamma and beta, flattened, follow the results, for a
    backward; all but y are then parts of one array. If gamma or beta is float32, so are they, and a launch makes the
    copies before the rows are read. With a residual, the sum h = x + residual is normalized, after an addition on the
    device, and (y, h) takes the place of y. weight: (N, L), of each position.
    """
    if residual is not None:
        h = x + residual
        y, *more = rows_forward(h, gamma, beta, eps, rule, act, out, None, weight, copies)
        return (y, h), *more
    call = begun(x, out)
    device, shape = call.device, x.shape
    if weight is None and not call.vectors and call.places % row_plans.begins(shape, call.dtype):
        y, *more = rows_forward(x.copy(), gamma, beta, eps, rule, act, copies=copies)
        return moved(y, out), *more
    many = shape[0] if len(shape) == 2 else shape[0] * shape[1]
    gamma_then = beta_then = None
    single = singles(gamma, beta)
    if (copies or single) and many:
        mean, rstd, gamma_then, beta_then = small(device, many, gamma, beta, FLOAT64)
    else:
        mean, rstd = device.empty((many,), FLOAT64), device.empty((many,), FLOAT64)
    if many:
        if weight is None:
            affine = GAMMA_AND_BETA if beta is not None else NO_AFFINE if gamma is None else GAMMA_ALONE
            plan = row_plans.rows("rows_forward", shape, call.dtype, affine, False, act.kind, device.limits)
        else:
            plan = row_plans.weighted("rows_weighted_forward", shape, call.dtype, act.kind)
        runs = []
        kept = gamma_then, beta_then
        one: Any = beta if gamma is None else gamma
        if single and one.size:
            job = COPY(*device.addresses(gamma_then, gamma, beta_then, beta), single)
            runs.append((plans.per_channel("copy_params", one.size), job))
            (gamma, beta), kept = kept, (None, None)
        places = device.addresses(gamma, beta, mean, rstd, weight, *kept)
        arguments = rule, act.slope, eps, many / (x.size or 1)
        call.run_all([*runs, (plan, FORWARD(call.at, call.result_at, *places, *arguments))])
    elif copies:  # no kernel runs that could make them
        gamma_then, beta_then = (a if a is None else a.flatten().astype(FLOAT64, copy=False) for a in (gamma, beta))
    return (call.result, mean, rstd, gamma_then, beta_then) if copies else (call.result, mean, rstd)


def rows_backward(
    dy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    gamma: Array | None,
    beta: Array | None,
    rule: int = 0,
    act: Activation = IDENTITY,
    params: Wanted = True,
    out: Array | None = None,
    dh: Array | None = None,
    weight: Array | None = None,
) -> tuple[Array, Array | None, Array | None]:
    """Return dx, dgamma, dbeta for the `rows_forward` that returned mean and rstd. beta is for the activation only.

    dh is added to dx afterwards, on the device.
    """
    call = begun(x, out, dy)
    device = call.device
    limits, kind, shape = device.limits, act.kind, x.shape
    if weight is None and not call.vectors and call.places % row_plans.begins(shape, call.dtype):
        dx, dgamma, dbeta = rows_backward(dy.copy(), x.copy(), mean, rstd, gamma, beta, rule, act, params, None, dh)
        return moved(dx, out), dgamma, dbeta
    channels = shape[1] if len(shape) == 2 else shape[1] * shape[2]
    affine = GAMMA_AND_BETA if beta is not None else NO_AFFINE if gamma is None else GAMMA_ALONE
    if weight is None:
        plan = row_plans.rows("rows_backward", shape, call.dtype, affine, bool(params), kind, limits)
    else:
        plan = row_plans.weighted("rows_weighted_backward", shape, call.dtype, kind)
    dgamma, dbeta, gives, holder, new = receiver(params, channels, device, dy, x, weight, dh)
    gamma_at, beta_at, *of_rows, dgamma_at, dbeta_at, weight_at = device.addresses(
        gamma, beta, mean, rstd, dgamma, dbeta, weight
    )
    places, sums = (gamma_at, beta_at), (dgamma_at, dbeta_at)
    runs = []
    if params and channels and not plan.partial:  # before dx is written, which may be in the place of x or dy
        first = row_plans.row_sums(shape, call.dtype, call.vectors, kind, limits)
        arrays = call.at, call.dy_at, weight_at, *places, *sums, *call.workspace(first), *of_rows
        runs.append((first, SUMS(*arrays, gives, act.slope)))
    if mean.size or plan.partial:
        partial, tickets = call.workspace(plan) if plan.partial else (0, 0)
        arrays = call.at, call.dy_at, call.result_at, *places, *of_rows, *sums, partial, weight_at, tickets
        runs.append((plan, BACKWARD(*arrays, rule, gives, act.slope, mean.size / (x.size or 1))))
    call.run_all(runs, holder)
    found: Any = call.result
    if dh is not None:
        found += dh.reshape(found.shape)
    return found, *new
