"""State files whose configuration or arrays are wrong, and files that are damaged: a ValueError that names the file."""

import random

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from bnorm import BatchNormTransformer
from bnorm.files import container
from mutator import variants
from refusing import refused

X = np.random.default_rng(0).normal(size=(50, 3))


def layer():
    made = bnorm.BatchNorm1d(3, momentum=None)
    made(X)
    return made


def transformer():
    return BatchNormTransformer(halflife=7.0, ddof=1).fit(X).partial_fit(X)


def test_a_folder_that_is_missing_is_named(tmp_path):
    """Not the temporary file that would be written there."""
    path = tmp_path / "no" / "layer.npz"
    with pytest.raises(FileNotFoundError) as caught:
        layer().save(path)
    assert caught.value.filename == str(path)


def changed(made, path, config=None, arrays=None, drop=()):
    """A file of it with another configuration or other arrays, sound in all else."""
    made.save(path)
    old, entries = container.read("", path)
    found = {name: entry.array() for name, entry in entries.items()} | (arrays or {})
    for name in drop:
        old.pop(name, None)
        found.pop(name, None)
    container.write("", path, old | (config or {}), found)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize(
    ("config", "arrays", "drop", "match"),
    [
        ({"format": container.VERSION + 1}, {}, (), "format 1 or older, got 2: a newer bnorm wrote it"),
        ({"format": 0}, {}, (), "a configuration with a format number"),
        ({"format": True}, {}, (), "a configuration with a format number"),
        ({"format": "1"}, {}, (), "a configuration with a format number"),
        ({"class": "os.system"}, {}, (), "expected one of BatchNorm1d, .* got 'os.system'"),
        ({"class": None}, {}, (), "got None"),
        ({"class": ["BatchNorm1d"]}, {}, (), "got"),
        ({"class": "LayerNorm"}, {}, (), "damaged"),
        ({"arguments": {}}, {}, (), "damaged"),
        ({"arguments": None}, {}, (), "damaged"),
        ({"training": 1}, {}, (), "damaged"),
        ({"requires_grad": {"gamma": True}}, {}, (), "damaged"),
        ({"counters": {}}, {}, (), "damaged"),
        ({"more": 1}, {}, (), "unknown entries .'more'."),
        ({}, {"running_var": np.array([1.0, -1.0, 1.0])}, (), "negative"),
        ({}, {"running_mean": np.zeros(4)}, (), "running_mean: float64 .4,. instead of float64 .3,."),
        ({}, {"running_mean": np.zeros(3, np.float32)}, (), "running_mean: float32"),
        ({}, {"more": np.zeros(3)}, (), "arrays .*'more'"),
        ({}, {}, ("weight",), "arrays"),
        ({}, {}, ("class",), "got None"),
        ({}, {}, ("arguments",), "damaged"),
    ],
)
def test_layers(tmp_path, suffix, config, arrays, drop, match):
    refused(changed(layer(), tmp_path / f"a{suffix}", config, arrays, drop), match)


def arguments(**given):
    """Those of a layer, with changes."""
    from bnorm.layers import saving

    return {"arguments": saving.arguments(layer()) | given}


@pytest.mark.parametrize(
    "config",
    [
        arguments(num_features=2**40),
        arguments(num_features=-3),
        arguments(num_features=3.0),
        arguments(num_features=None),
        arguments(num_features=[3]),
        arguments(num_features="3"),
        arguments(momentum="0.1"),
        arguments(momentum=5),
        arguments(eps=-1),
        arguments(eps=float("nan")),
        arguments(dtype="object"),
        arguments(dtype={}),
        arguments(unknown=1),
        arguments(activation=["relu"]),
        arguments(ddof=7),
        arguments(device="cuda"),
    ],
)
def test_arguments_of_layers(tmp_path, config):
    refused(changed(layer(), tmp_path / "a.npz", config))


def counters(**given):
    """What a layer has counted, with changes."""
    from bnorm.layers import saving

    return {"counters": saving.counters(layer()._running) | given}


@pytest.mark.parametrize("counted", [None, [1], [1, 2, 3, -1], [1, 2, 3, 0.5], [1, 2, 3, 2**70], [True, 0, 0, 0]])
def test_counters(tmp_path, counted):
    refused(changed(layer(), tmp_path / "a.npz", counters(counted=counted)), "damaged")
    refused(changed(transformer(), tmp_path / "b.npz", {"counted": counted}), "damaged")


@pytest.mark.parametrize("seen", [None, "x", [1, 2], [1, 2, -3], [1, 2, float("nan")], [[1, 2, 3]], {}])
def test_counts_of_layers(tmp_path, seen):
    refused(changed(layer(), tmp_path / "a.npz", counters(seen=seen)), "damaged")


def test_sizes_that_only_a_number_claims(tmp_path):
    """No array stands behind them, as the layer has none: a number alone must not fill the memory."""
    bare = bnorm.BatchNorm1d(3, affine=False, track_running_stats=False)
    from bnorm.layers import saving

    for n in (2**30, 2**62, 10**30):
        config = {"arguments": saving.arguments(bare) | {"num_features": n}}
        refused(changed(bare, tmp_path / "a.npz", config), "damaged")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize(
    ("config", "arrays", "drop"),
    [
        ({"parameters": {"momentum": None}}, {}, ()),
        ({"parameters": {"more": 1}}, {}, ()),
        ({"parameters": None}, {}, ()),
        ({"features": 4}, {}, ()),
        ({"names": ["a", "b"]}, {}, ()),
        ({"names": ["a", "b", 3]}, {}, ()),
        ({"names": "abc"}, {}, ()),
        ({"weighted": 1}, {}, ()),
        ({"told": None}, {}, ()),
        ({"more": 1}, {}, ()),
        ({}, {"running_var": np.array([1.0, -1.0, 1.0])}, ()),
        ({}, {"running_mean": np.array([1.0, np.nan, 1.0])}, ()),
        ({}, {"running_var": np.array([1.0, np.nan, 1.0])}, ()),
        ({}, {"seen": np.array([1.0, -1.0, 1.0])}, ()),
        ({}, {"seen": np.array([1.0, np.inf, 1.0])}, ()),
        ({}, {"low": np.array([0.0, np.nan, 0.0])}, ()),
        ({}, {"stream_weight": np.array([0.0, -1.0, 0.0])}, ()),
        ({}, {"running_mean": np.zeros((3, 1))}, ()),
        ({}, {"running_mean": np.zeros(2)}, ()),
        ({}, {"more": np.zeros(3)}, ()),
        ({}, {}, ("pairs",)),
        ({}, {}, ("names",)),
        ({}, {}, ("parameters",)),
    ],
)
def test_transformers(tmp_path, suffix, config, arrays, drop):
    refused(changed(transformer(), tmp_path / f"a{suffix}", config, arrays, drop), "damaged")


@pytest.mark.parametrize(
    "given",
    [{"momentum": 2.0}, {"momentum": "1"}, {"halflife": -1.0}, {"eps": -1.0}, {"ddof": 2},
     {"ddof": 1.0}, {"affine": 1}, {"copy": None}, {"eps": float("inf")}, {"more": 1}, {"momentum": True}],
)  # fmt: skip
def test_parameters_of_transformers(tmp_path, given):
    t = transformer()
    t.save(tmp_path / "a.npz")
    parameters = container.read("", tmp_path / "a.npz")[0]["parameters"]
    refused(changed(t, tmp_path / "a.npz", {"parameters": parameters | given}), "damaged")


@pytest.mark.parametrize(
    ("config", "arrays"),
    [
        ({"history": None}, {}),
        ({"history": {"every": 0, "batches": 2}}, {}),
        ({"history": {"every": 1, "batches": -1}}, {}),
        ({"history": {"every": "1", "batches": 2}}, {}),
        ({}, {"history_rows": np.zeros(9, np.int64)}),
        ({}, {"history_rows": np.zeros(2)}),
        ({}, {"history_mean": np.zeros((2, 4))}),
        ({}, {"history_var": np.full((2, 3), -1.0)}),
    ],
)
def test_histories(tmp_path, config, arrays):
    t = BatchNormTransformer(momentum=None, history=4).partial_fit(X).partial_fit(X)
    refused(changed(t, tmp_path / "a.npz", config, arrays), "damaged")


def running_norm():
    made = bnorm.RunningNorm(3, halflife=7.0, clip=5.0)
    made(X)
    return made


MADE = {
    "layer": layer,
    "transformer": transformer,
    "window": lambda: BatchNormTransformer(window=20).partial_fit(X),
    "window of bools": lambda: BatchNormTransformer(window=20).partial_fit(X > 0),
    "exact transformer": lambda: BatchNormTransformer(momentum=None, exact=True, history=3).partial_fit(X),
    "groups": lambda: bnorm.GroupedTransformer(0).fit([[key, *row] for key, row in zip("abcab" * 10, X, strict=True)]),
    "RunningNorm": running_norm,
    "RunningNormTree": lambda: bnorm.RunningNorm.tree({"a": X[0], "b": (1.0, "text")}),
    "RevIN": lambda: bnorm.RevIN(3),
    "Moments": lambda: F.moments(X),
    "exact Moments": lambda: F.moments(X, exact=True),
}


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("name", MADE)
def test_damage_of_any_kind(tmp_path, name, suffix):
    """Cut off anywhere it is refused; with bytes changed it is refused or holds other numbers, and that is all."""
    path, made = tmp_path / f"a{suffix}", MADE[name]()
    made.save(path)
    whole = path.read_bytes()
    for size in sorted(random.Random(0).sample(range(len(whole)), 20)):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="expected"):
            bnorm.load(path)
    for content in variants(whole, 120):
        path.write_bytes(content)
        try:
            found = bnorm.load(path)
        except ValueError as error:
            assert str(path) in str(error)
        else:
            assert type(found) is type(made)
