"""Files of other programs, and hostile bytes in either format: a ValueError that names the file, soon."""

import io
import json
import pickle
import struct
import zipfile

import numpy as np
import pytest

import bnorm
from refusing import refused


def test_files_of_other_programs(tmp_path):
    """They are not called damaged."""
    np.savez(tmp_path / "a.npz", a=np.ones(3))
    refused(tmp_path / "a.npz", r"expected a state file of bnorm, got a file without an array 'bnorm': another program")
    header = json.dumps({"a": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    refused(tmp_path / "a.safetensors", r"expected a state file of bnorm, got a file without metadata under 'bnorm'")


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
    bnorm.BatchNorm1d(3).save(path)
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
