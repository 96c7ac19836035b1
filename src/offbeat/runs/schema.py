"""Schema of a run's database, `run.db`.

Values in `meta` and the `data` columns are JSON. Times `t` are seconds of the run's own clock.
"""

from typing import Any, Literal, NamedTuple

from offbeat.core.events import ClientResults
from offbeat.core.metric_names import finite
from offbeat.core.number_types import NumberType

FORMAT = 1
"""The format of a run's directory."""
DATABASE = "run.db"
MODEL = "model.safetensors"
BEST = "best.safetensors"
# The best model has this name until its evaluation is durable.
NEW_BEST = "best.new.safetensors"
LOCK = "lock"
SITE_FILES = ("client.safetensors", "update.safetensors")
"""Names of the files of a site's state."""
ModelChoice = Literal["final", "best"]
"""The model at the end of a run, or its best version by the metric of `evaluate.keep_best`."""

SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE clients(client INTEGER PRIMARY KEY, samples INTEGER NOT NULL, labels TEXT);
CREATE TABLE journal(
    seq INTEGER PRIMARY KEY, t REAL NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    client INTEGER, task INTEGER, base INTEGER, version INTEGER, staleness INTEGER, steps INTEGER,
    data TEXT
);
CREATE TABLE metrics(
    seq INTEGER PRIMARY KEY, t REAL NOT NULL, version INTEGER NOT NULL, tasks INTEGER NOT NULL,
    bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL, loss REAL, accuracy REAL, data TEXT
);
CREATE TABLE client_metrics(
    evaluation INTEGER NOT NULL, client INTEGER NOT NULL, samples INTEGER NOT NULL, data TEXT NOT NULL,
    PRIMARY KEY (evaluation, client)
) WITHOUT ROWID;
CREATE TABLE checkpoints(
    id INTEGER PRIMARY KEY CHECK (id = 1), journal INTEGER NOT NULL, metrics INTEGER NOT NULL,
    version INTEGER NOT NULL, data TEXT NOT NULL
);
CREATE TABLE sessions(started TEXT NOT NULL, wall_seconds REAL NOT NULL, events INTEGER NOT NULL);
"""


class Metric(NamedTuple):
    """One evaluation of the global model.

    Attributes:
        seq: Number of the evaluation, from 0.
        t: Seconds of the run's clock.
        version: Version of the model.
        tasks: Updates that have arrived so far.
        bytes_up: Bytes that clients have sent so far.
        bytes_down: Bytes that clients have been sent so far.
        loss: Mean loss. None means not measured.
        accuracy: Accuracy in [0, 1]. None means not measured.
        data: Further metrics by name; NaN means undefined.
    """

    seq: int
    t: float
    version: int
    tasks: int
    bytes_up: int
    bytes_down: int
    loss: float | None
    accuracy: float | None
    data: dict[str, Any] | None = None

    @property
    def found(self) -> dict[str, Any]:
        """Metrics by name: "loss" and "accuracy" where there are any, and further ones."""
        named = {"loss": self.loss, "accuracy": self.accuracy}
        return {name: value for name, value in named.items() if value is not None} | (self.data or {})


class ClientMetric(NamedTuple):
    """What one client has found in an evaluation.

    Attributes:
        evaluation: Number of the evaluation, `Metric.seq`.
        client: The client.
        samples: Number of samples that it holds out.
        data: Its metrics by name; None where one is NaN or infinite.
    """

    evaluation: int
    client: int
    samples: int
    data: dict[str, float | None]

    def flat(self, evaluation: Metric) -> dict[str, Any]:
        """One flat mapping, with time and version of its evaluation."""
        where = {"evaluation": self.evaluation, "t": evaluation.t, "version": evaluation.version}
        return {**where, "client": self.client, "samples": self.samples, **self.data}


def client_metrics(evaluation: int, results: ClientResults) -> list[ClientMetric]:
    """The rows of an evaluation, by client."""
    return [
        ClientMetric(evaluation, client, samples, {name: finite(value) for name, value in metrics.items()})
        for client, (samples, metrics) in sorted(results.items())
        if samples
    ]


def version_file(version: int, number: NumberType = "float32") -> str:
    """Name of the file of a version, or of what clients were sent of it as another type of number."""
    return f"version-{version}{'' if number == 'float32' else f'-{number}'}.safetensors"


def update_file(task: int) -> str:
    """Name of the file of a held update."""
    return f"update-{task}.safetensors"


def cached_file(task: int) -> str:
    """Name of the file of a client's last update, which the server's cache keeps."""
    return f"cached-{task}.safetensors"
