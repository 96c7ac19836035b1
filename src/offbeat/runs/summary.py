"""A run in numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offbeat.core.events import Metrics
from offbeat.core.metric_names import numbers
from offbeat.runs.evaluation_log import EvaluationLog

if TYPE_CHECKING:
    from offbeat.core.engine import Engine


@dataclass(frozen=True)
class Summary:
    """A run in numbers.

    `dispatched` = aggregated + dropped + lost + `held` + `running`.

    Attributes:
        seconds: Seconds of the run's clock.
        versions: Versions made.
        tasks: Updates that arrived.
        dispatched: Tasks given to clients.
        aggregated: Updates aggregated.
        dropped: Updates dropped, and tasks stopped before their update arrived.
        lost: Tasks that ended without an update.
        held: Updates that arrived and wait.
        running: Tasks in training.
        mean_staleness: Mean staleness of the updates that arrived, in versions.
        bytes_up: Bytes sent by clients.
        bytes_down: Bytes sent to clients.
        accuracy: Accuracy of the last evaluation, in [0, 1].
        best_accuracy: The highest accuracy.
        loss: Loss of the last evaluation.
        metrics: All metrics of the last evaluation by name; NaN means undefined.
        best_metrics: The best finite value of each metric.
        privacy: In a run with noise, what the busiest client has spent (mu, epsilon, epsilon_strict, and its
            number of releases), and the number of clients whose budget is spent. None without noise.
        client_state_bytes: Bytes of the clients' states at the end.
        server_state_bytes: Bytes at the end of the memories of aggregator and server steps, and of a vector
            that travels with the model.
    """

    seconds: float
    versions: int
    tasks: int
    dispatched: int
    aggregated: int
    dropped: int
    lost: int
    held: int
    running: int
    mean_staleness: float
    bytes_up: int
    bytes_down: int
    accuracy: float | None
    best_accuracy: float | None
    loss: float | None
    client_state_bytes: int = 0
    server_state_bytes: int = 0
    metrics: Metrics = field(default_factory=dict)
    best_metrics: Metrics = field(default_factory=dict)
    privacy: Metrics | None = None

    @classmethod
    def read(cls, recorded: Mapping[str, Any]) -> "Summary":
        """The summary in a run's record."""
        return cls(**{**recorded, "metrics": numbers(recorded["metrics"])})


def summary_of(engine: "Engine", seconds: float, evaluations: EvaluationLog) -> dict[str, Any]:
    """Numbers of a run that every driver has, by the names of `Summary`.

    Args:
        engine: The run's engine, with its tensors.
        seconds: Seconds of the run's clock.
        evaluations: What was evaluated.
    """
    server, tensors = engine.server, engine.tensors
    arrived = server.counts["arrived"]
    return {
        "seconds": seconds,
        "versions": engine.versions,
        "tasks": arrived,
        "dispatched": server.dispatched,
        "aggregated": server.counts["aggregated"],
        "dropped": server.counts["dropped"] + server.counts["discarded"],
        "lost": server.counts["lost"],
        "held": len(server.held),
        "running": server.running,
        "mean_staleness": engine.staleness_sum / arrived if arrived else 0.0,
        "bytes_up": engine.bytes_up,
        "bytes_down": engine.bytes_down,
        "accuracy": evaluations.last_metrics.get("accuracy"),
        "best_accuracy": evaluations.best_metrics.get("accuracy"),
        "loss": evaluations.last_metrics.get("loss"),
        "metrics": evaluations.last_metrics,
        "best_metrics": evaluations.best_metrics,
        "server_state_bytes": tensors.nbytes if tensors is not None else 0,
        "privacy": engine.ledger.summary() if engine.ledger is not None else None,
    }
