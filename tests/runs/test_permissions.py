"""Who may read a run: whatever the umask, a file is as open as its directory."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from offbeat.callbacks.csv_tracker import CSVFile
from offbeat.net.client.store import SiteStore
from offbeat.net.server.state_files import UpdateLog
from offbeat.runs.durable_files import write_private
from offbeat.runs.files import write_tensors
from offbeat.runs.permissions import private_directory
from offbeat.runs.store import RunStore


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in (directory, *directory.iterdir())}


def write_all(directory: Path) -> dict[str, int]:
    """The modes of a run's files, while it is written."""
    store = RunStore.create(directory, {}, [])
    store.set_meta({"status": "running"})
    log = UpdateLog(directory)
    write_tensors(directory / "model.safetensors", {"w": torch.zeros(2)})
    CSVFile(directory / "metrics.csv", [])
    found = modes(directory)
    log.close()
    store.close()
    return found


def test_a_private_directory_has_private_files(
    umask: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "parent" / "state"
    private_directory(directory)
    found = write_all(directory)
    assert {"run.db", "run.db-wal", "run.db-shm", "lock", "updates.log", "metrics.csv"} < found.keys()
    assert found.pop("state") == 0o700
    assert set(found.values()) == {0o600}
    assert caplog.records == []


def test_an_open_directory_gets_a_warning_and_no_file_that_all_can_write(
    umask: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    directory.chmod(0o777)
    private_directory(directory)
    assert [record.getMessage() for record in caplog.records] == [
        f"others can read {directory}, and data of the run: chmod -R go= {directory}"
    ]
    found = write_all(directory)
    del found["state"]
    assert set(found.values()) == {0o664}


def test_a_private_file_is_its_owners_in_an_open_directory(umask: int, tmp_path: Path) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    directory.chmod(0o777)
    write_private(directory / "tokens.json", b"secret")
    assert modes(directory) == {"state": 0o777, "tokens.json": 0o600}


def test_a_site_keeps_its_state_to_itself(umask: int, tmp_path: Path) -> None:
    store = SiteStore(tmp_path / "state")
    store.begin("a run")
    found = modes(tmp_path / "state")
    store.close()
    assert found.pop("state") == 0o700
    assert len(found) > 1
    assert set(found.values()) == {0o600}
