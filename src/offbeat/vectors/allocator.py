"""Keeps the memory of a chunk that was freed for the next one.

A chunk of a body is copied several times on its way between a tensor and a socket, each time to new memory
of its size. glibc gives what is freed back to the system soon, and the system clears each page that it hands
out again, which takes longer than the copies.
"""

import ctypes
import os
from functools import cache

KEPT, LARGEST = 16 << 20, 32 << 20
"""Bytes at a heap's end that may be free before they are given back, and of the largest block from a heap.

The first is room for some chunks; to the second glibc comes by itself, in a program that frees such blocks.
"""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


@cache
def tune_malloc() -> None:
    """Let this process keep up to 16 MiB of freed memory at a heap's end, and take chunks from there.

    Nothing happens with another C library than glibc, or where the environment has settings for its malloc.
    """
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if tuned or any(name in os.environ for name in _VARIABLES):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    mallopt(_TRIM_THRESHOLD, KEPT)
    mallopt(_MMAP_THRESHOLD, LARGEST)
