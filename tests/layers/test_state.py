"""State of layers: dictionaries under PyTorch's names, pickles and copies, and going on from them."""

import copy
import pickle

import numpy as np
import pytest

import bnorm
from compare import assert_close, assert_same
from layer_oracle import held

C = 4
rng = np.random.default_rng(0)
PARAMETERS = ["weight", "bias"]
STATISTICS = ["running_mean", "running_var", "num_batches_tracked"]
KEYS = [
    (lambda: bnorm.BatchNorm1d(C), PARAMETERS + STATISTICS),
    (lambda: bnorm.BatchNorm2d(C, affine=False), STATISTICS),
    (lambda: bnorm.BatchNorm3d(C, track_running_stats=False), PARAMETERS),
    (lambda: bnorm.BatchNorm1d(C, affine=False, track_running_stats=False), []),
    (lambda: bnorm.LayerNorm((2, 3)), PARAMETERS),
    (lambda: bnorm.RMSNorm((2, 3)), ["weight"]),
    (lambda: bnorm.GroupNorm(2, C), PARAMETERS),
    (lambda: bnorm.InstanceNorm2d(C), []),
    (lambda: bnorm.InstanceNorm2d(C, affine=True), PARAMETERS),
]
every_layer = pytest.mark.parametrize(("make", "keys"), KEYS)


def trained(**options):
    """A layer that has seen two batches and been moved by an optimizer."""
    values = np.random.default_rng(1)
    bn = bnorm.BatchNorm1d(C, **options)
    for n in (5, 8):
        bn(values.standard_normal((n, C)) + n)
        bn.backward(values.standard_normal((n, C)))
        for p in bn.parameters():
            p.data -= 0.1 * p.grad
    return bn


def fill(layer):
    for p in layer.parameters():
        p.data[...] = rng.uniform(1, 2, p.shape)
    return layer


# Dictionaries --------------------------------------------------------------------------------------------------------


@every_layer
def test_the_keys_are_those_of_pytorch(make, keys):
    assert list(make().state_dict()) == keys


def test_what_is_under_the_keys():
    bn = trained(dtype="float32")
    state = bn.state_dict()
    assert isinstance(state, dict)
    for key, value in zip(state, (bn.gamma, bn.beta, bn.running_mean, bn.running_var), strict=False):
        assert type(state[key]) is np.ndarray and state[key].dtype == np.float32
        assert_same(state[key], value, key=key)
    batches = state["num_batches_tracked"]
    assert type(batches) is np.ndarray and batches.shape == () and batches.dtype == np.int64 and batches == 2


def test_a_state_is_a_copy():
    bn = trained()
    before, state = held(bn), bn.state_dict()
    for value in state.values():
        value[...] = 77
    assert held(bn) == before
    state = bn.state_dict()
    kept = {key: value.copy() for key, value in state.items()}
    bn(np.ones((3, C)))
    bn.gamma.data += 1
    for key, value in state.items():
        assert_same(value, kept[key], key=key)


@every_layer
def test_a_state_comes_back(make, keys):
    layer, new = fill(make()), make()
    before = [p.data for p in new.parameters()]
    result = new.load_state_dict(layer.state_dict())
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert tuple(result) == ([], [])
    assert held(new)["state"] == held(layer)["state"]
    for p, q, data in zip(new.parameters(), layer.parameters(), before, strict=True):
        assert p.data is data and not np.shares_memory(data, q.data)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_training_goes_on_where_it_was(momentum):
    bn, new = trained(momentum=momentum, ddof=1), bnorm.BatchNorm1d(C, momentum=momentum, ddof=1)
    new.load_state_dict(bn.state_dict())
    for n in (3, 9):
        x, dy = rng.standard_normal((2, n, C))
        for each in (bn, new):
            each.zero_grad()
        assert_same(new(x), bn(x))
        assert_same(new.backward(dy), bn.backward(dy))
    assert held(new) == held(bn)


def test_a_state_keeps_the_types_of_the_layer():
    bn = bnorm.BatchNorm1d(C, dtype="float32")
    bn.load_state_dict(trained().state_dict())
    assert {bn.gamma.dtype, bn.beta.dtype, bn.running_mean.dtype, bn.running_var.dtype} == {np.dtype("float32")}
    assert_same(bn.running_mean, trained().running_mean.astype("f4"))
    assert type(bn.num_batches_tracked) is int and bn.num_batches_tracked == 2


def test_other_names_and_sequences():
    want = trained()
    state = want.state_dict()
    renamed = {{"weight": "gamma", "bias": "beta"}.get(key, key): value for key, value in state.items()}
    lists = {key: value.tolist() for key, value in state.items()}
    single = {key: value.astype("f4") if value.ndim else value.reshape(1) for key, value in state.items()}
    for other in (renamed, lists, dict(reversed(state.items())), single):
        bn = bnorm.BatchNorm1d(C)
        result = bn.load_state_dict(other)
        assert tuple(result) == ([], [])
        for key, value in bn.state_dict().items():
            assert_close(value, state[key], 1e-7 * np.abs(state[key]) if other is single else 0, key=key)
    norm, group = bnorm.LayerNorm((2, 3)), bnorm.GroupNorm(2, C)
    norm.load_state_dict({"gamma": np.full((2, 3), 2.0), "beta": np.full((2, 3), 3.0)})
    group.load_state_dict({"weight": np.full(C, 2.0), "bias": np.full(C, 3.0)})
    for layer in (norm, group):
        assert (np.asarray(layer.gamma) == 2).all() and (np.asarray(layer.beta) == 3).all()


MISFITS = [
    # what is changed in the state of a layer of 4 channels, and the names that the error lists
    ({"weight": None}, ["weight"]),
    ({"weight": None, "running_var": None}, ["weight", "running_var"]),
    ({"scale": np.ones(C)}, ["scale"]),
    ({"bias": np.ones(5)}, ["bias", "(5,)", "(4,)"]),
    ({"bias": np.ones((2, 2))}, ["bias", "(2, 2)"]),
    ({"weight": np.ones((1, C)), "bias": np.ones((C, 1))}, ["weight: shape (1, 4) instead of (4,)", "bias: shape (4,"]),
    ({"num_batches_tracked": np.ones((1, 1), int)}, ["num_batches_tracked: shape (1, 1) instead of ()"]),
    ({"running_mean": 0.0}, ["running_mean", "()"]),
    ({"num_batches_tracked": np.ones(2, int)}, ["num_batches_tracked", "(2,)"]),
    (
        {"weight": None, "bias": np.ones(5), "running_mean": None, "running_var": np.ones((2, 4)), "x": 1, "y": 2},
        ["weight", "bias", "(5,)", "running_mean", "running_var", "(2, 4)", "x", "y"],
    ),
]


def changed(change):
    state = {key: np.asarray(value) + 1 for key, value in trained().state_dict().items()} | change
    return {key: value for key, value in state.items() if value is not None}


@pytest.mark.parametrize(("change", "names"), MISFITS)
def test_a_state_that_does_not_fit_is_refused_whole(change, names):
    bn, other = trained(), trained()
    x, dy = rng.standard_normal((2, 6, C))
    bn(x), other(x)
    before = held(bn)
    with pytest.raises(ValueError, match=r"^BatchNorm1d\(4\): load_state_dict|^BatchNorm1d\(4\): ") as caught:
        bn.load_state_dict(changed(change))
    for name in names:
        assert name in str(caught.value)
    assert held(bn) == before
    assert_same(bn.backward(dy), other.backward(dy))


def test_what_fits_is_loaded_if_asked():
    bn, state = trained(), changed({"weight": None, "running_var": None, "scale": 1.0})
    before = bn.state_dict()
    result = bn.load_state_dict(state, strict=False)
    assert sorted(result.missing_keys) == ["running_var", "weight"]
    assert list(result.unexpected_keys) == ["scale"]
    after = bn.state_dict()
    for key in before:
        assert_same(after[key], state.get(key, before[key]), key=key)
    assert tuple(bn.load_state_dict({}, strict=False)) == (PARAMETERS + STATISTICS[:2], [])
    assert_same(bn.gamma, before["weight"])


@pytest.mark.parametrize("strict", [True, False])
def test_a_state_from_before_pytorch_counted_batches(strict):
    """PyTorch reads it too: such are the files of its first pretrained networks."""
    bn, old = trained(), fill(bnorm.BatchNorm1d(C)).state_dict()
    del old["num_batches_tracked"]
    assert tuple(bn.load_state_dict(old, strict)) == ([], [])
    after = bn.state_dict()
    assert after.pop("num_batches_tracked") == 2  # as it was
    for key in old:
        assert_same(after[key], old[key], key=key)
    net = {"bn": bnorm.BatchNorm1d(C)}
    assert tuple(bnorm.load_state_dict(net, {f"bn.{key}": value for key, value in old.items()}, strict)) == ([], [])


def test_a_wrong_shape_never_fits():
    bn = trained()
    before = held(bn)
    for change, _ in MISFITS[3:9]:
        with pytest.raises(ValueError, match=r"^BatchNorm1d\(4\): "):
            bn.load_state_dict(changed(change), strict=False)
        assert held(bn) == before


@pytest.mark.parametrize(
    "change",
    [{"weight": np.ones(C) * 1j}, {"bias": ["a"] * C}, {"running_mean": [None] * C}, {"running_var": np.array("a")}],
    ids=str,
)
@pytest.mark.parametrize("strict", [True, False])
def test_values_that_are_no_numbers(change, strict):
    bn = trained()
    before = held(bn)
    with pytest.raises((TypeError, ValueError), match=rf"^BatchNorm1d\(4\): .*{next(iter(change))}"):
        bn.load_state_dict(changed(change), strict=strict)
    assert held(bn) == before


@pytest.mark.parametrize("batches", [2.5, -1, np.nan, np.inf, 1e300], ids=str)
def test_a_count_that_is_none(batches):
    bn = trained()
    before = held(bn)
    with pytest.raises(ValueError, match=r"^BatchNorm1d\(4\): .*num_batches_tracked"):
        bn.load_state_dict(changed({"num_batches_tracked": batches}))
    assert held(bn) == before


@pytest.mark.parametrize("state", [None, 3, "weight", [1, 2], np.ones(C)], ids=str)
def test_a_state_is_a_mapping(state):
    bn = trained()
    before = held(bn)
    with pytest.raises((TypeError, ValueError), match=r"^BatchNorm1d\(4\): "):
        bn.load_state_dict(state)
    assert held(bn) == before


# Going on without momentum -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.* has no counts")
def test_a_plain_dictionary_has_lost_the_counts():
    """The batches so far are then taken to have been as large as the next one."""
    bn = bnorm.BatchNorm1d(C, momentum=None)
    bn.load_state_dict(dict(trained(momentum=None).state_dict()))
    mean, var = bn.running_mean.copy(), bn.running_var.copy()
    x = rng.standard_normal((6, C))
    bn(x)
    n, m = 2 * 6, 6
    delta = x.mean(0) - mean
    assert_close(bn.running_mean, mean + delta * m / (n + m), 1e-13)
    assert_close(bn.running_var, (n * var + m * x.var(0) + delta**2 * n * m / (n + m)) / (n + m), 1e-12)
    after = bn.running_mean.copy()
    y = rng.standard_normal((4, C))
    bn(y)  # and it counts on from there
    assert_close(bn.running_mean, (18 * after + 4 * y.mean(0)) / 22, 1e-13)


@pytest.mark.filterwarnings("ignore:.* has no counts")
def test_an_average_has_no_counts_either():
    """Nor has the state of a layer that averages, whichever kind of dictionary it is; nor that layer itself."""
    state, x = trained().state_dict(), rng.standard_normal((6, C))
    layers = [trained(), bnorm.BatchNorm1d(C), bnorm.BatchNorm1d(C)]
    for bn, given in zip(layers[1:], (state, dict(state)), strict=True):
        bn.load_state_dict(given)
    for bn in layers:
        bn.momentum = None
        bn(x)
        assert_close(bn.running_mean, (2 * state["running_mean"] + x.mean(0)) / 3, 1e-13)
        assert_same(bn.running_var, layers[0].running_var)
    for given in (state, dict(state)):
        bn = bnorm.BatchNorm1d(C, momentum=None)
        bn.load_state_dict(given)
        bn(x)
        assert_same(bn.running_mean, layers[0].running_mean)
        assert_same(bn.running_var, layers[0].running_var)


@pytest.mark.filterwarnings("ignore:.* has no counts")
def test_the_size_of_a_weighted_batch_is_the_sum_of_its_weights():
    x, weight = rng.standard_normal((6, C, 2)), rng.uniform(0, 2, (6, 2))
    for w in (weight, weight[:, 0], weight > 0.5):
        bn = bnorm.BatchNorm1d(C, momentum=None)
        bn.load_state_dict(dict(trained().state_dict()))
        mean = bn.running_mean.copy()
        bn(x, w)
        of_all = np.broadcast_to(w.reshape(6, -1), (6, 2))[:, None]
        of_batch = (of_all * x).sum((0, 2)) / of_all.sum()
        assert_close(bn.running_mean, (2 * mean + of_batch) / 3, 1e-13)
        bn(x)  # 12 values more
        total = 3 * of_all.sum()
        assert_close(bn.running_mean, (total * (2 * mean + of_batch) / 3 + x.sum((0, 2))) / (total + 12), 1e-13)


def test_statistics_without_a_number_of_batches():
    """They are those of one batch at least, or of the values that are counted beside the arrays."""
    old, x = trained(momentum=None), rng.standard_normal((6, C))
    state = old.state_dict()
    del state["num_batches_tracked"]
    new, plain = bnorm.BatchNorm1d(C, momentum=None), bnorm.BatchNorm1d(C, momentum=None)
    new.load_state_dict(state)
    with pytest.warns(UserWarning, match="has no counts of values, which momentum=None needs"):
        plain.load_state_dict(dict(state))
    assert new.num_batches_tracked == plain.num_batches_tracked == 1
    for layer in (old, new, plain):
        layer(x)
    assert_same(new.running_mean, old.running_mean)
    assert_same(new.running_var, old.running_var)
    assert_close(plain.running_mean, (state["running_mean"] + x.mean(0)) / 2, 1e-13)
    plain.load_state_dict({key: state[key] for key in PARAMETERS}, strict=False)  # has no statistics, and no warning


def test_a_plain_dictionary_of_no_batches_is_a_beginning():
    bn = bnorm.BatchNorm1d(C, momentum=None)
    bn(rng.standard_normal((5, C)))
    bn.load_state_dict(dict(bnorm.BatchNorm1d(C).state_dict()))
    x = rng.standard_normal((6, C))
    bn(x)
    assert_close(bn.running_mean, x.mean(0), 1e-14)
    assert_close(bn.running_var, x.var(0), 1e-14)


def test_counts_travel_with_a_state_but_not_under_a_key():
    bn = trained(momentum=None)
    state, then = bn.state_dict(), copy.deepcopy(bn)
    bn(rng.standard_normal((9, C)))  # the state is that of before
    assert list(state) == PARAMETERS + STATISTICS
    for travelled in (state, pickle.loads(pickle.dumps(state)), copy.deepcopy(state)):
        new = bnorm.BatchNorm1d(C, momentum=None)
        new.load_state_dict(travelled)
        twin, x = copy.deepcopy(then), rng.standard_normal((3, C))
        new(x), twin(x)
        assert_same(new.running_mean, twin.running_mean)
        assert_same(new.running_var, twin.running_var)


# Copies and pickles --------------------------------------------------------------------------------------------------

COPIES = {
    "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
    "the oldest pickle": lambda layer: pickle.loads(pickle.dumps(layer, protocol=2)),
    "deepcopy": copy.deepcopy,
}
OPTIONS = [
    {},
    {"momentum": None, "ddof": 1},
    {"affine": False},
    {"track_running_stats": False},
    {"dtype": "float32", "eps": 1e-3, "activation": "relu", "nonfinite": "raise", "on_single": "running"},
]


@pytest.mark.parametrize("again", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_a_copy_is_the_same_and_its_own(again, options, training):
    bn = trained(**options)
    bn.zero_grad()
    bn.training = training
    if bn.gamma is not None:
        bn.gamma.requires_grad = False
    other = again(bn)
    assert type(other) is type(bn) and held(other) == held(bn)
    if bn.gamma is not None:
        assert (other.gamma.requires_grad, other.beta.requires_grad) == (False, True)
    x, dy = rng.standard_normal((2, 7, C))
    before = held(other)
    y = bn(x)
    dx = bn.backward(dy)
    assert held(other) == before  # nothing is shared
    assert_same(other(x), y)
    assert_same(other.backward(dy), dx)
    bn(x[:3]), other(x[:3])
    assert held(other) == held(bn)


@every_layer
@pytest.mark.parametrize("again", COPIES.values(), ids=COPIES)
def test_copies_of_every_layer(make, keys, again):
    layer = fill(make())
    other = again(layer)
    assert type(other) is type(layer) and held(other) == held(layer) and repr(other) == repr(layer)
    with pytest.raises(RuntimeError, match="backward: expected a"):  # the forward is not copied
        other.backward(np.ones(3))
    for p, q in zip(other.parameters(), layer.parameters(), strict=True):
        assert not np.shares_memory(p.data, q.data)


def test_a_copy_inside_a_pool_is_a_layer_outside_of_it():
    bn = trained()
    with bn.pooled_stats():
        bn(rng.standard_normal((5, C)))
        for again in COPIES.values():
            other, plain = again(bn), trained()
            x = rng.standard_normal((6, C))
            other(x), plain(x)
            assert_same(other.running_mean, plain.running_mean)
            assert_same(other.running_var, plain.running_var)
