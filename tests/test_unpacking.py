"""What is unpacked is what was packed, or an error; never more than is allowed."""

import gzip
import tracemalloc
import zlib
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.unpacking import unpacked

BOMB = zlib.compress(bytes(2**24), 9)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=3), st.booleans())
def test_one_or_several_streams_are_what_was_packed(parts: list[bytes], zeros: bool) -> None:
    packed = b"".join(map(gzip.compress, parts)) + bytes(8 if zeros else 0)
    whole = b"".join(parts)
    assert b"".join(unpacked(BytesIO(packed), len(whole))) == whole
    assert b"".join(unpacked(BytesIO(zlib.compress(whole)), len(whole))) == whole
    if whole:
        with pytest.raises(ValueError, match=f"more than the {len(whole) - 1} bytes allowed"):
            b"".join(unpacked(BytesIO(packed), len(whole) - 1))


@given(st.data())
def test_what_is_cut_off_or_changed_is_an_error(data: st.DataObject) -> None:
    packed = gzip.compress(b"some text, and some text", mtime=0)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(ValueError, match="ends too early"):
        b"".join(unpacked(BytesIO(packed[:cut]), 100))
    with pytest.raises(ValueError, match="cannot be unpacked"):
        b"".join(unpacked(BytesIO(packed + b"x" * 30), 100))


def test_a_bomb_takes_no_memory_beyond_the_limit() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more than the 65536 bytes"):
            b"".join(unpacked(BytesIO(BOMB), 2**16))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
