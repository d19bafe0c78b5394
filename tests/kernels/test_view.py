"""The view: the right numbers in the right block, and no copy where memory allows none."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cases
from bnorm.kernels import view
from bnorm.kernels.cpu.entries import again, in_float64
from cases import CASES, DENSE, DTYPES
from compare import assert_close, assert_same
from drawing import together

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def numbered(*shape):
    """Every element another number."""
    return np.arange(float(np.prod(shape))).reshape(shape)


def is_block(a):
    return a.flags.c_contiguous and a.flags.aligned and a.dtype.isnative


def other_axes(x, axis):
    return tuple(i for i in range(x.ndim) if i != axis % x.ndim)


@together(dtype=DTYPES)
@every_case
def test_channels(case, dtype):
    x = case.array(dtype)
    block, layout = view.channels(x, case.axis)
    assert is_block(block) and block.shape[1] == case.num_channels and block.size == x.size
    assert block.dtype == np.dtype(dtype)
    if case.memory in DENSE and x.size:
        assert np.shares_memory(block, x), f"{case.name} was copied"
    elif x.size:
        assert not np.shares_memory(block, x)
    assert_same(view.restore(block, layout), x, case=case.name, dtype=dtype)
    by_channel = np.moveaxis(x, case.axis, 0).reshape(case.num_channels, -1) if x.size else x
    of_block = np.moveaxis(block, 1, 0).reshape(case.num_channels, -1) if x.size else x
    assert_same(np.sort(of_block), np.sort(by_channel), case=case.name, dtype=dtype)


@every_case
def test_restore_is_a_view_ordered_like_x(case):
    x = case.array("float32")
    block, layout = view.channels(x, case.axis)
    fresh = np.zeros(block.shape, block.dtype)
    y = view.restore(fresh, layout)
    assert y.shape == x.shape
    if x.size:
        assert np.shares_memory(y, fresh)
    if case.memory in DENSE:
        assert y.strides == x.strides or 1 in x.shape or not x.size


@every_case
def test_like_takes_any_memory_order_to_that_of_x(case):
    x = case.array("float64")
    block, layout = view.channels(x, case.axis)
    for memory in (cases.c_order, cases.fortran, cases.strided, cases.backwards, cases.byte_swapped, cases.unaligned):
        a = memory(x)
        b = view.like(a, layout)
        assert is_block(b)
        assert_same(b, block, case=case.name, memory=memory.__name__)
    same = np.empty_like(x)
    if case.memory in DENSE:
        assert np.shares_memory(view.like(same, layout), same) or not x.size


@every_case
def test_into_is_a_view_or_nothing(case):
    x = case.array("float32")
    block, layout = view.channels(x, case.axis)
    for memory in (cases.c_order, cases.fortran, cases.inside_out, cases.strided, cases.byte_swapped, cases.unaligned):
        out = memory(np.zeros(x.shape, x.dtype))
        target = view.into(out, layout)
        if target is None:
            assert not is_block(out) or layout.order is not None
            continue
        target[...] = block
        assert_same(out, x, case=case.name, memory=memory.__name__)


def test_the_shortest_path_is_x_itself():
    x = numbered(32, 64)
    block, layout = view.channels(x, 1)
    assert block is x
    assert view.channels(x, -1)[0] is x
    assert view.like(x, layout) is x and view.restore(x, layout) is x


@pytest.mark.parametrize(
    ("shape", "memory", "axis", "block"),
    [
        ((8, 16, 5, 3), cases.c_order, 1, (8, 16, 15)),
        ((8, 16, 5, 3), cases.channels_last, 1, (120, 16, 1)),
        ((8, 16, 5, 3), cases.fortran, 1, (15, 16, 8)),
        ((8, 5, 3, 16), cases.c_order, 3, (120, 16, 1)),
        ((8, 16), cases.fortran, 1, (1, 16, 8)),
        ((8, 16), cases.c_order, 0, (1, 8, 16)),
        ((8, 1, 5), cases.c_order, 1, (8, 1, 5)),
        ((8, 1, 5), cases.fortran, 1, (1, 1, 40)),
        ((8, 1, 5), cases.channels_last, 1, (8, 1, 5)),
        ((1, 16, 5), cases.channels_last, 1, (5, 16, 1)),
        ((8, 16), cases.broadcast, 1, (8, 16)),
        ((7,), cases.c_order, 0, (1, 7, 1)),
        ((0, 4), cases.fortran, 1, (0, 4)),
        ((3, 0, 4), cases.c_order, 1, (3, 0, 4)),
    ],
)
def test_blocks(shape, memory, axis, block):
    x = memory(np.zeros(shape))
    assert view.channels(x, axis)[0].shape == block
    assert view.channels(x, axis - len(shape))[0].shape == block
    assert view.channels(x, np.int64(axis))[0].shape == block


def test_strides_of_axes_of_length_one_mean_nothing():
    plain = numbered(4, 1, 5)
    odd = np.lib.stride_tricks.as_strided(plain, strides=(plain.strides[0], 8 * 12345, plain.strides[2]))
    assert view.channels(odd, 1)[1] == view.channels(plain, 1)[1]


@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_that_is_not_there(axis):
    with pytest.raises(IndexError):
        view.channels(numbered(3, 4), axis)


@st.composite
def dense_arrays(draw):
    """A dense array whose axes lie in memory in any order, with one axis chosen."""
    shape = tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=5)))
    order = draw(st.permutations(range(len(shape))))
    x = numbered(*(shape[i] for i in order)).transpose(np.argsort(order))
    return x, draw(st.integers(-len(shape), len(shape) - 1))


@given(dense_arrays())
def test_any_dense_array_is_viewed_and_summed_by_channel(drawn):
    x, axis = drawn
    block, layout = view.channels(x, axis)
    assert is_block(block)
    assert np.shares_memory(block, x) or not x.size
    sums = block.sum((0, 2) if block.ndim == 3 else 0)
    assert_same(sums, x.sum(other_axes(x, axis)), shape=x.shape, strides=x.strides, axis=axis)
    assert_same(view.restore(block, layout), x, shape=x.shape, strides=x.strides, axis=axis)


@given(dense_arrays(), st.integers(0, 2**32 - 1))
def test_weights_stand_where_their_values_stand(drawn, seed):
    x, axis = drawn
    w = np.random.default_rng(seed).random(np.delete(x.shape, axis))
    block, layout = view.channels(x, axis)
    ordered = view.weights(w, layout)
    block = block.reshape(block.shape[0], block.shape[1], ordered.shape[1])
    assert is_block(ordered) and ordered.dtype == np.float64
    got = (block * ordered[:, None, :]).sum((0, 2))
    want = (x * np.expand_dims(w, axis)).sum(other_axes(x, axis))
    assert_close(got, want, 1e-13 * np.abs(want), shape=x.shape, strides=x.strides, axis=axis)


@every_case
def test_one_weight_per_sample(case):
    x = case.array("float64")
    _, layout = view.channels(x, case.axis)
    full = np.delete(x.shape, case.axis)
    if not full.size:
        return
    w = numbered(full[0]) + 1
    spread = np.broadcast_to(w.reshape(-1, *[1] * (full.size - 1)), full)
    assert_same(view.weights(w, layout), view.weights(spread, layout), case=case.name)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "float16", "float32", ">f4", ">f8"])
def test_weights_become_float64_unless_kernels_read_them_as_they_are(dtype):
    x = numbered(4, 3, 5)
    w = (numbered(4, 5) % 3 > 0).astype(dtype)
    ordered = view.weights(w, view.channels(x, 1)[1])
    assert ordered.dtype == (dtype if dtype in ("bool", "uint8", "float32") else np.float64)
    assert ordered.flags.c_contiguous and np.may_share_memory(ordered, w) == (ordered.dtype == w.dtype)
    assert_same(ordered.astype("float64"), w.astype("float64"), dtype=dtype)


def test_weights_of_another_shape_are_refused_with_the_shapes_that_fit():
    _, layout = view.channels(numbered(8, 3, 7, 5), 1)
    for wrong in ((8, 3), (7,), (8, 5, 7), (8, 7, 5, 1), (), (1, 7, 5)):
        with pytest.raises(ValueError, match=r"expected shape \(8, 7, 5\) or \(8,\) .*, got \("):
            view.weights(np.ones(wrong), layout)
    with pytest.raises(ValueError, match=r"expected shape \(8,\) for x of shape \(8, 3\), got \(3,\)"):
        view.weights(np.ones(3), view.channels(numbered(8, 3), 1)[1])


def test_weights_are_never_written_to_and_not_copied_without_need():
    w = np.ones((4, 5))
    assert np.shares_memory(view.weights(w, view.channels(numbered(4, 3, 5), 1)[1]), w)


@pytest.mark.parametrize("normalized_ndim", [1, 2, 3])
@pytest.mark.parametrize("memory", [cases.c_order, cases.fortran, cases.strided, cases.byte_swapped, cases.broadcast])
def test_rows(memory, normalized_ndim):
    x = memory(numbered(4, 3, 5))
    block, layout = view.rows(x, normalized_ndim)
    length = int(np.prod(x.shape[-normalized_ndim:]))
    assert is_block(block) and block.shape == (x.size // length, 1, length, 1)
    assert_same(view.restore(block, layout), x)
    rows_of_x = {tuple(row) for row in x.reshape(-1, length)}
    assert {tuple(row) for row in block.reshape(-1, length)} == rows_of_x
    assert np.shares_memory(block, x) == (memory is cases.c_order)


def test_rows_need_no_copy_when_only_the_samples_are_permuted():
    x = numbered(4, 3, 5).transpose(1, 0, 2)
    block, layout = view.rows(x, 1)
    assert np.shares_memory(block, x) and block.shape == (12, 1, 5, 1)
    assert np.shares_memory(view.restore(block, layout), x)


@pytest.mark.parametrize("shape", [(0, 5), (4, 0), (0, 0)])
def test_rows_of_empty_arrays(shape):
    block, layout = view.rows(np.zeros(shape), 1)
    assert block.shape == (shape[0], 1, shape[1], 1)
    assert view.restore(block, layout).shape == shape


@together(num_groups=[1, 2, 6], memory=[cases.c_order, cases.fortran, cases.channels_last, cases.backwards])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((4, 6), 1), ((4, 6, 5), 1), ((4, 5, 6), -1), ((6, 4, 5), 0), ((4, 6, 3, 5), 1), ((4, 3, 5, 6), 3)],
)
def test_groups(shape, axis, memory, num_groups):
    x = memory(numbered(*shape))
    block, layout = view.groups(x, num_groups, axis)
    assert is_block(block) and block.shape == (4, num_groups, 6 // num_groups, x.size // 24)
    assert_same(view.restore(block, layout), x)
    channel_first = np.moveaxis(x, axis, 0)  # (C, N, ...)
    want = channel_first.reshape(6, 4, -1).transpose(1, 0, 2)
    assert_same(np.sort(block.reshape(4, 6, -1)), np.sort(want))


def test_groups_need_no_copy_in_the_usual_orders():
    x = numbered(4, 6, 3, 5)
    assert np.shares_memory(view.groups(x, 2, 1)[0], x)
    y = numbered(4, 6, 5, 3).transpose(0, 1, 3, 2)  # positions are permuted: sums over them do not care
    assert np.shares_memory(view.groups(y, 2, 1)[0], y)
    z = numbered(6, 4, 15).transpose(1, 0, 2)
    assert not np.shares_memory(view.groups(z, 2, 1)[0], z)


@pytest.mark.parametrize("shape", [(0, 6, 5), (4, 6, 0), (4, 0, 5)])
def test_groups_of_empty_arrays(shape):
    groups = 2 if shape[1] else 0
    block, layout = view.groups(np.zeros(shape), groups, 1)
    assert block.size == 0 and block.shape[:2] == (shape[0], groups)
    assert view.restore(block, layout).shape == shape


def test_more_than_2_to_the_31_elements():
    """The algebra only: a view of memory that is never touched."""
    x = np.lib.stride_tricks.as_strided(np.zeros(1, "f4"), (2**12, 2**10, 2**12), (2**24, 2**14, 4), writeable=False)
    block, layout = view.channels(x, 1)
    assert block.shape == (2**12, 2**10, 2**12) and np.may_share_memory(block, x)
    block, layout = view.channels(x.transpose(1, 2, 0), -1)
    assert block.shape == (1, 2**12, 2**22)
    assert view.restore(block, layout).strides == x.transpose(1, 2, 0).strides
    assert view.rows(x, 2)[0].shape == (2**12, 1, 2**22, 1)
    assert view.groups(x, 8, 1)[0].shape == (2**12, 8, 2**7, 2**12)


def test_plans_are_made_once():
    x = numbered(3, 4, 5)
    first, again = view.channels(x, 1)[1], view.channels(x.copy(), 1)[1]
    assert first is again


# The next array like the last one -------------------------------------------------------------------------------------


def test_an_array_like_the_last_is_taken_at_a_glance():
    for shape, axis in (((4, 3), 1), ((4, 3, 2), 1), ((4, 2, 3), -1), ((0, 3), 1), ((5,), 0)):
        x = numbered(*shape)
        block, layout = view.channels(x, axis, False)
        for like in (x, x + 1, x.astype(np.float32), x.astype(np.float16), x.astype(ml_dtypes.bfloat16)):
            found = again(like, layout)
            assert found.shape == block.shape and np.shares_memory(found, like) == (like.size > 0)
            assert_same(found.reshape(shape), like)


def test_any_other_array_is_looked_at():
    x = numbered(4, 3)
    _, layout = view.channels(x, 1, False)
    unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    others = [x.tolist(), x.astype(np.int16), x > 0, x.astype(">f8"), x.astype(complex), np.asfortranarray(x), x[:3]]
    others.append(x.astype(ml_dtypes.float8_e4m3fn))
    others += [np.repeat(x, 2, 1)[:, ::2], x[None], x.ravel(), unaligned, x.view(np.recarray), None]
    for other in others:
        assert again(other, layout) is None
    assert again(x, None) is None
    turned = np.asfortranarray(x)
    assert again(turned, view.channels(turned, 1, False)[1]) is None
    assert again(x, view.channels(turned, 1, False)[1]) is None


# The vectors of a layer ----------------------------------------------------------------------------------------------


def test_vectors_in_float64():
    wide, narrow = np.arange(3.0), np.array([[0.1, -0.0, np.nan]], np.float32)
    same, none, copy = in_float64((wide, None, narrow))
    assert same is wide and none is None
    assert copy.shape == (1, 3) and copy.tobytes() == narrow.astype(np.float64).tobytes()
    with pytest.raises(ValueError, match="vector: expected 3 numbers of float32"):
        in_float64((narrow.astype(np.float16),))
