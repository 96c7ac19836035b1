"""The server's side: a run of any algorithm as a Flower `ServerApp`."""

import logging
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid as FlowerGrid
from flwr.serverapp import ServerApp

from offbeat.core.errors import UsageError
from offbeat.core.features import Feature
from offbeat.core.privacy.refusals import Refusal
from offbeat.documents import user_path
from offbeat.experiment import Experiment
from offbeat.flower.server_loop import Federation, Grid, Polling
from offbeat.net.server.durable_store import CHECKPOINT_SECONDS
from offbeat.net.server.finished import FinishedRun
from offbeat.net.server.open_run import open_run
from offbeat.net.server.server_options import ServerOptions

log = logging.getLogger(__name__)


def serve(
    grid: Grid,
    experiment: Experiment,
    state: str | Path,
    *,
    options: ServerOptions | None = None,
    polling: Polling | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> str:
    """Serve a run on the nodes of a Flower grid until it ends. To be called in a `ServerApp`'s main function.

    Args:
        grid: Flower's grid.
        experiment: What the run is, as for `offbeat.net.serve`.
        state: The run's directory. Where it holds this run already, the run goes on.
        options: When the run begins, and what the server accepts. None means the defaults.
        polling: How often nodes are asked. None means the defaults.
        checkpoint_seconds: Seconds between two checkpoints, at most.

    Returns:
        Why the run ended.

    Raises:
        UsageError: What is asked cannot be served.
        RunError: The run fails.
    """
    algorithm, every = experiment.algorithm, experiment.evaluate
    if Feature.RECALL in algorithm.requires:
        raise UsageError(
            f"{algorithm.name} as it is set recalls clients in mid-task, and nothing reaches a Flower "
            "node in mid-task: turn that off (urgent = false), or use Offbeat's own server (offbeat serve)"
        )
    if Feature.CANCEL in algorithm.requires:
        raise UsageError(
            f"{algorithm.name} as it is set stops tasks before they are done, and nothing reaches a Flower "
            "node in mid-task: turn that off (stop = false, or late = drop), or use Offbeat's own server "
            "(offbeat serve)"
        )
    if every.at_clients:
        raise UsageError(
            f"evaluate.at = {every.at!r} is not allowed on Flower, whose nodes do one thing at a "
            "time: choose server, or use Offbeat's own server (offbeat serve)"
        )
    if experiment.privacy is not None or (experiment.recipe or {}).get("privacy") is not None:
        raise Refusal.FLOWER.error()
    opened = open_run(experiment, user_path(state), options or ServerOptions(), checkpoint_seconds)
    if isinstance(opened, FinishedRun):
        return opened.reason
    reason = Federation(grid, opened.coordinator, opened.store, opened.evaluate, polling or Polling()).run()
    log.info("the run has ended: %s", reason)
    return reason


def server_app(
    experiment: Callable[[], Experiment],
    state: str | Path,
    *,
    options: ServerOptions | None = None,
    polling: Polling | None = None,
) -> ServerApp:
    """A `ServerApp` that calls `serve`.

    Args:
        experiment: Makes the experiment, with the server's test data, when the app is run.
        state: The run's directory. A run's settings in Flower may name another one:
            `flwr run --run-config 'offbeat-state="DIR"'`.
        options: As for `serve`.
        polling: As for `serve`.
    """

    def main(grid: FlowerGrid, context: Context) -> None:
        directory = user_path(str(context.run_config.get("offbeat-state", state)))
        serve(grid, experiment(), directory, options=options, polling=polling)

    app = ServerApp()
    app.main()(main)
    return app
