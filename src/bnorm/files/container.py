"""One state file: arrays by name, and a configuration, which is a JSON string with a version.

    .safetensors   the configuration is in the metadata, under "bnorm"
    .npz           the configuration is an array of bytes of that name; no array is compressed

A file may be hostile. All sizes in it are compared with the size of the file before an array is made, so reading takes
no more memory than the file.
"""

import json
import os
import re
import struct
from collections.abc import Callable, Mapping, Set
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.files.replacing import replacing

VERSION = 1
KEY = "bnorm"
SAFETENSORS, NPZ = ".safetensors", ".npz"
SUFFIXES = (SAFETENSORS, NPZ)
DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "U8": "|u1"}  # the dtypes of states, under safetensors' names
DTYPES |= {"F16": "<f2", "I32": "<i4", "I16": "<i2", "I8": "|i1", "BOOL": "|b1"}  # and of the rows of windows
DTYPES |= {"U64": "<u8", "U32": "<u4", "U16": "<u2"}
MAGIC = {SAFETENSORS: re.compile(rb".{8}\{", re.DOTALL), NPZ: re.compile(rb"PK\x03\x04")}
# NumPy's header of a plain array. NumPy itself has Python parse it, which on two threads at once fails in Python 3.11.
HEADER = re.compile(
    rb"\{'descr': '([<>|]\w+)', 'fortran_order': (True|False), 'shape': \((|\d{1,19}(?:, \d{1,19})*,?)\), \} *\n"
)
LENGTHS = {1: struct.Struct("<H"), 2: struct.Struct("<I")}  # of the header, by the version of the format
LONGEST_HEADER = 100_000_000  # bytes, by the definition of safetensors

Config = dict[str, Any]


class NotOursError(ValueError):
    """A file without the configuration of this package."""


class Entry:
    """An array of a file that has not been read yet."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], read: Callable[[], bytes]) -> None:
        self.dtype, self.shape, self._read = dtype, shape, read

    def array(self) -> ndarray:
        a = np.frombuffer(self._read(), np.uint8 if self.dtype.kind == "b" else self.dtype).reshape(self.shape)
        if self.dtype.kind == "b":  # a hostile file may have bytes that are not bools
            a = a != 0
        return a.astype(self.dtype.newbyteorder("="))  # a copy, which is writeable


def check_entries(config: Mapping[str, Any], known: Set[str]) -> None:
    """Raise ValueError for a configuration with other entries than these."""
    if unknown := sorted(config.keys() - known):
        raise ValueError(f"unknown entries {unknown}")


def check_arrays(entries: Mapping[str, Entry], expected: Mapping[str, ndarray]) -> None:
    """Raise ValueError unless a file has arrays of the names, shapes and dtypes of these."""
    if sorted(entries) != sorted(expected):
        raise ValueError(f"arrays {sorted(entries)} instead of {sorted(expected)}")
    for name, a in expected.items():
        if (entries[name].shape, entries[name].dtype) != (a.shape, a.dtype):
            raise ValueError(f"{name}: {entries[name].dtype} {entries[name].shape} instead of {a.dtype} {a.shape}")


def suffix_of(who: str, path: Any) -> str:
    """The suffix of a file name, which is its format."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{who}: path: expected a str or a path-like, got {type(path).__name__}")
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{who}: path: expected a name that ends in {' or '.join(SUFFIXES)}, got {os.fspath(path)!r}")
    return suffix


def write(who: str, path: Any, config: Config, arrays: Mapping[str, ndarray], suffix: str | None = None) -> None:
    """Write a file in one step: a reader sees either the old file or the complete new one.

    suffix: the suffix of its format, if the name of the file does not end in it.
    """
    data = dumped(config, arrays, suffix or suffix_of(who, path))
    with replacing(path, durable=True) as file:
        file.write(data)


def dumped(config: Config, arrays: Mapping[str, ndarray], suffix: str = SAFETENSORS) -> bytes:
    """Return the bytes of a state file."""
    text = json.dumps({"format": VERSION} | config, separators=(",", ":"))
    dense = {name: np.asarray(a, order="C") for name, a in arrays.items()}
    return _safetensors(text, dense) if suffix == SAFETENSORS else _npz(text, dense)


def read(who: str, path: Any, suffix: str | None = None) -> tuple[Config, dict[str, Entry]]:
    """Return the configuration of a file, and its arrays, not read yet; ValueError unless it is a sound state file."""
    suffix = suffix or suffix_of(who, path)
    return _read(f"{who}: {os.fspath(path)}", lambda: _content(path, MAGIC[suffix]), suffix)


def loaded(who: str, data: bytes) -> tuple[Config, dict[str, Entry]]:
    """The reverse of `dumped`; ValueError unless these are sound bytes."""
    return _read(who, lambda: data, SAFETENSORS)


def _read(where: str, content: Callable[[], bytes], suffix: str) -> tuple[Config, dict[str, Entry]]:
    try:
        data = content()
        text, entries = _from_safetensors(data) if suffix == SAFETENSORS else _from_npz(data)
        config = json.loads(text)
    except RecursionError:
        raise ValueError(f"{where}: expected a state file, got JSON nested too deeply") from None
    except (OSError, ImportError):
        raise
    except NotOursError as error:
        raise ValueError(f"{where}: expected a state file of bnorm, got a file {error}") from None
    except Exception as error:  # whatever parsers make of bytes that may be anything
        raise ValueError(f"{where}: expected a state file, got a damaged one: {error}") from None
    if not isinstance(config, dict) or type(config.get("format")) is not int or config["format"] < 1:
        raise ValueError(f"{where}: expected a configuration with a format number, got {text[:80]!r}")
    if config["format"] > VERSION:
        raise ValueError(
            f"{where}: expected format {VERSION} or older, got {config['format']}: a newer bnorm wrote it, and is "
            "needed to read it"
        )
    return config, entries


def _content(path: Any, magic: re.Pattern[bytes]) -> bytes:
    """Return the bytes of a file, after a check of its kind and its beginning: a device or a pipe may have no end."""
    place = Path(path)
    if place.exists() and not place.is_dir() and not place.is_file():
        raise ValueError("no regular file, but a device or a pipe")
    with place.open("rb") as file:
        start = file.read(16)
        if not magic.match(start):
            raise ValueError(f"it begins with {start!r}")
        return start + file.read()


def _safetensors(text: str, arrays: Mapping[str, ndarray]) -> bytes:
    """Eight bytes of length, a JSON header padded to a multiple of eight bytes, and the arrays, widest dtype first, so
    that all are aligned.
    """
    header: dict[str, Any] = {"__metadata__": {KEY: text}}
    names, end, parts = {np.dtype(code): name for name, code in DTYPES.items()}, 0, []
    for name, a in sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0])):
        part = a.astype(DTYPES[names[a.dtype]]).tobytes()
        header[name] = {
            "dtype": names[a.dtype],
            "shape": list(a.shape),
            "data_offsets": [end, end := end + len(part)],
        }
        parts.append(part)
    line = json.dumps(header, separators=(",", ":")).encode()
    line += b" " * (-len(line) % 8)
    return b"".join([struct.pack("<Q", len(line)), line, *parts])


def _from_safetensors(data: bytes) -> tuple[str, dict[str, Entry]]:
    """Return the configuration and the arrays. Every byte after the header must belong to exactly one array."""
    if len(data) < 8:
        raise ValueError(f"{len(data)} bytes are no header")
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(LONGEST_HEADER, len(data) - 8):
        raise ValueError(f"a header of {length} bytes in a file of {len(data)}")
    header = json.loads(data[8 : 8 + length], object_pairs_hook=_once)
    text = header.pop("__metadata__", {}).get(KEY)
    if not isinstance(text, str):
        raise NotOursError(f"without metadata under {KEY!r}: another program wrote it")
    base, end, entries = 8 + length, 0, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        shape = _shape(entry["shape"])
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"{name}: type {entry['dtype']}")
        dtype = np.dtype(DTYPES[entry["dtype"]])
        if start != end or stop - start != prod(shape) * dtype.itemsize or base + stop > len(data):
            raise ValueError(f"{name}: shape {shape} of {dtype} at bytes {start} to {stop} of {len(data) - base}")
        entries[name] = Entry(dtype, shape, lambda start=start, stop=stop: data[base + start : base + stop])  # type: ignore[misc]
        end = stop
    if base + end != len(data):
        raise ValueError(f"{len(data) - base - end} bytes too many")
    return text, entries


def _npz(text: str, arrays: Mapping[str, ndarray]) -> bytes:
    import zipfile  # takes longer than the rest of this module

    data = BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
        for name, a in {KEY: np.array(text.encode()), **arrays}.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, a, allow_pickle=False)
    return data.getvalue()


def _from_npz(data: bytes) -> tuple[str, dict[str, Entry]]:
    import zipfile

    entries: dict[str, Entry] = {}
    with zipfile.ZipFile(BytesIO(data)) as archive:
        infos = archive.infolist()
        if sum(info.file_size for info in infos) > len(data):
            raise ValueError(f"{sum(info.file_size for info in infos)} bytes in a file of {len(data)}")
        for info in infos:
            name = info.filename.removesuffix(".npy")
            if info.compress_type != zipfile.ZIP_STORED or name == info.filename or name in entries:
                raise ValueError(f"{info.filename}: expected an uncompressed array, once")
            entries[name] = _entry(name, archive.read(info))
    if KEY not in entries:
        raise NotOursError(f"without an array {KEY!r}: another program wrote it")
    text = entries.pop(KEY)
    return text._read().decode(), entries


def _entry(name: str, npy: bytes) -> Entry:
    """Return an array in NumPy's format. Everything in its header is checked."""
    file = BytesIO(npy)
    major, _ = np.lib.format.read_magic(file)
    if major not in LENGTHS:
        raise ValueError(f"{name}: array format {major}")
    (length,) = LENGTHS[major].unpack(file.read(LENGTHS[major].size))
    header = HEADER.fullmatch(file.read(length))
    if header is None:
        raise ValueError(f"{name}: header of another kind of array")
    descr, order, lengths = (text.decode() for text in header.groups())
    dtype, fortran = np.dtype(descr), order == "True"
    shape, rest = _shape([int(n) for n in re.findall(r"\d+", lengths)]), npy[file.tell() :]
    if not (dtype.str in DTYPES.values() or (name == KEY and dtype.kind == "S")):
        raise ValueError(f"{name}: type {dtype}")
    if (fortran and len(shape) > 1) or prod(shape) * dtype.itemsize != len(rest):
        raise ValueError(f"{name}: shape {shape} of {dtype} in {len(rest)} bytes")
    return Entry(dtype, shape, lambda: rest)


def _shape(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or not all(type(n) is int and n >= 0 for n in given) or len(given) > 32:
        raise ValueError(f"shape {given!r}")
    return tuple(given)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name that is given twice")
    return found
