"""FedAvg with a deadline: a round is closed `seconds` after it began, and who is late is dropped.

Rounds with a reporting window, as in Bonawitz et al., "Towards Federated Learning at Scale: System
Design", MLSys 2019, Section 2. Our readings: a round that has no update at its deadline lasts until
its first one, and a client that is still training when its round is closed finishes, is dropped, and
can then be chosen again.

    python examples/deadline.py
"""

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

import offbeat as ob
from offbeat import parts as p

Seconds = Annotated[p.Positive, Field(description="length of a round in seconds")]
TIMER = "deadline"


@dataclass
class Round:
    """The round at hand; `overdue` once its deadline has passed without any update."""

    expected: set[p.ClientId] = field(default_factory=set)
    arrived: list[p.TaskId] = field(default_factory=list)
    overdue: bool = False


@p.checked_dataclass
class DeadlineRounds(p.Schedule):
    """Sample free clients, wait for all of them or for the deadline, aggregate, repeat."""

    programme: p.Programme
    seconds: Seconds
    concurrency: p.Concurrency = None

    def initial(self) -> Round:
        """No round yet."""
        return Round()

    def on(self, event: p.Event, state: Round, view: p.View) -> Iterator[p.Command]:
        """Collect the round's updates, drop those of earlier rounds, and close the round in time."""
        open_before = bool(state.expected)
        match event:
            case p.Arrived() if event.client in state.expected:
                state.expected.discard(event.client)
                state.arrived.append(event.task)
            case p.Arrived():
                yield p.Drop(event.task, "after the deadline")
            case p.Lost() | p.Left():
                state.expected.discard(event.client)
            case p.Timer():
                state.overdue = True
        if not state.expected or (state.overdue and state.arrived):
            if open_before and not state.overdue:
                yield p.CancelTimer(TIMER)
            if state.arrived:
                yield p.Aggregate(tuple(state.arrived))
            yield from self._open(state, view)

    def _open(self, state: Round, view: p.View) -> Iterator[p.Command]:
        """A new round of free clients; with none free, the next event tries again."""
        state.arrived.clear()
        state.overdue = False
        free = (self.concurrency or len(view.fleet)) - view.running
        clients = view.sample_idle(free) if free > 0 else []
        state.expected = set(clients)
        if clients:
            yield p.SetTimer(TIMER, view.now + self.seconds)
        for client in clients:
            yield p.train(client, self.programme, view)


@p.algorithm(
    paper="Bonawitz et al., Towards Federated Learning at Scale, MLSys 2019, Section 2", kind="synchronous"
)
def fedavg_deadline(
    seconds: Seconds = 60.0,
    steps: p.Steps = None,
    epochs: p.Epochs = None,
    *,
    clients_per_round: p.Concurrency = None,
) -> ob.Algorithm:
    """Rounds that end at a deadline: who has answered is averaged, who is late is dropped.

    w := Σ n_i w_i / Σ n_i over the updates that arrived in time.
    """
    return ob.Algorithm(
        schedule=DeadlineRounds(p.programme(steps, epochs), seconds, clients_per_round),
        aggregator=p.MeanOfModels(),
        objective=p.Plain(),
    )


def main() -> None:
    """Ten clients, one of them fifty times slower than the fastest: with and without a deadline."""
    world = ob.World([0.2, 0.3, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 2.0, 10.0])
    for algorithm_ in (ob.fedavg(steps=20), fedavg_deadline(30, steps=20)):
        run = ob.simulate(algorithm_, world, until=ob.Until(seconds=3600))
        s, name = run.summary, algorithm_.name
        print(f"{name:16s} {s.versions:4d} versions, {s.aggregated:4d} updates, {s.dropped} dropped")


if __name__ == "__main__":
    main()
