"""Whole runs on a grid in memory: every algorithm that can run, nodes that go and come, servers that die."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, Error, Message
from flwr.supercore.task_identity import TaskIdentity

import offbeat as ob
from offbeat.data.dataset import Dataset
from offbeat.flower import Pace, client_app, serve
from offbeat.flower.federation import Federation
from offbeat.models.registry import LogisticSpec
from offbeat.net import Terms
from offbeat.sim.replay import replay
from tests.conformance.test_same_everywhere import OPTIONS
from tests.flower.fake_grid import FakeGrid, FakeNode

TRAINING = ob.Training(lr=0.1, batch_size=20)
SITES = 5
TERMS = Terms(clients=SITES, tasks=40, lease=60.0, evaluate_versions=1)
CAN = sorted(n for n, a in ob.ALGORITHMS.items() if n in OPTIONS or n in ("fedavg",))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)  # what Flower sets in a process of its own
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    before, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(before)
    torch.set_rng_state(state)


@pytest.fixture(scope="module")
def digits() -> tuple[list[Dataset], Dataset]:
    source = ob.load("digits", samples=400, test_samples=200)
    return [source.train.subset(p) for p in np.array_split(np.arange(400), SITES)], source.test


def grid_of(data: list[Dataset]) -> FakeGrid:
    app = client_app(lambda context: data[int(context.node_config["partition-id"])])
    speeds = [4.0, 5.0, 6.5, 9.0, 14.0]
    return FakeGrid(FakeNode(100 + i, app, {"partition-id": i}, speeds[i]) for i in range(len(data)))


def serve_on(
    grid: FakeGrid, algorithm: ob.Algorithm, test: Dataset | None, directory: Path, terms: Terms = TERMS,
) -> str:  # fmt: skip
    """`serve`, on the grid's own time."""
    made = Federation.__init__

    def on_time(self: Federation, *args: Any) -> None:
        made(self, *args, now=grid.now, sleep=grid.sleep)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "__init__", on_time)
        return serve(
            grid, algorithm, LogisticSpec(), TRAINING, directory, terms=terms, test=test, seed=3,
            sample_shape=(1, 8, 8), classes=10, pace=Pace(poll=0.5),
        )  # fmt: skip


def check_run(directory: Path, algorithm: ob.Algorithm) -> ob.RunRecord:
    record = ob.read_run(directory)
    assert record.status == "finished"
    assert replay(record, algorithm).difference is None
    rows = list(record.rows())
    ended = [row.task for row in rows if row.name in ("arrived", "lost")]
    assert len(ended) == len(set(ended))
    assert record.meta["summary"]["tasks"] == sum(row.name == "arrived" for row in rows)
    return record


@pytest.mark.parametrize("name", CAN)
def test_every_algorithm_that_needs_no_radio(name: str, digits: Any, tmp_path: Path) -> None:
    data, test = digits
    algorithm = ob.ALGORITHMS[name](**OPTIONS.get(name, {}))
    grid = grid_of(data)
    assert serve_on(grid, algorithm, test, tmp_path / "run") == "reached 40 client tasks"
    record = check_run(tmp_path / "run", algorithm)
    first, last = record.evaluations()[0], record.evaluations()[-1]
    assert last.version == record.meta["summary"]["versions"]
    assert first.accuracy is not None
    assert last.accuracy is not None
    assert last.accuracy > first.accuracy + 0.2
    assert record.meta["rejected"] == {}
