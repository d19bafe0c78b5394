"""Layers against PyTorch's, over steps of training, and states that go both ways, where PyTorch is installed."""

from functools import partial

import numpy as np
import pytest

import bnorm
from compare import assert_close

torch = pytest.importorskip("torch", reason="PyTorch is an optional reference: pip install bnorm[torch]")
nn = torch.nn

C = 6
SHAPES = {
    "BatchNorm1d": [(C,), (C, 5)],
    "BatchNorm2d": [(C, 4, 3)],
    "BatchNorm3d": [(C, 2, 3, 2)],
}
BATCH = [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]
every_batch_norm = pytest.mark.parametrize(("name", "shape"), BATCH)

# Sums in another order are all that separates the two, but PyTorch's float32 layer keeps float32 statistics.
UNIT = {"float32": 2e-6, "float64": 1e-14}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine its threads wait for each other for longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tensors(state):
    return {key: torch.from_numpy(np.array(value)) for key, value in state.items()}


def check_step(ours, theirs, x, dy, unit, **case):
    """Output and all gradients of one step; then a step of gradient descent on both sides."""
    leaf = torch.from_numpy(x.copy()).requires_grad_()
    want = theirs(leaf)
    theirs.zero_grad()
    want.backward(torch.from_numpy(dy.copy()))
    ours.zero_grad()
    rstd = 20  # no spread of the data is below 0.05
    assert_close(ours(x), want.detach().numpy(), unit * 50, what="y", **case)
    size = np.abs(dy).sum()
    assert_close(ours.backward(dy), leaf.grad.numpy(), unit * rstd * size, what="dx", **case)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(p.grad, q.grad.numpy(), unit * 50 * size, what="gradient", **case)
        p.data -= 0.01 * p.grad
        q.data -= 0.01 * q.grad


def check_state(ours, theirs, unit, **case):
    state, want = ours.state_dict(), theirs.state_dict()
    assert list(state) == list(want)
    for key in state:
        value = want[key].numpy()
        assert state[key].shape == value.shape
        assert_close(state[key], value, unit * 100 * (1 + np.abs(value)), key=key, **case)


@every_batch_norm
@pytest.mark.parametrize("dtype", list(UNIT))
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9, "eps": 1e-3}, {"affine": False}, {"track_running_stats": False}],
    ids=str,
)
def test_batch_norm(name, shape, dtype, options):
    rng = np.random.default_rng(0)
    ours = getattr(bnorm, name)(C, ddof=1, dtype=dtype, **options)
    theirs = getattr(nn, name)(C, dtype=getattr(torch, dtype), **options)
    case = {"layer": name, "shape": shape, "dtype": dtype, **options}
    for step in range(1, 31):
        x, dy = rng.standard_normal((2, rng.integers(3, 9), *shape)).astype(dtype) + np.float32(1)
        check_step(ours, theirs, x, dy, UNIT[dtype] * step, step=step, **case)
        check_state(ours, theirs, UNIT[dtype] * step, step=step, **case)
    ours.eval(), theirs.eval()
    before = ours.state_dict()
    for n in (1, 4) if ours.running_mean is not None else (4,):
        x, dy = rng.standard_normal((2, n, *shape)).astype(dtype)
        check_step(ours, theirs, x, dy, UNIT[dtype] * 30, mode="eval", **case)
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        if key in before:
            assert np.array_equal(ours.state_dict()[key], before[key])


ROWS = {
    "LayerNorm": ((3, 4), (5, 3, 4), {}),
    "LayerNorm of one axis": (4, (5, 3, 4), {"eps": 1e-3}),
    "RMSNorm": ((3, 4), (5, 3, 4), {"eps": 1e-5}),
    "GroupNorm": ((2, C), (5, C, 4, 3), {}),
    "GroupNorm of vectors": ((2, C), (5, C), {"eps": 1e-3}),
    "InstanceNorm1d": (C, (5, C, 4), {}),
    "InstanceNorm2d": (C, (5, C, 4, 3), {"affine": True}),
    "InstanceNorm3d": (C, (5, C, 4, 3, 2), {"affine": True}),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("dtype", list(UNIT))
def test_row_layers(row, dtype):
    sizes, shape, options = ROWS[row]
    name = row.split()[0]
    sizes = sizes if name == "GroupNorm" else (sizes,)
    rng = np.random.default_rng(0)
    ours = getattr(bnorm, name)(*sizes, dtype=dtype, **options)
    theirs = getattr(nn, name)(*sizes, dtype=getattr(torch, dtype), **options)
    for step in range(1, 6):
        x, dy = rng.standard_normal((2, *shape)).astype(dtype)
        check_step(ours, theirs, x, dy, UNIT[dtype] * step, row=row, dtype=dtype, step=step)
        check_state(ours, theirs, UNIT[dtype] * step, row=row, dtype=dtype, step=step)
    if options.get("affine", True) and "Instance" not in name:
        again = getattr(bnorm, name)(*sizes, dtype=dtype)
        again.load_state_dict(theirs.state_dict())
        check_state(again, theirs, 0.0)


@every_batch_norm
def test_states_go_both_ways(name, shape):
    rng = np.random.default_rng(0)
    theirs = getattr(nn, name)(C, dtype=torch.float64)
    for p in theirs.parameters():
        p.data.uniform_(0.5, 2)
    for _ in range(3):
        theirs(torch.from_numpy(rng.standard_normal((4, *shape))))

    ours = getattr(bnorm, name)(C, ddof=1)
    assert tuple(ours.load_state_dict(theirs.state_dict())) == ([], [])
    check_state(ours, theirs, 0.0)
    assert ours.num_batches_tracked == 3

    back = getattr(nn, name)(C, dtype=torch.float64)
    back.load_state_dict(tensors(ours.state_dict()), strict=True)
    check_state(ours, back, 0.0)
    x, dy = rng.standard_normal((2, 4, *shape))
    check_step(ours, back, x, dy, 1e-14)


def test_parameters_that_require_a_gradient_load():
    theirs = nn.BatchNorm1d(C)
    theirs(torch.randn(5, C))
    state = dict(theirs.named_parameters()) | dict(theirs.named_buffers())
    assert state["weight"].requires_grad
    ours = bnorm.BatchNorm1d(C)
    ours.load_state_dict(state)
    check_state(ours, theirs, 0.0)
    assert ours.gamma.dtype == ours.running_mean.dtype == np.float64
    theirs.weight.data += 1  # nothing is shared
    assert (np.asarray(ours.gamma) == 1).all()


@pytest.mark.parametrize("kind", ["BatchNorm2d", "InstanceNorm2d"])
def test_what_a_state_may_lack(kind):
    options = {"affine": True, "track_running_stats": True}
    theirs, ours = (getattr(library, kind)(C, **options) for library in (torch.nn, bnorm))
    state = theirs.state_dict()
    for name in state:
        some = {key: value for key, value in state.items() if key != name}
        want, got = (layer.load_state_dict(some, strict=False) for layer in (theirs, ours))
        assert tuple(got) == tuple(want)
        if want.missing_keys:
            with pytest.raises(ValueError, match=f"missing: {name}"):
                ours.load_state_dict(some)


def test_half_precision_states_load():
    theirs = nn.BatchNorm1d(C).half()
    ours = bnorm.BatchNorm1d(C)
    ours.load_state_dict(theirs.state_dict())
    check_state(ours, theirs, 0.0)


@pytest.mark.parametrize("layer", [partial(bnorm.BatchNorm1d, 5), partial(bnorm.LayerNorm, (C,))])
def test_a_state_of_another_layer_is_refused(layer):
    layer = layer()
    before = layer.state_dict()
    with pytest.raises(ValueError, match=f"^{type(layer).__name__}"):
        layer.load_state_dict(nn.BatchNorm1d(C).state_dict())
    for key, value in layer.state_dict().items():
        assert np.array_equal(value, before[key])


# PyTorch's ways of making a layer -------------------------------------------------------------------------------------

POSITIONAL = [
    # arguments as PyTorch takes them by position, the shape of x, and what else makes ours the exact twin
    ("BatchNorm1d", (C, 1e-3, 0.2), (5, C), {"ddof": 1}),
    ("BatchNorm2d", (C, 1e-3, 0.2), (5, C, 3, 2), {"ddof": 1}),
    ("BatchNorm2d", (C, 1e-3, 0.2, False, True), (5, C, 3, 2), {"ddof": 1}),
    ("BatchNorm3d", (C, 1e-3, 0.2, True, False), (5, C, 3, 2, 2), {"ddof": 1}),
    ("BatchNorm1d", (C, 1e-5, 0.0), (5, C), {"ddof": 1}),
    ("LayerNorm", (6, 1e-6), (5, 6), {}),
    ("LayerNorm", ((C, 6), 1e-6, True, False), (5, C, 6), {}),
    ("LayerNorm", (6, 1e-6, False), (5, 6), {}),
    ("RMSNorm", (6, None), (5, 6), {}),
    ("RMSNorm", ((C, 6), 1e-3, False), (5, C, 6), {}),
    ("GroupNorm", (2, C, 1e-6), (5, C, 3), {}),
    ("GroupNorm", (2, C, 1e-6, False), (5, C, 3), {}),
    ("InstanceNorm1d", (C, 1e-3, 0.2, True, True), (5, C, 7), {"ddof": 1}),
    ("InstanceNorm2d", (C, 1e-3, 0.2, False, True), (5, C, 3, 2), {"ddof": 1}),
    ("InstanceNorm3d", (C, 1e-3, 0.2, True), (5, C, 3, 2, 2), {"ddof": 1}),
]


@pytest.mark.parametrize("row", POSITIONAL, ids=lambda row: f"{row[0]}{row[1]}")
@pytest.mark.parametrize("dtype", list(UNIT))
def test_arguments_by_position(row, dtype):
    name, arguments, shape, options = row
    rng = np.random.default_rng(0)
    ours = getattr(bnorm, name)(*arguments, dtype=dtype, **options)
    theirs = getattr(nn, name)(*arguments, dtype=getattr(torch, dtype))
    for step in range(1, 6):
        x, dy = rng.standard_normal((2, *shape)).astype(dtype)
        check_step(ours, theirs, x, dy, UNIT[dtype] * step, row=row, dtype=dtype, step=step)
        check_counted(ours, theirs, UNIT[dtype] * step, row=row, step=step)
    ours.eval(), theirs.eval()
    x, dy = rng.standard_normal((2, *shape)).astype(dtype)
    check_step(ours, theirs, x, dy, UNIT[dtype] * 10, row=row, dtype=dtype, mode="eval")


def check_counted(ours, theirs, unit, **case):
    """As check_state; but PyTorch's instance norm does not count its batches, and this one does."""
    if isinstance(theirs, nn.modules.instancenorm._InstanceNorm) and theirs.track_running_stats:
        assert theirs.num_batches_tracked == 0
        theirs.num_batches_tracked += ours.num_batches_tracked
        check_state(ours, theirs, unit, **case)
        theirs.num_batches_tracked.zero_()
    else:
        check_state(ours, theirs, unit, **case)


KEYWORDS = [
    ("LayerNorm", (6,), {"elementwise_affine": False}, (5, 6)),
    ("LayerNorm", (6,), {"elementwise_affine": True, "bias": False}, (5, 6)),
    ("RMSNorm", (6,), {"elementwise_affine": False, "eps": None}, (5, 6)),
    ("BatchNorm1d", (C,), {"affine": True, "momentum": 0.0, "eps": 1e-3}, (5, C)),
    ("InstanceNorm1d", (C,), {"track_running_stats": True, "affine": True, "momentum": 0.3}, (5, C, 7)),
]


@pytest.mark.parametrize("row", KEYWORDS, ids=lambda row: f"{row[0]}{row[2]}")
def test_arguments_by_name(row):
    name, sizes, options, shape = row
    rng = np.random.default_rng(0)
    twin = {"ddof": 1} if name.endswith("d") else {}
    ours = getattr(bnorm, name)(*sizes, **options, **twin)
    theirs = getattr(nn, name)(*sizes, dtype=torch.float64, **options)
    for step in range(1, 4):
        x, dy = rng.standard_normal((2, *shape))
        check_step(ours, theirs, x, dy, UNIT["float64"] * step, row=row, step=step)
        check_counted(ours, theirs, UNIT["float64"] * step, row=row, step=step)


def test_batch_norm_without_bias():
    """PyTorch has it by name only, and not in every version."""
    ours = bnorm.BatchNorm2d(C, bias=False, ddof=1)
    try:
        theirs = nn.BatchNorm2d(C, bias=False, dtype=torch.float64)
    except TypeError:
        pytest.skip(f"PyTorch {torch.__version__} has no bias= in batch norm")
    x, dy = np.random.default_rng(0).standard_normal((2, 5, C, 3, 2))
    check_step(ours, theirs, x, dy, UNIT["float64"])
    check_state(ours, theirs, UNIT["float64"])
