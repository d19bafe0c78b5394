"""The state of a whole net: one dictionary, all of it or nothing; and of counts that get lost or do not fit."""

import copy
import io
import pickle
import warnings

import numpy as np
import pytest

import bnorm
from compare import assert_close, assert_same
from layer_oracle import held

C = 4
rng = np.random.default_rng(0)


def net(seed=None):
    """Layers and a parameter, as a person names them; trained a little if there is a seed."""
    layers = {
        "bn1": bnorm.BatchNorm1d(C),
        "block.bn2": bnorm.BatchNorm1d(C, momentum=None),
        "ln": bnorm.LayerNorm((2, 2)),
        "plain": bnorm.InstanceNorm1d(C),
        "out.weight": bnorm.Parameter(np.zeros((2, 3))),
    }
    if seed is not None:
        values = np.random.default_rng(seed)
        for name in ("bn1", "block.bn2"):
            layers[name](values.standard_normal((5, C)))
        for layer in layers.values():
            for p in [layer] if isinstance(layer, bnorm.Parameter) else layer.parameters():
                p.data = values.standard_normal(p.shape)
    return layers


def bits(layers):
    return {
        name: layer.data.tobytes() if isinstance(layer, bnorm.Parameter) else held(layer)
        for name, layer in layers.items()
    }


KEYS = [
    *(f"bn1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    *(f"block.bn2.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    *("ln.weight", "ln.bias", "out.weight"),
]


def test_names_with_dots():
    layers = net(0)
    state = bnorm.state_dict(layers)
    assert isinstance(state, dict) and list(state) == KEYS
    assert_same(state["block.bn2.running_mean"], layers["block.bn2"].running_mean)
    for a in state.values():
        a[...] = 7  # a copy
    assert bits(layers) == bits(net(0))


def test_a_net_comes_back():
    old, new = net(0), net()
    assert bnorm.load_state_dict(layers=new, state=bnorm.state_dict(old), strict=True) == ([], [])
    assert bits(new) == bits(old)
    x = rng.standard_normal((3, C))
    for name in ("bn1", "block.bn2"):
        old[name](x)
        new[name](x)
    assert bits(new) == bits(old)


COPIES = {
    "copy": lambda state: state.copy(),
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
    "merged": lambda state: state | {},
    "merged into a dict": lambda state: {} | state,
}


@pytest.mark.parametrize("again", COPIES)
def test_counts_travel_with_copies(again):
    old, new, bn = net(0), net(), bnorm.BatchNorm1d(C, momentum=None)
    bnorm.load_state_dict(new, COPIES[again](bnorm.state_dict(old)))
    bn.load_state_dict(COPIES[again](old["block.bn2"].state_dict()))
    x = rng.standard_normal((3, C))
    for layer in (old["block.bn2"], new["block.bn2"], bn):
        layer(x)
        assert_same(layer.running_var, old["block.bn2"].running_var)


def added(a, b):
    a |= b
    return a


@pytest.mark.parametrize("merged", [lambda a, b: a | b, added], ids=["|", "|="])
def test_counts_of_two_nets_merge_with_them(merged):
    old, new = net(0), net()
    first, second = ({name: old[name] for name in names} for names in (["block.bn2"], set(old) - {"block.bn2"}))
    second["bn3"], new["bn3"] = (bnorm.BatchNorm1d(C, momentum=None) for _ in range(2))
    second["bn3"](rng.standard_normal((5, C)))
    bnorm.load_state_dict(new, merged(bnorm.state_dict(first), bnorm.state_dict(second)))
    for name in ("block.bn2", "bn3"):
        assert_same(new[name]._counts, (first | second)[name]._counts)


def through_savez(state):
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    return dict(np.load(file))


@pytest.mark.parametrize("lose", [dict, dict.copy, through_savez], ids=["dict", "dict.copy", "savez"])
def test_lost_counts_are_told_once(lose):
    old = bnorm.BatchNorm1d(C, momentum=None)
    old(rng.standard_normal((5, C)))
    state = lose(dict(old.state_dict()))
    new = bnorm.BatchNorm1d(C, momentum=None)
    with pytest.warns(UserWarning, match=r"no counts of values, .*state_dict\(\).* keep") as told:
        new.load_state_dict(state)
    assert len(told) == 1 and told[0].filename == __file__
    new(rng.standard_normal((3, C)))  # warnings are errors here
    new(rng.standard_normal((3, C)))
    with pytest.warns(UserWarning, match="no counts of values for block.bn2,") as told:
        bnorm.load_state_dict(net(), dict(bnorm.state_dict(net(0))))
    assert len(told) == 1 and told[0].filename == __file__


def test_nothing_is_lost_where_there_are_no_counts():
    """An average needs none, nor does a layer that has seen nothing."""
    average = bnorm.BatchNorm1d(C)
    average(rng.standard_normal((5, C)))
    bnorm.BatchNorm1d(C).load_state_dict(dict(average.state_dict()))
    bnorm.BatchNorm1d(C, momentum=None).load_state_dict(dict(bnorm.BatchNorm1d(C).state_dict()))
    assert average.num_batches_tracked == 1


def test_a_warning_that_is_an_error_loads_nothing():
    state, new = dict(bnorm.state_dict(net(0))), net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="no counts"):
            bnorm.load_state_dict(new, state)
    assert bits(new) == bits(net())


# All or nothing ------------------------------------------------------------------------------------------------------

MISFITS = [
    ({"ln.weight": np.ones(5)}, ["ln.weight: shape (5,) instead of (2, 2)"], (True, False)),
    ({"out.weight": np.ones(5)}, ["out.weight: shape (5,) instead of (2, 3)"], (True, False)),
    ({"bn1.running_var": -np.ones(C)}, ["bn1.running_var: negative"], (True, False)),
    ({"bn1.gamma": np.ones(C)}, ["bn1.weight: given twice, also as bn1.gamma"], (True, False)),
    ({"block.bn2.num_batches_tracked": 1.5}, ["block.bn2.num_batches_tracked"], (True, False)),
    ({"out.weight": None}, ["missing: out.weight"], (True,)),
    ({"bn3.weight": np.ones(C)}, ["unexpected: bn3.weight"], (True,)),
    ({"weight": np.ones(C), 7: np.ones(C)}, ["unexpected: weight, 7"], (True,)),
    ({"ln.bias": "a", "bn1.bias": None, "x": 1}, ["ln.bias", "missing: bn1.bias", "unexpected: x"], (True,)),
]


@pytest.mark.parametrize(
    ("change", "said", "strict"), [(change, said, strict) for change, said, when in MISFITS for strict in when]
)
def test_a_net_that_does_not_fit_is_left_alone(change, said, strict):
    state = bnorm.state_dict(net(0)) | {key: value for key, value in change.items() if value is not None}
    for key, value in change.items():
        if value is None:
            del state[key]
    layers = net(1)
    with pytest.raises(ValueError, match=r"^load_state_dict: state: expected .*; got ") as caught:
        bnorm.load_state_dict(layers, state, strict=strict)
    for part in said:
        assert part in str(caught.value)
    assert bits(layers) == bits(net(1))


def test_what_fits_is_loaded_if_asked():
    state = bnorm.state_dict(net(0))
    del state["bn1.bias"]
    state["bn3.weight"] = np.ones(C)
    layers = net(1)
    result = bnorm.load_state_dict(layers, state, strict=False)
    assert result == (["bn1.bias"], ["bn3.weight"])
    assert_same(layers["bn1"].beta, net(1)["bn1"].beta)
    assert_same(layers["out.weight"], net(0)["out.weight"])


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (bnorm.BatchNorm1d(C), "layers: expected a mapping of names to layers, got BatchNorm1d"),
        ([("bn", bnorm.BatchNorm1d(C))], "layers: expected a mapping of names to layers, got list"),
        ({"bn": np.ones(C)}, "layers: expected a layer or a parameter as 'bn', got ndarray"),
        ({1: bnorm.BatchNorm1d(C)}, "layers: expected names that are strings, got 1"),
    ],
)
def test_layers_that_are_none(layers, message):
    with pytest.raises(TypeError, match=f"^state_dict: {message}"):
        bnorm.state_dict(layers)
    with pytest.raises(TypeError, match=f"^load_state_dict: {message}"):
        bnorm.load_state_dict(layers, {})
    with pytest.raises(TypeError, match=r"^load_state_dict: state: expected a mapping"):
        bnorm.load_state_dict({}, 3)


def test_parameters_that_are_called_gamma():
    """By themselves they keep their name; only a layer's is PyTorch's."""
    old, new = (
        {name: bnorm.Parameter(np.full(2, value + i)) for i, name in enumerate(("film.gamma", "film.weight", "beta"))}
        for value in (1.0, 5.0)
    )
    assert bnorm.load_state_dict(new, bnorm.state_dict(old)) == ([], [])
    assert bits(new) == bits(old)


def test_two_arrays_of_one_name():
    bn = bnorm.BatchNorm1d(C)
    assert len(bnorm.state_dict({"bn": bn, "bn.weight": bn.gamma})) == 5  # the same array
    layers = {"bn": bn, "bn.weight": bnorm.Parameter(np.zeros(C))}
    for call in (bnorm.state_dict, lambda layers: bnorm.load_state_dict(layers, bn.state_dict())):
        with pytest.raises(ValueError, match=r"layers: expected a name for each array, got 'bn\.weight' for two"):
            call(layers)


def test_into_pytorch_and_back():
    torch = pytest.importorskip("torch", reason="the other side of the exchange")
    theirs = torch.nn.Sequential(torch.nn.BatchNorm1d(C), torch.nn.LayerNorm(C))
    theirs(torch.randn(5, C))
    ours = {"0": bnorm.BatchNorm1d(C, ddof=1, dtype="float32"), "1": bnorm.LayerNorm(C, dtype="float32")}
    assert bnorm.load_state_dict(ours, theirs.state_dict()) == ([], [])
    x = torch.randn(5, C)
    want = theirs.eval()(x).detach().numpy()
    assert_close(ours["1"](ours["0"].eval()(x.numpy())), want, 1e-5)
    state = {name: torch.from_numpy(np.array(a)) for name, a in bnorm.state_dict(ours).items()}
    theirs.load_state_dict(state, strict=True)
    bnorm.load_state_dict(ours, theirs.bfloat16().state_dict())
    assert_same(ours["0"].running_var, theirs[0].running_var.float().numpy())


# Counts that do not fit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seen",
    [np.ones(C + 1), np.ones((2, 2)), "many", 3, [1.0, "a", 2.0, 3.0], np.full(C, np.nan), -np.ones(C), {}.keys()],
    ids=str,
)
@pytest.mark.parametrize("momentum", [None, 0.1])
@pytest.mark.parametrize("strict", [True, False])
def test_counts_that_do_not_fit_load_nothing(seen, momentum, strict):
    old, bn = bnorm.BatchNorm1d(C, momentum=None), bnorm.BatchNorm1d(C, momentum=momentum)
    for layer, n in ((old, 5), (bn, 3)):
        layer(np.random.default_rng(n).standard_normal((n, C)))
    state, before = old.state_dict(), held(bn)
    state.seen = seen
    with pytest.raises(ValueError, match=r"^BatchNorm1d\(4\): state_dict: expected .*; got seen: "):
        bn.load_state_dict(state, strict=strict)
    assert held(bn) == before


def test_counts_of_pruned_channels():
    old, bn = bnorm.BatchNorm1d(8, momentum=None), bnorm.BatchNorm1d(C, momentum=None)
    old(rng.standard_normal((5, 8)))
    state = old.state_dict()
    for key in state:
        state[key] = state[key][:C] if state[key].ndim else state[key]
    before = held(bn)
    with pytest.raises(ValueError, match=r"seen: shape \(8,\) instead of \(4,\)"):
        bn.load_state_dict(state)
    assert held(bn) == before
    state.seen = state.seen[:C]
    bn.load_state_dict(state)
    x = rng.standard_normal((3, C))
    bn(x)
    assert_close(bn.running_mean, (5 * state["running_mean"] + 3 * x.mean(0)) / 8, 1e-14)
