"""Copies of a run of large updates while another process serves it; each goes on to the same end."""

import subprocess
import sys
from pathlib import Path

import pytest

from offbeat.backup.backup import backup
from offbeat.backup.manifest import copies_in
from offbeat.backup.restore import restore
from offbeat.runs.record import read_run
from tests.backup.served_run import ServedRun

SIZE, TASKS, COPIES = 250_000, 1500, 50  # an update has 1 MB


@pytest.mark.thorough
@pytest.mark.usefixtures("one_thread")
def test_fifty_copies_of_a_run_under_load_go_on_to_the_same_end(tmp_path: Path) -> None:
    run, copies = tmp_path / "run", tmp_path / "copies"
    command = [sys.executable, "-m", "tests.backup.under_load", str(run), str(SIZE), str(TASKS)]
    with subprocess.Popen(command) as process:
        while not (run / "run.db").exists() or read_run(run).length < 10:
            assert process.poll() is None
        while len(copies_in(copies) if copies.exists() else ()) < COPIES:
            made = backup(run, copies)
            assert made.copy.record.status == "running", "the run is too short"
        assert process.wait() == 0
    model = (run / "model.safetensors").read_bytes()
    moments = set()
    for copy in copies_in(copies):
        restored = restore(copy, tmp_path / "restored" / copy.name)
        moments.add(restored.record.length)
        again = ServedRun(restored.record.path, size=SIZE, tasks=TASKS)
        again.finish()
        assert (restored.record.path / "model.safetensors").read_bytes() == model
    assert len(moments) > COPIES // 2
