"""The result of a simulation."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from offbeat.core.errors import has_diverged
from offbeat.core.events import ClientId
from offbeat.core.journal import Row, expand
from offbeat.core.model import Model, Tensors
from offbeat.runs.best import BestModel, read_best
from offbeat.runs.client_states import client_model
from offbeat.runs.presentation import Presentation, RunFacts
from offbeat.runs.record import flat
from offbeat.runs.schema import ClientMetric, Metric
from offbeat.runs.summary import Summary
from offbeat.sim.packed_rows import PackedRows


class RunRows(RunFacts, Protocol):
    """Where a run is read from: memory (`MemoryRecorder`) or a directory (`RunRecord`)."""

    def evaluations(self) -> list[Metric]:
        """The evaluations in order."""

    def client_metrics(self, evaluation: int | None = None) -> list[dict[str, Any]]:
        """Metrics of the clients; `evaluation` is the number of one evaluation, None means all."""


@dataclass(frozen=True, repr=False)
class Run(Presentation):
    """A finished simulation.

    These members are the same as those of a `RunRecord`: `journal`, `metrics`, `rows`, `evaluations`,
    `entries`, `client_metrics`, `plot`, `to_pandas`.

    Attributes:
        model: The final model.
        summary: The run in numbers.
        stop_reason: Why the run ended.
        source: Source of the journal and the evaluations.
        path: The run's directory, if it has one. The journal of such a run is read on access.
        own: In a run without a directory, each client's own tensors of the model.
    """

    model: Model
    summary: Summary
    stop_reason: str
    source: RunRows
    path: Path | None = None
    own: Mapping[ClientId, Tensors] = field(default_factory=dict)

    def client_model(self, client: ClientId) -> Tensors:
        """A client's model by tensor names, as `nn.Module.load_state_dict` takes them.

        The final model with the tensors that are the client's own: personal ones, and buffers that are not
        sent. A client that has finished no task has none. Frozen parameters are not in it.
        """
        if self.path is not None:
            return client_model(self.path, client)
        return self.model.state_dict() | self.own.get(client, {})

    @property
    def label(self) -> str:
        """Name of the run in tables and figures."""
        return self.source.label

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.source.seed

    @property
    def diverged(self) -> bool:
        """Whether the guard has ended the run because its training diverged."""
        return has_diverged(self.stop_reason)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.source.clients

    @property
    def higher_is_better(self) -> Mapping[str, bool]:
        """Whether more is better of the metrics of which the run's learner said so, by name."""
        return self.source.higher_is_better

    def client_names(self) -> dict[int, str]:
        """Names of the clients by number; empty where they have numbers only."""
        return self.source.client_names()

    @property
    def duration(self) -> float:
        """Seconds of the run's clock."""
        return self.summary.seconds

    @cached_property
    def best(self) -> Model | None:
        """The version with the best value of the metric that `Every.keep_best` names; None where it names
        none, or none was finite."""
        if isinstance(self.source, MemoryRecorder):
            return self.source.best.model if self.source.best is not None else None
        return read_best(self.path, self.model.layout) if self.path is not None else None

    @cached_property
    def journal(self) -> list[dict[str, Any]]:
        """Flat mappings: `seq`, `t`, `kind`, `name`, `client`, `task`, `base`, `version`, `staleness`,
        `steps`, and what belongs to the kind."""
        return [row.flat() for row in self.rows()]

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """Flat mappings: `t`, `version`, `tasks`, `bytes_up`, `bytes_down`, `loss`, `accuracy`, …"""
        return [flat(metric) for metric in self.evaluations()]

    def rows(self, kind: str | None = None) -> Iterator[Row]:
        """Journal rows one after another; `kind` is "event" or "command", None means both."""
        return self.source.rows(kind)

    def evaluations(self) -> list[Metric]:
        """The evaluations in order."""
        return self.source.evaluations()

    def client_metrics(self, evaluation: int | None = None) -> list[dict[str, Any]]:
        """Metrics of the clients in evaluations there: a flat mapping for each evaluation and client.

        `evaluation`, `t`, `version`, `client`, `samples`, and the client's metrics by name.

        Args:
            evaluation: Number of an evaluation, `Metric.seq`. None means all.
        """
        return self.source.client_metrics(evaluation)

    def entries(self, name: str) -> list[dict[str, Any]]:
        """The journal's entries of one name, such as "arrived" or "aggregate"."""
        return [entry for entry in self.journal if entry["name"] == name]


@dataclass
class MemoryRecorder:
    """Keeps a run's rows in memory, as they were written in `written`, and its evaluations in `measured`.

    What the clients have found is in `measured_at_clients`; `best` keeps the best model, if one is kept.
    """

    label: str = ""
    seed: int = 0
    clients: int = 0
    higher_is_better: Mapping[str, bool] = field(default_factory=dict)
    names: Mapping[ClientId, str] = field(default_factory=dict)
    written: PackedRows | list[Row] = field(default_factory=PackedRows)
    measured: list[Metric] = field(default_factory=list)
    measured_at_clients: list[ClientMetric] = field(default_factory=list)
    best: BestModel | None = None

    @property
    def row(self) -> Callable[[Row], None]:
        """Keeps a row."""
        return self.written.append

    def metric(self, metric: Metric, clients: Iterable[ClientMetric] = ()) -> None:
        """Keep an evaluation, with the clients' metrics."""
        self.measured.append(metric)
        self.measured_at_clients.extend(clients)

    def rows(self, kind: str | None = None) -> Iterator[Row]:
        """Every row, those included that one stands for; `kind` is "event" or "command", None means both."""
        every = chain.from_iterable(map(expand, self.written))
        return (row for row in every if kind in (None, row.kind))

    def client_names(self) -> dict[int, str]:
        """Names of the clients by number; empty where they have numbers only."""
        return dict(self.names)

    def evaluations(self) -> list[Metric]:
        """The evaluations in order."""
        return list(self.measured)

    def client_metrics(self, evaluation: int | None = None) -> list[dict[str, Any]]:
        """Metrics of the clients; `evaluation` is the number of one evaluation, None means all."""
        wanted = (row for row in self.measured_at_clients if evaluation in (None, row.evaluation))
        return [row.flat(self.measured[row.evaluation]) for row in wanted]
