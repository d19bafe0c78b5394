"""Damaged files, those of other programs, hostile ones: a ValueError that names the file, soon, in little memory."""

import io
import json
import pickle
import random
import struct
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from bnorm import BatchNormTransformer
from bnorm.files import container
from mutator import variants

X = np.random.default_rng(0).normal(size=(50, 3))


def layer():
    made = bnorm.BatchNorm1d(3, momentum=None)
    made(X)
    return made


def transformer():
    return BatchNormTransformer(halflife=7.0, ddof=1).fit(X).partial_fit(X)


def refused(path, match="expected"):
    """It is refused at once, in memory of the size of the file, and says which file."""
    size = path.stat().st_size
    tracemalloc.start()
    start = time.process_time()  # not of the clock: another program may have the processor meanwhile
    with pytest.raises(ValueError, match=match) as caught:
        bnorm.load(path)
    seconds, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(caught.value).startswith(f"bnorm.load: {path}: expected ")
    assert seconds < 5
    assert peak < 20 * size + (4 << 20), peak


def test_files_of_other_programs(tmp_path):
    """They are not called damaged."""
    np.savez(tmp_path / "a.npz", a=np.ones(3))
    refused(tmp_path / "a.npz", r"expected a state file of bnorm, got a file without an array 'bnorm': another program")
    header = json.dumps({"a": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    refused(tmp_path / "a.safetensors", r"expected a state file of bnorm, got a file without metadata under 'bnorm'")


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


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        b"\xff" * 8,
        b"\xff" * 1000,
        safetensors({}, length=10**18),
        safetensors({}),
        safetensors([]),
        safetensors(b"\xff\xfe"),
        safetensors(b"[" * 100_000),
        safetensors({"__metadata__": "x"}),
        safetensors({"__metadata__": {"bnorm": 3}}),
        safetensors({"__metadata__": {"bnorm": "not JSON"}}),
        safetensors({"__metadata__": {"bnorm": "[" * 100_000}}),
        safetensors({"__metadata__": {"bnorm": '{"format":1' + "0" * 5000 + "}"}}),
        safetensors({"__metadata__": {"other": "{}"}}),
        safetensors(b'{"__metadata__":{"bnorm":"{}"},"__metadata__":{"bnorm":"{}"}}'),
    ],
    ids=lambda content: content[:40].hex(),
)
def test_safetensors(tmp_path, content):
    (tmp_path / "a.safetensors").write_bytes(content)
    refused(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("entry", "more", "match"),
    [
        ({}, b"more", "4 bytes too many"),
        ({}, None, "weight: shape"),
        ({"data_offsets": [0, 24]}, b"", "shape .3,. of float64 at bytes 0 to 24"),  # where another array is
        ({"data_offsets": [24, 0]}, b"", "shape .3,. of float64 at bytes 24 to 0"),
        ({"shape": [2**61], "data_offsets": [0, 2**64]}, b"", "shape"),
        ({"shape": [2**62, 2**62], "data_offsets": [0, 0]}, b"", "shape"),
        ({"shape": [-1, -3]}, b"", r"shape \[-1, -3\]"),
        ({"shape": "3"}, b"", "shape '3'"),
        ({"shape": [1] * 100}, b"", "shape"),
        ({"dtype": "object"}, b"", "type object"),
        ({"dtype": ["F64"]}, b"", "damaged"),
        (3, b"", "damaged"),
    ],
)
def test_arrays_of_safetensors(tmp_path, entry, more, match):
    """Every byte belongs to one array. entry: what is said of an array of a good file; more: behind its last byte."""
    path = tmp_path / "a.safetensors"
    layer().save(path)
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, data = json.loads(data[8 : 8 + length]), data[8 + length :]
    path.write_bytes(safetensors(header, data))
    bnorm.load(path)
    last = max(header.keys() - {"__metadata__"}, key=lambda name: header[name]["data_offsets"])
    assert last == "weight"
    header["weight"] = header["weight"] | entry if isinstance(entry, dict) else entry
    path.write_bytes(safetensors(header, data[:-1] if more is None else data + more))
    refused(path, match)


def npz(compression=zipfile.ZIP_STORED, **members):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_npy", ".npy"), content)
    return data.getvalue()


def npy(a, **header):
    data = io.BytesIO()
    np.lib.format.write_array(data, np.asarray(a), allow_pickle=True)
    found = data.getvalue()
    for old, new in header.items():
        found = found.replace(old.encode(), new.encode())
    return found


CONFIG = npy(json.dumps({"format": 1, "class": "BatchNorm1d"}).encode())
HUGE = npy(np.zeros(3)).replace(b"(3,), }" + b" " * 20, b"(300000000000000000,), }" + b" " * 3)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        npz(),
        npz(weight_npy=npy(np.zeros(3))),
        npz(bnorm_npy=b""),
        npz(bnorm_npy=b"\x93NUMPY\x01\x00\xff\xff"),
        npz(bnorm_npy=npy(np.array({"a": 1}, object))),
        npz(bnorm_npy=pickle.dumps(3)),
        npz(bnorm_npy=CONFIG, weight_npy=npy(np.array([1, "x"], object))),
        npz(bnorm_npy=CONFIG, weight_npy=HUGE),
        npz(bnorm_npy=CONFIG, weight_npy=npy(np.zeros(3))[:-8]),
        npz(bnorm_npy=CONFIG, weight_npy=npy(np.zeros(3, "c16"))),
        npz(bnorm_npy=CONFIG, weight=b"text"),
        npz(zipfile.ZIP_DEFLATED, bnorm_npy=CONFIG, weight_npy=npy(np.zeros(10_000_000))),  # a bomb
        npz(bnorm_npy=npy(b"[" * 100_000)),
        npz(bnorm_npy=npy(b"\xff\xfe")),
        npz(bnorm_npy=npy(np.zeros(3))),
    ],
    ids=len,
)
def test_npz(tmp_path, content):
    assert b"300000000000000000" in HUGE
    (tmp_path / "a.npz").write_bytes(content)
    refused(tmp_path / "a.npz")


class Touch:
    """What makes an empty file when its pickle is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_no_code_in_a_file_is_run(tmp_path):
    """A pickle in the place of a file, of the configuration, or of an array."""
    ran = tmp_path / "ran"
    pickled, objects = pickle.dumps(Touch(ran)), npy(np.array([Touch(ran)], object))
    pickle.loads(pickled).close()
    assert ran.exists()  # it would be
    ran.unlink()
    contents = [
        pickled,
        npz(bnorm_npy=pickled),
        npz(bnorm_npy=objects, weight_npy=npy(np.zeros(3))),
        *(npz(bnorm_npy=CONFIG, **{f"{name}_npy": objects}) for name in ("weight", "running_mean", "seen")),
        npz(bnorm_npy=CONFIG, weight=pickled),
    ]
    for suffix in (".npz", ".safetensors"):
        for content in contents:
            (tmp_path / f"a{suffix}").write_bytes(content)
            refused(tmp_path / f"a{suffix}")
    assert not ran.exists()


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
