"""A real SuperLink with SuperNodes on loopback, with TLS and keys, every part a process of its own."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import offbeat as ob
from offbeat.runs.schema import DATABASE
from tests.flower.superlink import LocalFederation

APP = Path(__file__).parents[2] / "examples/flower"
GIVE_UP_AFTER = 400.0  # seconds; each message is a new process that imports PyTorch


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[LocalFederation]:
    federation = LocalFederation(tmp_path / "flower", tls=True)
    try:
        federation.start_superlink()
        for i in range(2):
            federation.start_supernode(i, 2)
        yield federation
    finally:
        federation.stop()


def wait_until(directory: Path, arrived: int, federation: LocalFederation) -> ob.RunRecord:
    """Until so many updates have arrived."""
    end = time.monotonic() + GIVE_UP_AFTER
    while time.monotonic() < end:
        if (directory / DATABASE).is_file():
            record = ob.read_run(directory)
            if sum(row.name == "arrived" for row in record.rows()) >= arrived:
                return record
        time.sleep(0.5)
    raise TimeoutError("\n".join(federation.log(name) for name in federation.processes))


@pytest.mark.thorough  # every message is a new process: minutes
def test_a_server_app_that_is_killed_goes_on_in_the_next_run(
    federation: LocalFederation, tmp_path: Path
) -> None:
    """FedASMU, with fresh models in two phases: two runs of Flower's, one directory."""
    settings = [f'offbeat-state="{tmp_path / "run"}"', "clients=2", "tasks=5", 'algorithm="fedasmu"']
    federation.run(APP, settings)
    wait_until(tmp_path / "run", 2, federation)
    federation.kill("superlink-exec")
    before = list(ob.read_run(tmp_path / "run").rows())
    federation.start_superexec("superlink-exec", federation.port)
    federation.run(APP, settings)
    wait_until(tmp_path / "run", 5, federation)
    while (record := ob.read_run(tmp_path / "run")).status != "finished":
        time.sleep(0.5)
    rows = list(record.rows())
    assert rows[: len(before)] == before
    assert sum(row.name == "arrived" for row in before) < 5
    assert record.meta["summary"]["tasks"] == 5
    assert [row.name for row in rows if row.name == "wants_model"]
    arrived = [row.task for row in rows if row.name == "arrived"]
    assert len(arrived) == len(set(arrived))
    assert record.meta["rejected"] == {}
    assert [row.client for row in rows if row.name == "joined"] == [0, 1]
    assert not [row for row in rows if row.name in ("left", "lost")]
