"""Ringleader ASGD: asynchronous SGD for different data (Maranjyan, Richtárik, ICLR 2026).

The server works in rounds, each with a table of the clients' mean updates. In the first phase, updates enter
the table, and their clients go on from the same model, until every client has one. In the second phase n
versions are made, one for each client:

    w := w + γ (1/n) Σ_i mean_i

The first is that of the client that came last in the first phase. Each other client's next update, of the old
model, enters its mean before its version. Clients whose version has been made go on from the new models, and
what they send enters the table of the next round. So every client counts alike in every version.
"""

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Count, Epochs, ServerRate, Steps
from offbeat.algorithms.schedules import train
from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.algorithm import Algorithm
from offbeat.core.buffers import Buffers
from offbeat.core.commands import Aggregate, Command, Drop
from offbeat.core.events import Arrived, ClientId, Event, Left, TaskId
from offbeat.core.features import Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.programme import Programme, programme
from offbeat.core.schedule import Schedule, View
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain

__all__ = ["RoundTable", "TableRounds", "ringleader"]

Most = Annotated[
    Count | None, Field(description="most updates of a client that wait for a version; None means no limit")
]
FULL = "its client has {most} updates in the table of the round"


@dataclass
class TableRound:
    """The round at hand."""

    number: int = 1
    # The updates in the table of the first phase, by client.
    table: dict[ClientId, list[TaskId]] = field(default_factory=dict)
    # The clients whose version is still to be made. None means the first phase.
    need: set[ClientId] | None = None
    # The updates in the table of the next round.
    early: dict[ClientId, list[TaskId]] = field(default_factory=dict)


@checked_dataclass
class TableRounds(Schedule):
    """Rounds of two phases: updates of everybody are collected, then each client's next one makes a version.

    All clients train all the time. `most` bounds how many updates of a client wait; more are dropped. A
    client that leaves is not waited for; its updates in the table count in the round.
    """

    programme: Programme
    most: Most = None
    snapshots = True

    def initial(self) -> TableRound:
        """No update has arrived."""
        return TableRound()

    def on(self, event: Event, state: TableRound, view: View) -> Iterator[Command]:
        """Enter an update into a table, or make its client's version; then every idle client trains."""
        match event:
            case Arrived() if state.need is not None and event.client in state.need:
                state.need.discard(event.client)
                yield Aggregate((event.task,), {"round": state.number})
            case Arrived():
                yield from self._enter(event, state.table if state.need is None else state.early)
            case Left() if state.need is not None:
                state.need.discard(event.client)
        table = state.table if state.need is None else {}
        if table and len(table) >= len(view.fleet) and all(client in table for client in view.fleet):
            tasks = tuple(task for own in table.values() for task in own)
            yield Aggregate(tasks, {"round": state.number, "first": True})
            # Where a client that left was the last one, nobody's version has been made.
            served = {event.client} if isinstance(event, Arrived) else set()
            state.table, state.need = {}, {client for client in view.fleet if client not in served}
        if state.need is not None and not state.need:
            state.number, state.table, state.need, state.early = state.number + 1, state.early, None, {}
        for client in view.sample_idle(len(view.fleet)):
            yield train(client, self.programme, view)

    def _enter(self, event: Arrived, table: dict[ClientId, list[TaskId]]) -> Iterator[Command]:
        own = table.setdefault(event.client, [])
        if self.most is not None and len(own) >= self.most:
            yield Drop(event.task, FULL.format(most=self.most))
        else:
            own.append(event.task)


@checked_dataclass
class RoundTable(Aggregator):
    """w := w + scale · (1/n) Σ_i mean_i over the table of the round.

    The updates of a round's first version fill the table. Each later one enters the mean of its client:
    mean_i := mean_i + (Δ − mean_i) / b_i, where b_i counts client i's updates with it. The server keeps the
    sum of the means in float64, and the mean of each client whose version is still to be made.
    """

    scale: ServerRate = 1.0
    requires = frozenset({Feature.SINGLE_UPDATES})
    # Summed changes could take a running variance below 0.
    buffers: ClassVar[Buffers] = "mean"

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """The mean of the clients' means."""
        first, number = updates[0].note.get("first", False), updates[0].note.get("round", 1)
        if first or "round" not in memory or int(memory["round"]) != number:
            # The first version may be missing: the guard has skipped it, or the run was rolled back.
            memory.clear()
        before = memory.get("sum")
        total = torch.zeros_like(model.values, dtype=torch.float64) if before is None else before.clone()
        clients = int(memory["clients"]) if "clients" in memory else 0
        for update in updates:
            mean, count = f"mean {update.task.client}", f"count {update.task.client}"
            known = memory.get(mean)
            clients += known is None
            b = int(memory[count]) + 1 if known is not None else 1
            change = update.delta if known is None else (update.delta - known) / b
            total += change
            memory[mean] = change.clone() if known is None else known + change
            memory[count] = torch.tensor(b)
        if not first:
            # The version of each of these clients is made now, and only the sum needs its mean.
            # Another schedule may bring two updates of one client.
            for client in {update.task.client for update in updates}:
                del memory[f"mean {client}"], memory[f"count {client}"]
        memory.update(sum=total, clients=torch.tensor(clients), round=torch.tensor(number))
        return (total * (self.scale / clients)).to(model.values.dtype)


@algorithm(
    paper="Maranjyan, Richtárik, Ringleader ASGD: The First Asynchronous SGD with Optimal Time Complexity "
    "under Data Heterogeneity, ICLR 2026",
    kind="asynchronous",
)
def ringleader(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    most: Most = None,
    server_lr: ServerRate = 1.0,
) -> Algorithm:
    """A table of all clients' updates is filled, then each client's next update makes a version of all.

    w := w + γ (1/n) Σ_i mean_i over the n clients, where mean_i is the mean of client i's updates in the
    round; `server_lr` is γ. For clients of different data: each counts alike in every version.
    """
    return Algorithm(
        schedule=TableRounds(programme(steps, epochs), most),
        aggregator=RoundTable(server_lr),
        objective=Plain(),
    )
