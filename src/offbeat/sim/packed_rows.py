"""Journal rows in memory, older ones packed: a row takes 0.3 KB as objects and 0.02 KB packed."""

import pickle
import zlib
from collections.abc import Iterator

from msgspec.structs import astuple

from offbeat.core.journal import Row

BLOCK = 4096
"""Rows of a block."""


class PackedRows:
    """Rows in the order in which they were appended; full blocks of them are compressed.

    A block is pickled, so that its rows come back with the types they had. Blocks come from this process
    alone and are never written to a file.
    """

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._latest: list[Row] = []

    def append(self, row: Row) -> None:
        """Add a row."""
        self._latest.append(row)
        if len(self._latest) == BLOCK:
            self._blocks.append(zlib.compress(pickle.dumps([astuple(row) for row in self._latest]), 1))
            self._latest = []

    def __len__(self) -> int:
        """The number of rows."""
        return BLOCK * len(self._blocks) + len(self._latest)

    def __iter__(self) -> Iterator[Row]:
        """The rows that are there when the iteration begins, one block after another."""
        blocks, latest = tuple(self._blocks), tuple(self._latest)
        for block in blocks:
            yield from (Row(*values) for values in pickle.loads(zlib.decompress(block)))
        yield from latest
