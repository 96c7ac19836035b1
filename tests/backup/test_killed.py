"""Backups, restores and mirrors whose processes are killed at random moments."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from offbeat.backup.backup import backup, file_problems
from offbeat.backup.manifest import copies_in
from offbeat.backup.restore import restore
from offbeat.net.server.mirror import check_mirror, copy_checkpoint
from offbeat.runs.record import read_run
from offbeat.runs.verify import verify
from tests.backup.served_run import ServedRun

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("one_thread")]
KILLS = 50
LARGE = 2_000_000
"""Values of a large model, of 8 MB."""


def in_child(act: Callable[[], object]) -> int:
    """Act in a process of its own; returns its id."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def killed(act: Callable[[], object], seconds: float) -> bool:
    """Act in a process that is killed after some seconds; whether that was before its end."""
    child = in_child(act)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def seconds_of(act: Callable[[], object]) -> float:
    """Seconds that a process takes which is not killed."""
    begun = time.monotonic()
    assert os.waitpid(in_child(act), 0)[1] == 0
    return time.monotonic() - begun


def kill_often(act: Callable[[], object], check: Callable[[], None], prepare: Callable[[], object]) -> None:
    """Kill what acts at `KILLS` random moments of its time, and check what is left each time."""
    rng = Random(7)
    prepare()
    whole, kills = seconds_of(act), 0
    check()
    while kills < KILLS:
        prepare()
        kills += killed(act, rng.uniform(0.0, whole))
        check()


def run_of(directory: Path, size: int, steps: int = 9, **store: object) -> ServedRun:
    run = ServedRun(directory, size=size, **store)  # type: ignore[arg-type]
    run.steps(steps)
    return run


@pytest.mark.parametrize(("size", "keep"), [(40, 2), (LARGE, 1)])
def test_backup(tmp_path: Path, size: int, keep: int) -> None:
    """Each copy that has its name is whole, the newest is there still, and the next one clears up."""
    run, copies = run_of(tmp_path / "a", size), tmp_path / "copies"
    backup(run.directory, copies, keep)
    rng, before = Random(7), copies_in(copies)[-1]

    def check() -> None:
        names = copies_in(copies)
        assert names[-1] >= before
        assert len(names) >= 1
        for copy in names:
            restored = restore(copy, tmp_path / "restored")
            assert not [*file_problems(verify(restored.record.path))]
            assert restored.record.length <= run.coordinator.driver.engine.rows
            shutil.rmtree(restored.record.path)

    def prepare() -> None:
        nonlocal before
        before = copies_in(copies)[-1]
        run.steps(1)
        if rng.random() < 0.3:
            run.checkpoint()

    kill_often(lambda: backup(run.directory, copies, keep), check, prepare)
    backup(run.directory, copies, keep)
    assert len(copies_in(copies)) == keep
    assert {path.name for path in copies.iterdir()} == {"lock", *(path.name for path in copies_in(copies))}
    run.store.close()


@pytest.mark.parametrize("size", [40, LARGE])
def test_restore(tmp_path: Path, size: int) -> None:
    """The directory is whole or missing, and the next attempt clears up."""
    run, target = run_of(tmp_path / "a", size), tmp_path / "b"
    copy = backup(run.directory, tmp_path / "copies").folder
    run.store.close()
    outcomes = set()

    def check() -> None:
        outcomes.add(target.exists())
        if target.exists():
            assert not [*file_problems(verify(target))]
            assert read_run(target).length == run.coordinator.driver.engine.rows
            shutil.rmtree(target)
        assert sum(path.name.startswith(".b.") for path in tmp_path.iterdir()) <= 1

    kill_often(lambda: restore(copy, target), check, lambda: None)
    restore(copy, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "copies"]
    assert False in outcomes


@pytest.mark.parametrize(
    ("size", "keep", "new"), [(40, False, True), (LARGE, True, True), (LARGE, True, False)]
)
def test_mirror(tmp_path: Path, size: int, keep: bool, new: bool) -> None:
    """A mirror that is being made is no run, or what it was, or whole; the next server makes it whole."""
    source, mirror = tmp_path / "a", tmp_path / "m"
    run = run_of(source, size, keep=keep)
    older = tmp_path / "older"
    run.checkpoint()
    copy_checkpoint(source, older)
    run.steps(3)
    run.checkpoint()
    rows, before = run.coordinator.driver.engine.rows, read_run(older).length

    def prepare() -> None:
        shutil.rmtree(mirror, ignore_errors=True)
        if not new:
            shutil.copytree(older, mirror)

    def check() -> None:
        assert (mirror / "run.db").exists() or new
        if (mirror / "run.db").exists():
            assert not [*file_problems(verify(mirror))]
            assert read_run(mirror).length in ({rows} if new else {before, rows})
        check_mirror(source, mirror)
        copy_checkpoint(source, mirror)
        assert not [*file_problems(verify(mirror))]
        assert read_run(mirror).length == rows
        assert not [*mirror.glob("*.part*")]

    kill_often(lambda: copy_checkpoint(source, mirror), check, prepare)
    run.store.close()
