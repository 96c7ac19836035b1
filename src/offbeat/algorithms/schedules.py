"""Schedules that several papers share."""

from collections.abc import Iterator
from dataclasses import field

from pydantic.dataclasses import dataclass

from offbeat.algorithms.option_types import Concurrency, Count
from offbeat.core.commands import Aggregate, Command, Train
from offbeat.core.events import Arrived, ClientId, Event, Left, Lost, TaskId
from offbeat.core.programme import Programme
from offbeat.core.schedule import Schedule, View
from offbeat.core.validation import checked_dataclass


def train(client: ClientId, programme: Programme, view: View) -> Train:
    """The command that trains a client for as many local steps as the programme gives it."""
    return Train(client, programme.steps_for(view.fleet.steps_per_epoch(client)))


@dataclass
class Round:
    """The current round: the clients that have not answered yet, and the updates that have arrived."""

    expected: set[ClientId] = field(default_factory=set)
    arrived: list[TaskId] = field(default_factory=list)


@checked_dataclass
class Rounds(Schedule):
    """Synchronous: sample `concurrency` clients (None means all), wait for all of them, aggregate, repeat.

    The server does not wait for a client that is lost or leaves. A round that no client survives changes
    nothing, and the next one starts at once.
    """

    programme: Programme
    concurrency: Concurrency = None
    snapshots = True

    @property
    def largest_aggregation(self) -> int | None:
        """The clients of a round."""
        return self.concurrency

    def initial(self) -> Round:
        """No round has begun."""
        return Round()

    def on(self, event: Event, state: Round, view: View) -> Iterator[Command]:
        """Collect the round's updates; the last one closes it."""
        match event:
            case Arrived():
                state.expected.discard(event.client)
                state.arrived.append(event.task)
            case Lost() | Left():
                state.expected.discard(event.client)
        if not state.expected:
            # The round is over, or no client was there to start one with.
            yield from self._next_round(state, view)

    def clients_of_round(self, view: View) -> int:
        """Number of clients that the next round asks, at most."""
        return self.concurrency or len(view.fleet)

    def _next_round(self, state: Round, view: View) -> Iterator[Command]:
        if state.arrived:
            yield Aggregate(tuple(state.arrived))
            state.arrived.clear()
        clients = view.sample_idle(self.clients_of_round(view))
        state.expected.update(clients)
        for client in clients:
            yield train(client, self.programme, view)


@checked_dataclass
class Buffered(Schedule):
    """Asynchronous: `concurrency` clients (None means all) train at once; `size` arrivals are aggregated.

    Each arrival frees a place, which an idle client, drawn at random, takes at once. With `size` = 1 every
    update is aggregated on its arrival.
    """

    programme: Programme
    size: Count = 1
    concurrency: Concurrency = None
    snapshots = True

    @property
    def largest_aggregation(self) -> int | None:
        """The buffer's size."""
        return self.size

    def initial(self) -> list[TaskId]:
        """An empty buffer."""
        return []

    def on(self, event: Event, state: list[TaskId], view: View) -> Iterator[Command]:
        """Buffer an arrival, aggregate a full buffer, and give every free place to an idle client."""
        if isinstance(event, Arrived):
            state.append(event.task)
            if len(state) == self.size:
                yield Aggregate(tuple(state))
                state.clear()
        free = (self.concurrency or len(view.fleet)) - view.running
        for client in view.sample_idle(free) if free > 0 else ():
            yield train(client, self.programme, view)
