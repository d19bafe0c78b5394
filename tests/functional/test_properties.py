"""Batch norm and its backward on arrays that nobody thought of, against the reference."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import bnorm.functional as F
import cases
from bnorm.checks import activation as activation_of
from bnorm.kernels import reference, view
from cases import Case
from compare import assert_same
from kernel_checks import Problem, assert_backward, assert_forward, away_from_zero, exact

MEMORIES = [cases.c_order, cases.fortran, cases.inside_out, cases.strided, cases.columns_of_wider, cases.backwards]
MEMORIES += [cases.byte_swapped, cases.unaligned]
OF_SEVERAL_AXES = [cases.channels_last, cases.channels_first]
READ = [cases.read_only, cases.broadcast]  # what can be x, but not out
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 33, 64, 67, 127, 257, 521, 1031, 4099, 16411]
MOST = 50_000  # elements


@st.composite
def problems(draw):
    """A case for x, and memory for dy and out."""
    shape: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        room = MOST // np.prod([n for n in shape if n], dtype=int)
        shape.append(draw(st.sampled_from([n for n in SIZES if n <= room])))
    shape = draw(st.permutations(shape))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    memories = MEMORIES + OF_SEVERAL_AXES * (len(shape) > 1)
    case = Case(tuple(shape), axis, draw(st.sampled_from(memories + READ)), "drawn")
    return case, draw(st.sampled_from(memories)), draw(st.sampled_from(memories))


# The same cases in every run.
@settings(deadline=None, max_examples=settings.default.max_examples * 3 // 2, derandomize=True)
@given(
    drawn=problems(),
    dtype=st.sampled_from(cases.DTYPES),
    offset=st.sampled_from([0.0, 0.0, 30.0, -1000.0]),
    seed=st.integers(0, 100),
    mode=st.sampled_from(["plain", "weighted", "one weight per sample", "given"]),
    activation=st.sampled_from([None, "relu", "leaky_relu", "silu", "gelu"]),
    scaled=st.booleans(),
    shifted=st.booleans(),
)
@example(  # a gradient that half precision cannot hold
    drawn=(Case((3, 16411), 1, cases.c_order, "drawn"), cases.c_order, cases.c_order),
    dtype="float16",
    offset=0.0,
    seed=16,
    mode="weighted",
    activation=None,
    scaled=False,
    shifted=False,
)
@example(  # 256 columns of weighted sums that belong to one channel: added one after the other they lost too much
    drawn=(Case((3, 16411, 1), -1, cases.c_order, "drawn"), cases.c_order, cases.c_order),
    dtype="float64",
    offset=0.0,
    seed=0,
    mode="one weight per sample",
    activation=None,
    scaled=True,
    shifted=True,
)
def test_batch_norm(drawn, dtype, offset, seed, mode, activation, scaled, shifted):
    case, like, into = drawn
    rng = np.random.default_rng(seed)
    x = case._replace(memory=lambda a: case.memory(a + np.asarray(offset, a.dtype))).array(dtype, seed)
    before = x.copy()
    c = case.num_channels
    gamma = rng.uniform(0.5, 2, c) * rng.choice([-1, 1], c) if scaled else None
    beta = rng.standard_normal(c) if shifted else None
    options = {"axis": case.axis, "activation": activation, "negative_slope": 0.2}
    act = activation_of("", activation, 0.2)
    block, layout = view.channels(x, case.axis)
    w, statistics = None, ()
    if mode == "given":
        statistics = offset + rng.standard_normal(c), rng.uniform(0.5, 2, c)
        options |= dict(zip(("mean", "var"), statistics, strict=True))
    elif mode != "plain" and x.ndim > 1:
        options["weight"] = case.weight(seed)
        if mode == "one weight per sample":
            options["weight"] = options["weight"].sum(tuple(range(1, x.ndim - 1)))
        w = view.weights(options["weight"], layout)
    values = (w > 0).sum() if w is not None else block.size // max(c, 1)
    if values == 1 and c > 0 and mode != "given":
        with pytest.raises(ValueError, match="more than one value"):
            F.batch_norm(x, gamma, beta, **options)
        return

    y, saved = F.batch_norm(x, gamma, beta, **options)
    assert y.shape == x.shape and y.dtype == np.dtype(dtype)
    want = reference.forward(exact(block), gamma, beta, 1e-5, *statistics, weight=w, act=act)
    p = Problem(block, block, gamma, beta, w)
    got = view.like(y, layout), saved.stats, saved.count, saved.left
    tags = {"case": case.name, "mode": mode, "activation": activation}
    assert_forward(got, want, p, dtype, w is not None, **tags)

    dy = away_from_zero(rng.standard_normal(block.shape), block, dtype, saved.stats)
    gradients = F.backward(like(view.restore(dy, layout)), saved)
    frozen = mode == "given"
    want = reference.backward(exact(dy), exact(block), saved.stats, saved.count, w, act, frozen)
    assert [g is None for g in gradients] == [False, not scaled, not shifted]
    got = [view.like(gradients[0], layout)] + [
        b if g is None else g for g, b in zip(gradients[1:], want[1:], strict=True)
    ]
    assert_backward(got, want, dy, block, saved.stats, saved.count, w, frozen, dtype, **tags)
    assert_same(x, before, **tags)

    out = into(np.zeros(x.shape, dtype))
    assert F.batch_norm(x, gamma, beta, out=out, **options)[0] is out
    assert_same(out, y, into=into.__name__, **tags)
    assert F.backward(like(view.restore(dy, layout)), saved, out=out)[0] is out
    assert_same(out, gradients[0], into=into.__name__, **tags)
