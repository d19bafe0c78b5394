"""Where a result may be written: memory of its own in any order, x, dy; and what is left of the forward then."""

from itertools import product

import numpy as np
import pytest

import bnorm.functional as F
import cases
from bnorm.kernels import cpu
from cases import DTYPES
from compare import assert_close, assert_same
from drawing import every_pair
from kinds import BATCH, EVERY_MEMORY, KINDS, every_kind, subclass

OUTS = {
    "like x": np.empty_like,
    "in C order": lambda x: np.empty(x.shape, x.dtype),
    "in Fortran order": lambda x: np.empty(x.shape, x.dtype, order="F"),
    "byte-swapped": lambda x: np.empty(x.shape, x.dtype.newbyteorder("S")),
    "unaligned": lambda x: cases.unaligned(np.zeros(x.shape, x.dtype)),
    "strided": lambda x: cases.strided(np.zeros(x.shape, x.dtype)),
    "backwards": lambda x: cases.backwards(np.zeros(x.shape, x.dtype)),
}


@every_pair(["kind", "dtype"], product(KINDS, DTYPES), out=OUTS, memory=EVERY_MEMORY[:5])
def test_out_of_its_own_memory(kind, dtype, out, memory):
    make = OUTS[out]
    x, dy, gamma, _ = kind.example()
    x, dy = memory(x.astype(dtype)), memory(dy.astype(dtype))
    want, saved = kind.forward(x, gamma)
    want_dx, want_dgamma, _ = F.backward(dy, saved)
    out = make(x)
    y, saved = kind.forward(x, gamma, out=out)
    assert y is out
    assert_same(y, want)
    out = make(x)
    dx, dgamma, _ = F.backward(dy, saved, out=out)
    assert dx is out
    assert_same(dx, want_dx)
    assert_same(dgamma, want_dgamma)
    assert_same(F.backward(dy, saved)[0], want_dx)  # once more: nothing of the forward was overwritten


SAME = {"x": lambda x: x, "view": lambda x: x[:], "subclass": subclass}


@every_pair("kind", KINDS, memory=[*EVERY_MEMORY, cases.byte_swapped, cases.unaligned], same=SAME)
def test_in_place(kind, memory, same):
    same = SAME[same]
    x, dy, gamma, _ = kind.example()
    want, saved = kind.forward(x, gamma)
    want_dx, _, _ = F.backward(dy, saved)

    a = memory(x.copy())
    out = same(a)
    y, spent = kind.forward(a, gamma, out=out)
    assert y is out
    assert_close(a, want, 1e-14)
    with pytest.raises(RuntimeError, match=r"backward: x: .* out= overwrote"):
        F.backward(dy, spent)

    a, b = memory(x.copy()), memory(dy.copy())  # over dy: the forward stays
    _, saved = kind.forward(a, gamma)
    out = same(b)
    assert F.backward(b, saved, out=out)[0] is out
    assert_close(b, want_dx, 1e-13)
    assert_close(F.backward(dy, saved)[0], want_dx, 1e-13)

    out = same(a)  # over x: the last backward of this forward, if it was x that was held and not a copy
    assert F.backward(dy, saved, out=out)[0] is out
    assert_close(a, want_dx, 1e-13)
    if saved.x is None:
        with pytest.raises(RuntimeError, match="out= overwrote"):
            F.backward(dy, saved)
    else:
        assert_close(F.backward(dy, saved)[0], want_dx, 1e-13)


def test_dy_may_be_x_and_out():
    x, _, _, _ = BATCH[0].example()
    want, _, _ = F.backward(x.copy(), F.batch_norm(x.copy())[1])
    _, saved = F.batch_norm(x)
    assert F.backward(x, saved, out=x)[0] is x
    assert_close(x, want, 1e-15)


def test_out_between_the_elements_of_x_is_memory_of_its_own():
    both = np.zeros((6, 6))
    both[:, :3] = BATCH[0].example()[0]
    want, _ = F.batch_norm(both[:, :3].copy())
    F.batch_norm(both[:, :3], out=both[:, 3:])
    assert_same(both[:, 3:], want)


@every_kind
def test_read_only_arguments(kind):
    x, dy, gamma, _ = kind.example()
    for a in (x, dy, gamma):
        a.flags.writeable = False
    _, saved = kind.forward(x, gamma)
    F.backward(dy, saved)


def test_apart():
    a = np.zeros(100)
    assert cpu.apart(a[:50], [None, a[50:], np.zeros(3), a[60:60]])
    assert cpu.apart(a[49::-1], [a[50:], a[99:49:-1]])
    assert cpu.apart(a[:50], [])
    for other in (a, a[49:51], a[60::-1], a[::99], "something else", a.tolist()):
        assert not cpu.apart(a[:50], [None, other])
