"""The server's side: a run of any algorithm as a Flower `ServerApp`."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid as FlowerGrid
from flwr.serverapp import ServerApp

from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import UsageError
from offbeat.core.features import Feature
from offbeat.core.privacy.refusals import Refusal
from offbeat.experiment import Experiment
from offbeat.flower.server_loop import Federation, Grid, Polling
from offbeat.local.training import Training
from offbeat.net.server.durable_store import CHECKPOINT_SECONDS
from offbeat.net.server.learner import Trained, server_learner
from offbeat.net.server.options import ServerOptions
from offbeat.net.server.serve import FinishedRun, open_run
from offbeat.runs.initial import Initial

log = logging.getLogger(__name__)


def serve(
    grid: Grid,
    algorithm: Algorithm,
    model: Trained,
    training: Training | None,
    state: str | Path,
    *,
    options: ServerOptions | None = None,
    seed: int = 0,
    sample_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    test: Any = None,
    initial: Initial | None = None,
    label: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    polling: Polling | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> str:
    """Serve a run on the nodes of a Flower grid until it ends; returns why it ended.

    All but `grid` and `polling` is as for `offbeat.net.serve`: `state` is the run's directory, and where it
    holds this run already, the run goes on. To be called in a `ServerApp`'s main function.

    Raises `UsageError` for what cannot be served as asked, `RunError` for a run that fails.
    """
    if Feature.RECALL in algorithm.requires:
        raise UsageError(
            f"{algorithm.name} as it is set recalls clients in mid-task, and nothing reaches a Flower "
            "node in mid-task: turn that off (urgent = false), or use Offbeat's own server (offbeat serve)"
        )
    options = options or ServerOptions()
    if options.evaluate.at_clients:
        raise UsageError(
            f"evaluate.at = {options.evaluate.at!r} is not allowed on Flower, whose nodes do one thing at a "
            "time: choose server, or use Offbeat's own server (offbeat serve)"
        )
    if recipe is not None and recipe.get("privacy") is not None:
        raise Refusal.FLOWER.error()
    learner = server_learner(model, training, test, sample_shape, classes)
    experiment = Experiment(
        algorithm, learner, seed, options.until, options.evaluate, options.guard, None, initial, label, recipe
    )
    opened = open_run(experiment, Path(state), options, checkpoint_seconds)
    if isinstance(opened, FinishedRun):
        return opened.reason
    reason = Federation(grid, opened.coordinator, opened.store, opened.evaluate, polling or Polling()).run()
    log.info("the run has ended: %s", reason)
    return reason


def server_app(
    algorithm: Algorithm,
    model: Trained,
    training: Training | None,
    state: str | Path,
    *,
    options: ServerOptions | None = None,
    seed: int = 0,
    sample_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    test: Callable[[], Any] | None = None,
    initial: Initial | None = None,
    label: str | None = None,
    polling: Polling | None = None,
) -> ServerApp:
    """A `ServerApp` that does what `serve` does; `test` gives the test data, when they are needed.

    A run's settings in Flower may name another directory: `flwr run --run-config 'offbeat-state="DIR"'`.
    """

    def main(grid: FlowerGrid, context: Context) -> None:
        directory = Path(str(context.run_config.get("offbeat-state", state)))
        serve(
            grid, algorithm, model, training, directory,
            options=options, seed=seed, sample_shape=sample_shape, classes=classes,
            test=test() if test is not None else None, initial=initial, label=label, polling=polling,
        )  # fmt: skip

    app = ServerApp()
    app.main()(main)
    return app
