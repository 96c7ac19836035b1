"""Gaps between versions in flight are given back, and a run that has few is left alone."""

import platform
import subprocess
import sys

import pytest

import offbeat.vectors.heap as module
from offbeat.vectors.heap import GROWTH, LARGEST, LOOK, HeapTrimmer

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
    monkeypatch.setattr(module, "_trim", lambda: made.trim)
    return made


def test_gaps_are_given_back_whenever_the_process_has_grown(process: Process) -> None:
    gaps = HeapTrimmer()
    for _ in range(4 * GROWTH // MB):
        process.size += MB
        gaps.after(MB)
    starts = [500 * MB, *(size - GROWTH // 2 for size in process.trimmed)]
    grown = [size - start for start, size in zip(starts, process.trimmed, strict=False)]
    assert len(grown) == 3
    assert all(GROWTH < by <= GROWTH + LOOK for by in grown)


def test_a_process_that_does_not_grow_is_left_alone(process: Process) -> None:
    gaps = HeapTrimmer()
    for _ in range(4 * GROWTH // MB):
        gaps.after(MB)
    process.size += GROWTH
    gaps.after(LOOK)
    assert not process.trimmed
    process.size += 1
    gaps.after(LOOK - 1)  # it does not look at every version
    assert not process.trimmed
    gaps.after(1)
    assert len(process.trimmed) == 1


def test_vectors_that_the_system_gets_back_at_once_do_not_count(process: Process) -> None:
    gaps = HeapTrimmer()
    process.size += 2 * GROWTH
    gaps.after(LARGEST + 1)
    assert not process.trimmed


def test_where_the_system_has_no_such_thing_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def __init__(self, name: str) -> None: ...

        def read_bytes(self) -> bytes:
            raise FileNotFoundError

    module._trim.cache_clear()
    monkeypatch.setattr(module.ctypes, "CDLL", lambda name: object())
    monkeypatch.setattr(module, "Path", Missing)
    try:
        module._trim()(0)
        assert module.resident() == 0
    finally:
        module._trim.cache_clear()


RUN = """
import offbeat as ob
import offbeat.vectors.heap as memory
from offbeat.core.global_model import GlobalModel

memory.GROWTH, memory.LOOK = 8 << 20, 1 << 20
aggregate, most = GlobalModel.aggregate, 0

def counted(self, command):
    global most
    aggregate(self, command)
    if command.version % 50 == 0:
        most = max(most, len({version for version, _ in self.bases.values()}))

GlobalModel.aggregate = counted
before = memory.resident()
world, learner = ob.World(ob.laws.Exponential(1.0, minimum=0.05)), ob.NoTraining(3000, parameters=16_000)
ob.simulate(ob.fedasync(steps=2, concurrency=1500), world, learner, until=ob.Until(tasks=6000), evaluate=None)
peak = int(next(x for x in open("/proc/self/status") if x.startswith("VmHWM")).split()[1]) << 10
print(most * 64_000, peak - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked to give gaps back")
def test_versions_in_flight_take_their_own_memory_and_little_more() -> None:
    answer = subprocess.run([sys.executable, "-c", RUN], check=True, stdout=subprocess.PIPE, text=True).stdout
    needed, taken = map(int, answer.split())
    assert needed > 70 * MB
    assert taken < 1.1 * needed + 30 * MB  # the books and the journal; it was 1.9 times what is needed
