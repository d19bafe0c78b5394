"""The CUDA kernels at the ends, on the emulator: running statistics, NaN, infinity, constants, far means."""

import numpy as np
import pytest

from bnorm.kernels import gpu, reference
from cases import Case, c_order
from compare import EPS, assert_close, assert_same
from gpu_device import emulated_device, needs_emulator  # noqa: F401
from kernel_checks import as_block, assert_forward, assert_moments, channel, exact, on_off, problem
from rules import forward, move, rule

pytestmark = [needs_emulator, pytest.mark.usefixtures("device")]

CASES = [
    Case((70, 6), 1, c_order, "one launch"),
    Case((600, 130), 1, c_order, "several tiles and chunks"),
    Case((100, 3), 1, c_order, "widened, with a rest"),
    Case((5, 3, 333), 1, c_order, "runs, scalar loads"),
    Case((9, 2, 1100), 1, c_order, "runs, whole vectors, several chunks"),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def both(name, *args, **options):
    want = {key: exact(a) for key, a in options.items()}
    return getattr(gpu, name)(*args, **options), getattr(reference, name)(*map(exact, args), **want)


@on_off("pooled", "weighted")
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("buffers", ["float32", "float64"])
def test_running_statistics(buffers, ddof, pooled, weighted):
    def run(kernels):
        rng = np.random.default_rng(8)
        mean, var = np.full(5, 0.5, buffers), np.full(5, 2.0, buffers)
        seen = np.array([0.0, 0, 4, 100, 7]) if pooled else None
        for n in (40, 3, 1, 700):
            x = (rng.standard_normal((n, 5, 2)) + 4).astype("float32")
            weight = rng.random((n, 2)) if weighted else None
            forward(kernels, x, None, None, 1e-5, weight=weight, running=rule(mean, var, 0.3, seen, ddof))
        return mean, var, seen

    got, want = run(gpu), run(reference)
    for g, w, what in zip(got, want, ("mean", "var", "seen"), strict=True):
        if w is not None:
            unit = 1e-13 if what == "seen" else 32 * EPS[np.dtype("float32")]
            assert_close(g, w, unit * np.abs(w), what=what, buffers=buffers, ddof=ddof, pooled=pooled)


@on_off("pooled")
@pytest.mark.parametrize("nonfinite", ["skip", "propagate", "raise"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [6, 2000])  # one launch and two
def test_channels_that_are_not_finite(rows, bad, nonfinite, pooled):
    x = np.random.default_rng(1).standard_normal((rows, 260)).astype("float32")
    x[rows // 2, 1] = x[0, 3] = bad

    def run(kernels):
        seen = np.full(260, 3.0) if pooled else None
        running = np.zeros(260), np.ones(260)
        moving = rule(*running, 0.1, seen, 0, nonfinite)
        out = np.full_like(x, 7)
        try:
            skipped = int(forward(kernels, x, None, None, 1e-5, running=moving, out=out)[3])
        except FloatingPointError as error:
            assert "2 of 260 channels" in str(error)
            assert_same(out, np.full_like(x, 7))
            skipped = None
        finite = np.isfinite(running[0]) & np.isfinite(running[1])
        return skipped, finite, running[0][finite], running[1][finite], seen

    got, want = run(gpu), run(reference)
    assert got[0] == want[0] == {"skip": 2, "propagate": 0, "raise": None}[nonfinite]
    assert_same(got[1], want[1])
    for g, w in zip(got[2:4], want[2:4], strict=True):
        assert_close(g, w, 16 * EPS[np.dtype("float32")], bad=bad, nonfinite=nonfinite)
    if pooled:
        assert_same(got[4], want[4], nonfinite=nonfinite)


VALUES = [1e300, 1e20, np.nan, np.inf, -np.inf, 0.0, 2.5, -3.0]  # 1e300 does not fit float32 buffers


@on_off("pooled")
@pytest.mark.parametrize("nonfinite", ["skip", "propagate", "raise"])
@pytest.mark.parametrize("buffers", ["float32", "float64"])
def test_move(buffers, nonfinite, pooled):
    count, mean, var = (a.ravel() for a in np.meshgrid([0.0, 0.5, 3.0, 1e6], VALUES, [0.0, 2.0, np.nan, np.inf]))

    def run(kernels):
        rng = np.random.default_rng(3)
        running = rng.standard_normal(count.size).astype(buffers), rng.random(count.size).astype(buffers)
        seen = np.linspace(0, 9, count.size) if pooled else None
        with np.errstate(all="ignore"):
            try:
                left = int(move(kernels, rule(*running, 0.25, seen, 1, nonfinite), count, mean, var))
            except FloatingPointError:
                left = "raised"
        return left, running, seen

    (left, running, seen), (want_left, want, want_seen) = run(gpu), run(reference)
    assert left == want_left
    for g, w, batch in zip(running, want, (mean, var), strict=True):
        g, w = (np.where(np.isfinite(a), a, a.dtype.type(np.nan)) for a in (g, w))  # lost, either way
        terms = np.fmax(np.abs(w), np.where(np.isfinite(batch), np.abs(batch), 0)) + 4  # and what stood there before
        assert_close(g, w, 8 * EPS[np.dtype(buffers)] * terms, nonfinite=nonfinite, pooled=pooled)
    if pooled:
        assert_same(seen, want_seen)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@every_dtype
@every_case
def test_not_finite(case, dtype, bad):
    """One such value spoils the statistics of its channel, and of no other."""
    p = problem(case, dtype)
    x = p.x.copy()
    x[tuple(n // 2 for n in x.shape)] = bad
    spoilt = np.arange(case.num_channels) == x.shape[1] // 2
    got, want = both("moments", x)
    assert_same(np.isfinite(got[1]) & np.isfinite(got[2]), ~spoilt, case=case.name, dtype=dtype)
    assert_moments(got[:, ~spoilt], want[:, ~spoilt], dtype, False, case=case.name)
    y, stats, _, _ = gpu.forward(x, p.gamma, p.beta, 1e-5)
    assert np.isnan(np.moveaxis(y, 1, 0)[spoilt]).all() and np.isfinite(np.moveaxis(y, 1, 0)[~spoilt]).all()
    _, stats, count, _ = reference.forward(p.x, p.gamma, p.beta, 1e-5)
    dx, want = (kernels.backward(p.dy, x, stats, count, frozen=True)[0] for kernels in (gpu, reference))
    assert_same(np.isfinite(dx), np.isfinite(want), case=case.name, dtype=dtype)
    if bad == np.inf:
        with pytest.raises(FloatingPointError, match="x holds an infinity"):
            gpu.normalize(x, stats, finite=True)
    else:
        gpu.normalize(x, stats, finite=True)


@every_dtype
@every_case
def test_no_weight_is_not_looked_at(case, dtype):
    p = problem(case, dtype)
    x = np.where(np.broadcast_to(p.weight[:, None] == 0, as_block(p.x).shape).reshape(p.x.shape), np.nan, p.x)
    for got, want in zip(gpu.moments(x, p.weight), gpu.moments(p.x, p.weight), strict=True):
        assert_same(got, want, case=case.name, dtype=dtype)
    dy = np.where(np.isnan(x), 0, p.dy).astype(dtype)
    y, stats, count, _ = gpu.forward(x, p.gamma, p.beta, 1e-5, weight=p.weight)
    assert_same(np.isnan(y), np.isnan(x), case=case.name, dtype=dtype)
    got, want = (gpu.backward(dy, a, stats, count, p.weight) for a in (x, p.x))
    for g, w in zip(got, want, strict=True):
        assert np.isfinite(g).all()
        assert_close(g, w, 1e-5 * np.abs(w).max(), case=case.name, dtype=dtype)


@every_dtype
@every_case
def test_all_weights_zero(case, dtype):
    p = problem(case, dtype)
    nothing = np.zeros_like(p.weight)
    running = np.full(case.num_channels, 5.0), np.full(case.num_channels, 6.0)
    moving = rule(*running, 0.1, nonfinite="raise")
    y, stats, count, skipped = forward(gpu, p.x, p.gamma, p.beta, 1e-5, weight=nothing, running=moving)
    assert (float(count), int(skipped)) == (0.0, 0)
    exact_beta = np.broadcast_to(channel(p.beta.astype(dtype)), as_block(p.x).shape).reshape(p.x.shape)
    assert_same(y, exact_beta, case=case.name, dtype=dtype)
    assert_same(running[0], np.full(case.num_channels, 5.0))
    dx, dgamma, _ = gpu.backward(p.dy, p.x, stats, count, nothing)
    assert_same(dx, np.zeros_like(p.x), case=case.name, dtype=dtype)
    assert_same(dgamma, np.zeros(case.num_channels), case=case.name, dtype=dtype)


@pytest.mark.parametrize("eps", [0.0, 1e-5])
@every_dtype
@every_case
def test_a_constant_channel_is_exactly_beta(case, dtype, eps):
    p = problem(case, dtype)
    exact_beta = np.broadcast_to(channel(p.beta.astype(dtype)), as_block(p.x).shape).reshape(p.x.shape)
    for value in (0.0, 14.62, -1e-3, 1e10, 3e38):
        x = np.full_like(p.x, value)
        y, stats, _, _ = gpu.forward(x, p.gamma, p.beta, eps)
        tags = {"case": case.name, "dtype": dtype, "value": value, "eps": eps}
        assert_same(y, exact_beta, **tags)
        assert_same(stats[0], np.full(case.num_channels, np.asarray(value, dtype), "float64"), what="mean", **tags)
        assert_same(stats[1], np.zeros(case.num_channels), what="var", **tags)
        _, stats, count, _ = gpu.forward(x, p.gamma, None, eps, slope=0.0)  # y is 0, which is not above 0
        for gradient in gpu.backward(p.dy, x, stats, count, slope=0.0):
            assert_same(gradient, np.zeros_like(gradient), what="gradients where the ReLU is", **tags)


@every_case
def test_constant_channels_are_not_added_up_twice(case, device):
    """Among others: sums that are 0 because nothing differs are exact, and those of tiny values are not."""
    p = problem(case, "float32")
    x, constant = p.x.copy(), np.arange(case.num_channels) % 3 == 0
    for value in (0.0, 3.0, 1e-30):
        x[:, constant] = value
        tiny = x * np.float32(1e-25)
        for a in (x, tiny):
            got, want = both("moments", a)
            assert_moments(got, want, "float32", False, case=case.name, value=value)
            assert_same(got[2][constant], np.zeros(constant.sum()), what="m2", case=case.name)
        _, stats, count, _ = reference.forward(x, p.gamma, p.beta, 1e-5)
        got, want = gpu.backward(p.dy, x, stats, count), reference.backward(exact(p.dy), exact(x), stats, count)
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, 1e-5 * np.abs(w).max(), case=case.name, value=value)


def test_pieces_of_a_trend_join_about_one_center(device):
    """The first rows are far from the mean of all, in units of a deviation; and weights of 0 have no center at all."""
    rng = np.random.default_rng(2)
    for dtype, unit in (("float32", 1e-6), ("float64", 1e-13)):
        x = rng.standard_normal((5000, 3))
        x[0], x[1:300] = 1e6, x[1:300] + 50
        x = (x + 1e3).astype(dtype)
        got, want = both("moments", x)
        assert_close(got[2], want[2], unit * want[2], dtype=dtype)
        weight = np.zeros((5000, 1))
        weight[4000:] = 1
        got, want = both("moments", x, weight)
        assert_close(got[1].astype("longdouble") + got[3], want[1].astype("longdouble") + want[3], 1e-13, dtype=dtype)
        assert_close(got[2], want[2], 1e-12 * want[2], dtype=dtype)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e30])
@every_dtype
@every_case
def test_very_large_and_very_small_values(case, dtype, size):
    """Squares of 1e30 are no float32: variances are finite all the same, and as exact as any, and so is y."""
    p = problem(case, dtype)
    p = p._replace(x=(p.x * size).astype(dtype))
    got, want = both("moments", p.x)
    assert_moments(got, want, dtype, False, case=case.name, size=size)
    got, want = both("forward", p.x, p.gamma, p.beta, 0.0)
    assert_forward(got, want, p, dtype, False, case=case.name, size=size)
    _, stats, count, _ = want
    # small where 1 / std is large: products leave the range of float32, dx does not
    dy = (p.dy * min(1.0, size * 1e10)).astype(dtype)
    got, want = gpu.backward(dy, p.x, stats, count), reference.backward(exact(dy), exact(p.x), stats, count)
    for g, w, what in zip(got, want, ("dx", "dgamma", "dbeta"), strict=True):
        assert_close(g, w, 1e-4 * np.abs(w).max(), what=what, case=case.name, dtype=dtype, size=size)


@pytest.mark.parametrize("offset", [1e2, 1e4, 1e6])
@every_dtype
@every_case
def test_a_mean_far_from_zero_costs_nothing(case, dtype, offset):
    p = problem(case, dtype)
    p = p._replace(x=(p.x + np.asarray(offset, dtype)))
    got, want = both("forward", p.x, p.gamma, p.beta, 1e-5)
    assert_forward(got, want, p, dtype, False, case=case.name, offset=offset)
    got, want = both("moments", p.x)
    assert_moments(got, want, dtype, False, case=case.name, offset=offset)


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@every_case
def test_moments_that_are_kept_are_summed_in_float64(case, dtype, offset):
    """To 1e-12 of the standard deviation, whatever the type."""
    p = problem(case, "float32")
    x = (p.x + np.float32(offset)).astype(dtype)
    got, want = both("moments", x)
    std = np.sqrt(want[2] / want[0])
    exact_mean = want[1].astype(np.longdouble) + want[3]
    assert_close(got[1].astype(np.longdouble) + got[3], exact_mean, 1e-12 * std, case=case.name, dtype=dtype)
    assert_close(got[2], want[2], 1e-12 * want[2], case=case.name, dtype=dtype)
