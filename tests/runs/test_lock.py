"""Whether a process writes a run, asked of a directory that may not be written."""

import os
import threading
from pathlib import Path

import pytest

from offbeat.runs.lock import is_held, lock


def test_a_lock_is_seen_and_not_taken(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with lock(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)
    with lock(tmp_path):
        pass


def test_who_only_asks_for_a_moment_keeps_no_writer_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr("offbeat.runs.lock._PROBE_SECONDS", 120.0)
    with (tmp_path / "lock").open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        released = threading.Timer(0.2, fcntl.flock, (asking, fcntl.LOCK_UN))
        released.start()
        with lock(tmp_path):
            assert is_held(tmp_path)
        released.join()


def test_who_may_only_read_the_lock_sees_it(tmp_path: Path) -> None:
    with lock(tmp_path):
        (tmp_path / "lock").chmod(0o400)
        assert is_held(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a pipe in the file system")
def test_a_pipe_or_a_link_in_its_place_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(OSError, match="it is no file"):
        is_held(tmp_path)
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        is_held(tmp_path)
