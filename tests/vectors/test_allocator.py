"""Freed chunks are used again, gaps between versions are given back, and PyTorch asks for huge pages."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import offbeat
import offbeat.vectors.allocator as module
from offbeat.vectors.allocator import GROWTH, LARGEST, LOOK, HeapTrimmer

PACKAGE = str(Path(offbeat.__file__).parent)
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


HUGE = """
import os, sys
import offbeat.vectors.allocator
assert "torch" not in sys.modules, "PyTorch reads the variable when it is imported"
print(os.environ["THP_MEM_ALLOC_ENABLE"])
"""


@pytest.mark.parametrize(("own", "found"), [({}, "1"), ({"THP_MEM_ALLOC_ENABLE": "0"}, "0")])
def test_huge_pages_are_asked_for_unless_the_environment_says_otherwise(own: dict[str, str], found: str):
    environ = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    # of `offbeat` itself only its first import: the allocator's module
    code = f"import sys, types; package = types.ModuleType('offbeat'); package.__path__ = [{PACKAGE!r}]\n"
    code += f"sys.modules['offbeat'] = package\n{HUGE}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**environ, **own}
    )
    assert done.stdout.strip() == found


MB = 1 << 20


class Process:
    """A process of so many bytes; half of what it grows by before it is trimmed is gaps."""

    def __init__(self) -> None:
        self.size = 500 * MB
        self.trimmed: list[int] = []

    def trim(self, keep: int) -> None:
        assert keep == 0
        self.trimmed.append(self.size)
        self.size -= GROWTH // 2


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    made = Process()
    monkeypatch.setattr(module, "resident", lambda: made.size)
    monkeypatch.setattr(module, "_glibc", lambda name, *arguments: made.trim)
    return made


def test_gaps_are_given_back_whenever_the_process_has_grown(process: Process) -> None:
    trimmer = HeapTrimmer()
    for _ in range(4 * GROWTH // MB):
        process.size += MB
        trimmer.after(MB)
    starts = [500 * MB, *(size - GROWTH // 2 for size in process.trimmed)]
    grown = [size - start for start, size in zip(starts, process.trimmed, strict=False)]
    assert len(grown) == 3
    assert all(GROWTH < by <= GROWTH + LOOK for by in grown)


def test_a_process_that_does_not_grow_is_left_alone(process: Process) -> None:
    trimmer = HeapTrimmer()
    for _ in range(4 * GROWTH // MB):
        trimmer.after(MB)
    process.size += GROWTH
    trimmer.after(LOOK)
    assert not process.trimmed
    process.size += 1
    trimmer.after(LOOK - 1)  # it does not look at every version
    assert not process.trimmed
    trimmer.after(1)
    assert len(process.trimmed) == 1


def test_vectors_that_the_system_gets_back_at_once_do_not_count(process: Process) -> None:
    trimmer = HeapTrimmer()
    process.size += 2 * GROWTH
    trimmer.after(LARGEST + 1)
    assert not process.trimmed


def test_where_the_system_has_no_such_thing_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def __init__(self, name: str) -> None: ...

        def read_bytes(self) -> bytes:
            raise FileNotFoundError

    module._glibc.cache_clear()
    monkeypatch.setattr(module.ctypes, "CDLL", lambda name: object())
    monkeypatch.setattr(module, "Path", Missing)
    try:
        module._glibc("malloc_trim")(0)
        assert module.resident() == 0
    finally:
        module._glibc.cache_clear()


RUN = """
import offbeat as ob
import offbeat.vectors.allocator as memory
from offbeat.core.global_model import GlobalModel

memory.GROWTH, memory.LOOK = 8 << 20, 1 << 20
aggregate, most = GlobalModel.aggregate, 0

def counted(self, command):
    global most
    aggregate(self, command)
    if command.version % 50 == 0:
        most = max(most, len({version for version, _ in self.bases.values()}))

GlobalModel.aggregate = counted
world, learner = ob.World(ob.laws.Exponential(1.0, minimum=0.05)), ob.NoTraining(3000, parameters=16_000)
algorithm, simulate = ob.fedasync(steps=2, concurrency=1500), ob.simulate
before = memory.resident()  # of a process that has imported what it needs
simulate(algorithm, world, learner, until=ob.Until(tasks=6000), evaluate=None)
peak = int(next(x for x in open("/proc/self/status") if x.startswith("VmHWM")).split()[1]) << 10
print(most * 64_000, peak - before)
"""


@pytest.mark.thorough
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked to give gaps back")
def test_versions_in_flight_take_their_own_memory_and_little_more() -> None:
    answer = subprocess.run([sys.executable, "-c", RUN], check=True, stdout=subprocess.PIPE, text=True).stdout
    needed, taken = map(int, answer.split())
    assert needed > 70 * MB
    assert taken < 1.1 * needed + 30 * MB  # the books and the journal; it was 1.9 times what is needed
