"""Permission bits that bind the process, whoever runs the tests: root passes them over."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_VERSION = 0x20080522  # of Linux's structures of capabilities
_DAC = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


@contextmanager
def unwritable(directory: Path, files: int = 0o444) -> Iterator[None]:
    """Context in which nothing in a directory can be written by this thread, and by those that it starts.

    Args:
        directory: The directory.
        files: Mode of its files.
    """
    below = [directory, *directory.rglob("*")]
    before = {path: path.stat().st_mode for path in below}
    for path in below:
        path.chmod(0o555 if path.is_dir() else files)
    try:
        with _bound():
            yield
    finally:
        for path, mode in before.items():
            if path.exists():
                path.chmod(mode)


@contextmanager
def _bound() -> Iterator[None]:
    """Context in which root obeys permission bits, as any user does."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root passes over permission bits")
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    before = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    # The first of three words has the effective capabilities; those that are permitted come back.
    without = (ctypes.c_uint32 * 6)(before[0] & ~_DAC, *before[1:])
    assert libc.capset(header, without) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0
