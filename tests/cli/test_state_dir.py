"""What a state directory tells of its server."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from offbeat.cli.state_dir import SERVER, not_running
from offbeat.runs.store import RunStore
from tests.forks import Fork

META: dict[str, Any] = {"label": "heart", "algorithm": {"name": "fedbuff"}, "seed": 0, "clients": 3}
SERVED: dict[str, Any] = {**META, "plan": {}}


def state(offbeat: Any, directory: Path) -> str:
    """The state of a run, as `offbeat status` says it."""
    return str(json.loads(offbeat("status", directory, "--json").out)["state"])


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        (META, "no process simulates it: offbeat resume {directory} continues it"),
        (SERVED, "no server has it: serve it again, as it was served, to continue it"),
    ],
    ids=["simulated", "served"],
)
def test_a_run_is_running_while_its_directory_is_locked(
    meta: dict[str, Any], reason: str, offbeat: Any, tmp_path: Path
) -> None:
    """The directory of a run that a process was killed with, or that was restored from a copy."""
    directory = tmp_path / "run"
    store = RunStore.create(directory, meta, ())
    assert state(offbeat, directory) == "running"
    store.close()
    assert state(offbeat, directory) == f"not running: {reason.format(directory=directory)}"


def test_a_dead_server_is_told_at_once_though_its_parent_has_not_waited_for_it(tmp_path: Path) -> None:
    script = tmp_path / "nothing.py"
    script.write_text("")
    ended = Fork(script)
    for pid in (ended.pid, os.getpid()):
        (tmp_path / SERVER).write_text(json.dumps({"pid": pid}), encoding="utf-8")
        said = not_running(tmp_path, locked=False, served=True)
        assert said == f"its server (process {pid}) has died: the same offbeat serve resumes the run"
    assert not_running(tmp_path, locked=True, served=True) is None
    ended.communicate()
