"""Plays a simulated run's events to a coordinator, with sites that really train."""

from dataclasses import dataclass, field
from typing import Any

from offbeat.core.algorithm import Algorithm
from offbeat.core.events import TaskId
from offbeat.core.journal import Row
from offbeat.core.learner import LocalTask, TaskInputs
from offbeat.core.learner import MergePoint as Merging
from offbeat.core.model import Model
from offbeat.core.root import TrainRoot
from offbeat.net.messages import (
    FromServer,
    Leave,
    ModelRequest,
    ModelResponse,
    Register,
    TaskAssignment,
    TaskCancel,
    TaskFailed,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.effects import Effects
from offbeat.net.server.handlers import RunInfo
from offbeat.sim.result import Run
from tests.net.support import coordinator_from, terms_of

FOREVER = 1e12


def name_of(client: int) -> str:
    return f"site-{client}"


def rows_of(run: Run) -> list[Row]:
    columns = Row.__struct_fields__[:-1]
    rows = []
    for entry in run.journal:
        data = {k: v for k, v in entry.items() if k not in columns}
        rows.append(Row(*(entry[c] for c in columns), data or None))
    return rows


def coordinator_of(
    algorithm: Algorithm,
    initial: Model,
    clients: int,
    seed: int,
    train_root: TrainRoot | None = None,
    **options: Any,
) -> Coordinator:
    wanted = terms_of(clients=clients, **{"lease": FOREVER, "max_consecutive_failures": None, **options})
    return coordinator_from(algorithm, initial, wanted, RunInfo("run", {}), seed=seed, train_root=train_root)


@dataclass
class PlayedSite:
    """A site that does what it is told when the script says so."""

    client: int
    task: TaskAssignment | None = None
    fresh: ModelResponse | None = None
    asked: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    kept: dict[TaskId, dict[str, Any]] = field(default_factory=dict)
    said: list[FromServer] = field(default_factory=list)

    def hear(self, message: FromServer) -> None:
        self.said.append(message)
        match message:
            case TaskAssignment():
                self.task, self.fresh = message, None
            case ModelResponse(model=model) if model is not None:
                self.fresh = message
            case UpdateAck(accepted=True):
                self.state = self.kept.pop(message.task, self.state)
            case UpdateAck() | TaskCancel():
                self.kept.pop(message.task, None)

    def result(self, learner: Any, algorithm: Algorithm, steps: int) -> UpdateSubmission:
        t, fresh = self.task, self.fresh
        assert t is not None
        merging = Merging(self.asked, fresh.version, fresh.clock) if fresh else None
        task = LocalTask(t.task, self.client, t.base, steps, t.seed, t.lr_factor, merging)
        inputs = TaskInputs(self.state, fresh.model if fresh else None)
        r = learner.train(t.model, task, algorithm.objective, inputs)
        self.kept[t.task] = r.state
        return UpdateSubmission(t.task, steps, r.delta, r.integers, r.metrics, r.lr, r.shared)


@dataclass
class Play:
    """A coordinator, its sites, and the rows it has given."""

    algorithm: Algorithm
    learner: Any
    coordinator: Coordinator
    sites: dict[str, PlayedSite] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def event(self, row: Row) -> Effects:
        """Let a recorded event happen, as a site's message or the passing of time."""
        c, name, data = self.coordinator, name_of(row.client or 0), row.data or {}
        site = self.sites.setdefault(name, PlayedSite(row.client or 0))
        match row.name:
            case "joined":
                labels = tuple(data.get("labels", ()))
                c.receive(row.t, name, Register(data["samples"], data["steps_per_epoch"], labels))
            case "wants_model":
                site.asked = row.steps or 0
                c.receive(row.t, name, ModelRequest(row.task or 0, site.asked))
            case "arrived":
                c.receive(row.t, name, site.result(self.learner, self.algorithm, row.steps or 0))
            case "lost":
                c.receive(row.t, name, TaskFailed(row.task or 0, data["reason"]))
            case "left":
                c.receive(row.t, name, Leave(data["reason"]))
            case "timer":
                c.tick(row.t)
            case "begin":
                pass  # by itself, when all are there
        return c.take()

    def deliver(self, outcome: Effects) -> None:
        self.rows += outcome.rows
        for name, message in outcome.messages:
            self.sites[name].hear(message)
