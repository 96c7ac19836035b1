import gzip
import struct

import numpy as np
import pytest

from offbeat.core.errors import UsageError
from offbeat.data.idx import read_idx

VALUES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_plain_and_gz(tmp_path):
    plain, packed = tmp_path / "a-idx3-ubyte", tmp_path / "a-idx3-ubyte.gz"
    plain.write_bytes(idx_bytes(VALUES))
    packed.write_bytes(gzip.compress(idx_bytes(VALUES)))
    for path in (plain, packed):
        read = read_idx(path, 3)
        assert read.dtype == np.uint8
        assert (read == VALUES).all()


GOOD = idx_bytes(VALUES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated in its header"),
        (GOOD[:3], "truncated in its header"),
        (GOOD[:10], "truncated in its header"),
        (GOOD[:-1], "is truncated: its header says 2x3x4 = 24 values"),
        (GOOD + b"x", "goes on after its end"),
        (b"\x00\x00\x0d" + GOOD[3:], "magic 00000d03 is not 00000803"),
        (b"\x00\x00\x08\x01" + GOOD[4:], "magic 00000801 is not 00000803"),
        (b"<html>404 not found</html>", "magic 3c68746d"),
        (GOOD[:4] + struct.pack(">3I", 2**31, 2**31, 2**31), "more than the 1073741824 allowed"),
        # A header that lies within the limit must be found out by the bytes that come, not believed.
        (GOOD[:4] + struct.pack(">3I", 1000, 1000, 1000) + b"x", "is truncated"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_broken_files_are_named(tmp_path, content, message, packed):
    path = tmp_path / ("broken.gz" if packed else "broken")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(UsageError, match=message) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(GOOD, mtime=0)[:-12],
        b"not gzip at all",
        gzip.compress(GOOD, mtime=0)[:10] + b"\xff" * 30,
    ],
    ids=["cut short", "not gzip", "garbage"],
)
def test_broken_gzip(tmp_path, content):
    path = tmp_path / "broken.gz"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="cannot be read") as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value)


def test_unreadable(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_idx(tmp_path / "nowhere", 1)
