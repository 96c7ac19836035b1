"""Memory that chunks have freed serves the next ones."""

import os
import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource, sys
from offbeat.vectors.allocator import tune_malloc
if sys.argv[1] == "kept":
    tune_malloc()
def chunks():
    return [bytearray(b"x") * (1 << 20) for _ in range(8)]
chunks(), chunks()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    chunks()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, **environment: str) -> int:
    """Pages that a process asked for, while it used 8 MiB of memory forty times: 2048 each time at most."""
    command = [sys.executable, "-c", _FAULTS, how]
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**environ, **environment})
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_chunks_are_used_again() -> None:
    assert faults("kept") < 2048 < 20 * 2048 < faults("as it is")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_what_the_environment_says_of_memory_holds() -> None:
    assert faults("kept", MALLOC_MMAP_THRESHOLD_="65536") > 20 * 2048
    assert faults("kept", GLIBC_TUNABLES="glibc.malloc.mmap_threshold=65536") > 20 * 2048
    assert faults("kept", GLIBC_TUNABLES="glibc.rtld.nns=4") < 2048
