"""Evaluations as a run of MLflow."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, ClassVar

from filelock import FileLock

from offbeat.callbacks.callback import LiveRun
from offbeat.callbacks.tracker import (
    Ending,
    RunTracker,
    best_points,
    flat,
    keep_id,
    kept_id,
    legal,
    points,
    recipe_text,
    run_name,
    settings,
)
from offbeat.core.errors import RunError
from offbeat.core.extras import requires_extra
from offbeat.core.validation import checked_dataclass
from offbeat.runs.schema import Metric

FILE = "mlflow-run-id"
STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
# Parameters, tags or metrics in one request. MLflow takes no more parameters.
BATCH = 100


@checked_dataclass
class MLflowTracker(RunTracker):
    """A run of MLflow for each run: the step is the version, time since the start the run's clock.

    The file mlflow-run-id in the run's directory has the identifier of MLflow's run. A resumed run continues
    MLflow's run and logs the missing points, so each evaluation is one point of each metric.

    Attributes:
        experiment: MLflow's experiment, which is created if there is none.
        tracking_uri: Address of MLflow's runs, such as http://localhost:5000 or sqlite:///mlflow.db. None
            means the environment variable MLFLOW_TRACKING_URI, else MLflow's default.
    """

    library: ClassVar[str] = "mlflow"
    experiment: str = "offbeat"
    tracking_uri: str | None = None

    def open(self, run: LiveRun) -> "RunOfMLflow":
        return RunOfMLflow(self.experiment, self.tracking_uri, run)


class RunOfMLflow:
    """A run of MLflow that is being logged; arguments as of `MLflowTracker`."""

    def __init__(self, experiment: str, tracking_uri: str | None, run: LiveRun) -> None:
        with requires_extra("mlflow"):
            from mlflow import MlflowClient, get_tracking_uri

            with _first_use(tracking_uri := tracking_uri or get_tracking_uri()):
                self._client = MlflowClient(tracking_uri=tracking_uri)
                self._client.get_experiment_by_name(experiment)
        known = kept_id(run, FILE)
        mlflow_run = self._find(known, run) if known else self._create(experiment, run)
        self._id: str = mlflow_run.info.run_id
        self._begun: int = mlflow_run.info.start_time
        self._logged = {
            (name, point.step)
            for name in mlflow_run.data.metrics
            for point in self._client.get_metric_history(self._id, name)
        }
        wanted = {legal(name): str(value) for name, value in flat(settings(run)).items()}
        self._log_params(
            {name: value for name, value in wanted.items() if name not in mlflow_run.data.params}
        )
        if (text := recipe_text(run)) is not None:
            self._client.log_text(self._id, text, "recipe.yaml")
        self._log_metrics(run.past)

    def log(self, metrics: Metric) -> None:
        """Log an evaluation, but for the points that are there already."""
        self._log_metrics([metrics])

    def end(self, ending: Ending) -> None:
        """Log the best values and why the run ended, and set MLflow's status."""
        from mlflow.entities import Metric as Point

        now = int(time.time() * 1000)
        self._log([Point(name, value, now, 0) for name, value in best_points(ending).items()])
        self._client.set_tag(self._id, "stop_reason", ending.reason)
        self._client.set_terminated(self._id, STATUS[ending.status])

    def _create(self, experiment: str, run: LiveRun) -> Any:
        from mlflow.exceptions import MlflowException

        # The experiment may exist, or another run creates it at this moment.
        with suppress(MlflowException):
            self._client.create_experiment(experiment)
        found: Any = self._client.get_experiment_by_name(experiment)
        tags = {"label": run.label, "seed": str(run.seed)}
        created = self._client.create_run(found.experiment_id, run_name=run_name(run), tags=tags)
        keep_id(run, FILE, created.info.run_id)
        return created

    def _find(self, run_id: str, run: LiveRun) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            self._client.update_run(run_id, status="RUNNING")
            return self._client.get_run(run_id)
        except MlflowException as error:
            raise RunError(
                f"MLflow's run {run_id} of {run.directory} is not at {self._client.tracking_uri}: give its "
                f"tracking_uri, or delete the file {FILE} there to log a new one ({error})"
            ) from None

    def _log_params(self, params: dict[str, str]) -> None:
        from mlflow.entities import Param

        wanted = [Param(name, value) for name, value in params.items()]
        for first in range(0, len(wanted), BATCH):
            self._client.log_batch(self._id, params=wanted[first : first + BATCH])

    def _log_metrics(self, evaluations: Iterable[Metric]) -> None:
        from mlflow.entities import Metric as Point

        new = {
            (name, metrics.version): Point(name, value, self._begun + int(1000 * metrics.t), metrics.version)
            for metrics in evaluations
            for name, value in points(metrics).items()
            if (name, metrics.version) not in self._logged
        }
        self._log(list(new.values()))
        self._logged |= new.keys()

    def _log(self, new: list[Any]) -> None:
        for first in range(0, len(new), BATCH):
            self._client.log_batch(self._id, metrics=new[first : first + BATCH])


def _first_use(tracking_uri: str) -> AbstractContextManager[object]:
    """A lock of a database file, whose tables MLflow does not let two processes create at the same time."""
    scheme, _, path = tracking_uri.partition(":///")
    return FileLock(f"{path.partition('?')[0]}.lock") if scheme == "sqlite" else nullcontext()
