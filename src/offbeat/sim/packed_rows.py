"""Journal rows in memory, older ones packed: a row takes 0.3 KB as objects and 0.02 KB packed."""

import pickle
import zlib
from collections.abc import Iterator

from msgspec.structs import astuple

from offbeat.core.journal import Row

BLOCK = 16384
"""Rows of a block. They take 5 MB as objects, so a short run is never packed."""


class PackedRows:
    """Rows in the order in which they were appended; full blocks of them are compressed.

    A block has the rows' columns, since alike values next to one another compress faster. It is pickled, so
    that the values come back with the types they had. Blocks come from this process alone and are never
    written to a file.
    """

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._latest: list[Row] = []

    def append(self, row: Row) -> None:
        """Add a row."""
        self._latest.append(row)
        if len(self._latest) == BLOCK:
            columns = list(zip(*map(astuple, self._latest), strict=True))
            self._blocks.append(zlib.compress(pickle.dumps(columns), 1))
            self._latest = []

    def __len__(self) -> int:
        """The number of rows."""
        return BLOCK * len(self._blocks) + len(self._latest)

    def __iter__(self) -> Iterator[Row]:
        """The rows that are there when the iteration begins, one block after another."""
        blocks, latest = tuple(self._blocks), tuple(self._latest)
        for block in blocks:
            yield from map(Row, *pickle.loads(zlib.decompress(block)))
        yield from latest
