"""Gives back to the system the gaps between a run's versions.

Versions of a model are let go in no order. glibc (2.36) hardly ever puts an aligned vector where one of the
same size was, because a small object has moved in beside it. So what was freed stays, in gaps that nothing
fits in, and thousands of versions in flight took twice their memory. The C library can be asked to give such
pages back; a gap that is used again gets new ones. That takes milliseconds, so it is done when the
process has grown by so much that it may be worth it: with few versions in flight a run never gets there.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from mmap import PAGESIZE
from pathlib import Path

GROWTH = 128 << 20
"""Bytes by which the process may grow before the gaps are given back."""
LOOK = 16 << 20
"""Bytes of new versions after which its size is looked at."""
LARGEST = 32 << 20
"""Bytes of the largest vector that glibc may keep when it is freed."""


class HeapTrimmer:
    """Watches what a run's versions leave behind, and gives it back."""

    def __init__(self) -> None:
        self._made, self._size = 0, resident()

    def after(self, octets: int) -> None:
        """A version of so many bytes was made."""
        if octets > LARGEST:
            return
        self._made += octets
        if self._made < LOOK:
            return
        self._made = 0
        if resident() > self._size + GROWTH:
            _trim()(0)
            self._size = resident()


def resident() -> int:
    """Bytes of memory that this process has; 0 where Linux does not tell."""
    try:
        pages = Path("/proc/self/statm").read_bytes().split()[1]
    except OSError:
        return 0
    return int(pages) * PAGESIZE


@cache
def _trim() -> Callable[[int], object]:
    """glibc's malloc_trim, which is told how many bytes to keep; elsewhere, nothing is done."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda _: None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    found: Callable[[int], object] = trim
    return found
