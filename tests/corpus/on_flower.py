"""A run on Flower's nodes, in memory and on a clock that jumps: it can be interrupted, and served again."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

from flwr.supercore.task_identity import TaskIdentity

import offbeat as ob
from offbeat.data.dataset import Dataset
from offbeat.flower import Polling, client_app, serve
from offbeat.flower.server_loop import Federation
from offbeat.models.specs import LogisticSpec
from offbeat.net.server.server_learner import server_learner
from offbeat.runs.record import read_run
from tests.corpus.own import FEATURES, site_0, site_1, site_2, test_points
from tests.flower.fake_grid import FakeGrid, FakeNode

SITES, SPEEDS = (site_0, site_1, site_2), (4.0, 5.0, 9.0)


def algorithm() -> ob.Algorithm:
    """The run's algorithm."""
    return ob.fedbuff(2, steps=2)


def serve_on_flower(state: Path, arrivals: int | None = None, tasks: int = 24) -> str:
    """Serve the run on three nodes, or go on with it; returns why it ended.

    Args:
        state: The run's directory.
        arrivals: Updates after which it is interrupted. None means that it is not.
        tasks: Client tasks after which the run ends.

    Raises:
        KeyboardInterrupt: It was interrupted.
    """
    app = client_app(lambda context: Dataset(*SITES[int(context.node_config["partition-id"])](), 2))
    nodes = (FakeNode(100 + i, app, {"partition-id": i}, seconds) for i, seconds in enumerate(SPEEDS))
    grid, made = FakeGrid(nodes), Federation.__init__

    def on_its_time(self: Federation, *given: Any) -> None:
        made(self, *given, now=grid.now, sleep=grid.sleep)

    def interrupt() -> None:
        if arrivals is not None and len(read_run(state).entries("arrived")) >= arrivals:
            raise KeyboardInterrupt

    grid.each_sleep = interrupt
    learner = server_learner(LogisticSpec(), ob.Training(lr=0.1, batch_size=8), test_points(), (FEATURES,), 2)
    experiment = ob.Experiment(algorithm(), learner, 7, ob.Until(tasks=tasks), ob.Every(versions=2))
    options = ob.net.ServerOptions(clients=len(SITES))
    named = dict.fromkeys(("_run_id", "_node_id", "_task_id"), 1)  # Flower sets them in its own processes
    with patch.object(Federation, "__init__", on_its_time), patch.multiple(TaskIdentity, **named):
        return serve(grid, experiment, state, options=options, polling=Polling(poll=0.5))
