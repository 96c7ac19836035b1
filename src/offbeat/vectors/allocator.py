"""The C library's allocator and huge pages: settings under which long vectors cost no page faults.

Fresh memory comes page by page as it is first written, and the system clears each page; for a long vector
that takes longer than the arithmetic on it. Three settings spare it:

- importing this module sets `THP_MEM_ALLOC_ENABLE=1`, so that PyTorch asks for huge pages for tensors of
  2 MiB and more. PyTorch reads it when it is imported, so `import offbeat` imports this module first.
  `THP_MEM_ALLOC_ENABLE=0` in the environment keeps small pages;
- `tune_malloc`, for processes that copy chunks between tensors and sockets, keeps the chunks that are freed;
- `HeapTrimmer`, for runs with thousands of versions, gives the gaps between versions back to the system.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from mmap import PAGESIZE
from pathlib import Path

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

KEPT = 16 << 20
"""Bytes at a heap's end that may be free before they are given back: space for some chunks."""
LARGEST = 32 << 20
"""Bytes of the largest block from a heap: glibc comes to it by itself where a program frees such blocks."""
GROWTH = 128 << 20
"""Bytes by which the process may grow before the gaps are given back."""
LOOK = 16 << 20
"""Bytes of new versions after which the size of the process is read."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


@cache
def tune_malloc() -> None:
    """Let this process keep up to 16 MiB of freed memory at a heap's end, and take chunks from there.

    A no-op with another C library than glibc, or where the environment has settings for its malloc.
    """
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if tuned or any(name in os.environ for name in _VARIABLES):
        return
    mallopt = _glibc("mallopt", ctypes.c_int, ctypes.c_int)
    mallopt(_TRIM_THRESHOLD, KEPT)
    mallopt(_MMAP_THRESHOLD, LARGEST)


class HeapTrimmer:
    """Gives the gaps between a run's versions back to the system when the process has grown.

    Versions of a model are freed in no order. glibc (2.36) hardly ever puts an aligned vector where one of
    the same size was, because a small object has moved in beside it. What was freed then stays in gaps that
    nothing fits in, and thousands of versions in flight took twice their memory. Trimming takes milliseconds,
    so it waits until the process has grown by `GROWTH`; with few versions in flight a run never gets there.
    """

    def __init__(self) -> None:
        self._made, self._size = 0, resident()

    def after(self, octets: int) -> None:
        """A version of `octets` bytes was made."""
        if octets > LARGEST:
            return
        self._made += octets
        if self._made < LOOK:
            return
        self._made = 0
        if resident() > self._size + GROWTH:
            trim()
            self._size = resident()


def trim() -> None:
    """Give freed memory of this process back to the system; a no-op with another C library than glibc."""
    _glibc("malloc_trim", ctypes.c_size_t)(0)


def resident() -> int:
    """Bytes of memory that this process has; 0 where the system is not Linux."""
    try:
        pages = Path("/proc/self/statm").read_bytes().split()[1]
    except OSError:
        return 0
    return int(pages) * PAGESIZE


@cache
def _glibc(name: str, *arguments: type) -> Callable[..., object]:
    """A function of the C library that returns an int; a no-op where the library lacks it."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return lambda *_: 0
    function.argtypes, function.restype = list(arguments), ctypes.c_int
    found: Callable[..., object] = function
    return found
