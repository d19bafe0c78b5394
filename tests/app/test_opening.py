"""The bytes of a file: text in other encodings, and what its beginning tells."""

import io

import pytest

from bnorm.app.opening import Bytes, Recoded


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
