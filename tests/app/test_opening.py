"""The bytes of a file: text in other encodings, and what its beginning tells."""

import bz2
import gzip
import io

import pytest

from bnorm.app.opening import Bytes, Recoded

pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads files by pyarrow")


@pytest.mark.parametrize(("letter", "encoding"), [("ж", "cp1251"), ("€", "cp1252"), ("€", "utf-16")])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_text_of_another_encoding_is_read_as_it_is_asked_for(letter, encoding, size):
    """A byte of it may become more bytes of UTF-8 than are missing."""
    raw, text = io.BytesIO((letter * 5000).encode(encoding)), (letter * 5000).encode()
    stream = Bytes(Recoded(Bytes(raw), encoding))
    assert stream.peek(size) == text[:size]
    found = [stream.read(size)]
    assert raw.tell() <= size + 4
    while block := stream.read(size):
        found.append(block)
    assert b"".join(found) == text
    assert all(size <= len(block) < size + 4 for block in found[:-1])


@pytest.mark.parametrize("order", ["le", "be"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("given", [False, True])
def test_marks_of_encodings(means, encoding, order, given):
    asked = ["--encoding", encoding] if given else []
    assert means("\ufeffa\n1\n2\n".encode(f"{encoding}-{order}"), *asked) == {"a": 1.5}


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16", "packed"])
def test_a_column_whose_numbers_begin_far_down(monkeypatch, means, encoding):
    """Where the file is looked at further down, what is not text is not taken for it."""
    monkeypatch.setattr("bnorm.app.csv_source.BEGINNING", 1 << 10)
    lines = [f"{i * 7919 % 100003}," for i in range(20_000)] + ["1,7"] * 5000  # random, so that it stays large
    text = "a,b\n" + "\n".join(lines)
    content = gzip.compress(text.encode()) if encoding == "packed" else text.encode(encoding)
    asked = ["--encoding", encoding] if encoding == "latin-1" else []
    assert means(content, *asked)["b"] == 7.0


@pytest.mark.parametrize("name", ["ORCID", "PAR1", "ARROW1", "BZh", "BZh9", "SQLite format 3"])
def test_names_of_columns_that_are_marks_of_formats(means, name):
    assert means(f"{name},age\nx,3\n".encode()) == {"age": 3.0}


def test_zstd_that_begins_with_a_frame_to_skip(means):
    import pyarrow as pa

    packed = pa.Codec("zstd").compress(b"a\n1\n2\n", asbytes=True)
    assert means(b"\x50\x2a\x4d\x18\3\0\0\0abc" + packed) == {"a": 1.5}


@pytest.mark.parametrize("kind", ["orc", "bz2", "parquet", "arrow"])
def test_formats_whose_mark_is_text(command, tmp_path, means, kind):
    """Whatever the name of the file says."""
    import pyarrow as pa
    from pyarrow import feather, orc, parquet

    write = {"orc": orc.write_table, "parquet": parquet.write_table, "arrow": feather.write_feather}
    if kind == "bz2":
        (tmp_path / "t").write_bytes(bz2.compress(b"a\n1\n2\n"))
    else:
        write[kind](pa.table({"a": [1.0, 2.0]}), str(tmp_path / "t"))
    content = (tmp_path / "t").read_bytes()
    if kind == "orc":
        (tmp_path / "x.csv").write_bytes(content)
        assert "got ORC" in command.fails("fit", tmp_path / "x.csv", "-o", tmp_path / "s.npz")
    else:
        assert means(content) == {"a": 1.5}
