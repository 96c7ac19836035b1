"""Compressed data that may come from others: unpacked up to a limit, never further.

A byte of zlib or gzip can mean a thousand. So whoever unpacks says how much there may be, and gets an error
as soon as there is more.
"""

import zlib
from collections.abc import Iterator
from typing import BinaryIO

MOST_DATASET = 1 << 30
"""Bytes of one file of a dataset, unpacked: twenty times the largest in use."""
_CHUNK = 1 << 16
_ZLIB_OR_GZIP = 47  # wbits: by the first bytes


def unpacked(file: BinaryIO, most: int) -> Iterator[bytes]:
    """Iterate over pieces of what a file of zlib or gzip means, one or several streams one after the other.

    Args:
        file: The file, from where it is now.
        most: Most bytes that it may mean.

    Raises:
        ValueError: It is damaged, ends within a stream, or means more.
        OSError: It cannot be read.
    """
    stream, left = zlib.decompressobj(_ZLIB_OR_GZIP), most
    packed, whole = b"", False
    while packed or (packed := file.read(_CHUNK)):
        whole = False
        try:
            piece = stream.decompress(packed, min(_CHUNK, left + 1))
        except zlib.error as error:
            raise ValueError(f"it cannot be unpacked: {error}") from None
        if (left := left - len(piece)) < 0:
            raise ValueError(f"it unpacks to more than the {most} bytes allowed")
        yield piece
        packed = stream.unconsumed_tail
        if stream.eof:
            # Zeros may fill up a file of gzip.
            packed = stream.unused_data.lstrip(b"\0")
            stream, whole = zlib.decompressobj(_ZLIB_OR_GZIP), True
    if not whole:
        raise ValueError("it ends too early")
