"""The first k of n: synchronous rounds that close with the k-th update (m-synchronous SGD).

Begunov and Tyurin analyse the method; these rules for a federation are ours:

- a round asks the clients that are free, and k is a share of these and of those that still train for an
  earlier round; if fewer than k are free, the round waits for all that it asked;
- the clients that a round does not wait for finish their tasks, unless these are stopped, and the next round
  that begins after that asks them again;
- a late update is dropped, or aggregated with the round in which it arrives, or its task is stopped when its
  round closes. It never counts toward k;
- a round of which too few clients remain closes with what there is, like a round of FedAvg.
"""

from collections.abc import Iterator
from math import ceil
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from offbeat.algorithms.aggregators import MeanOfModels
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Count, Epochs, Positive, Steps
from offbeat.algorithms.schedules import Round, train
from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Aggregate, CancelTimer, Command, Discard, Drop, SetTimer
from offbeat.core.errors import UsageError
from offbeat.core.events import Arrived, Event, Left, Lost, TaskId, Timer
from offbeat.core.features import NONE, Feature
from offbeat.core.programme import Programme, programme
from offbeat.core.schedule import Schedule, View
from offbeat.core.types import PositiveShare
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain

__all__ = ["FirstRounds", "first_of"]

RoundShare = Annotated[
    PositiveShare, Field(description="share of the clients whose updates close a round, rounded up")
]
Closing = Annotated[Count | None, Field(description="updates k that close a round; None means by the share")]
ClientsPerRound = Annotated[
    Count | None, Field(description="clients that a round asks; None means all that are free")
]
Late = Annotated[
    Literal["drop", "next", "stop"],
    Field(description="what becomes of a task that is not done when its round closes"),
]
Window = Annotated[
    Positive | None,
    Field(description="seconds after its first update in which a round closes; None: no limit"),
]
Least = Annotated[Count, Field(description="fewest updates with which the window closes a round")]
TIMER = "window"
LATE = "it arrived after its round"
CLOSED = "its round has closed"


@dataclass
class FirstRound(Round):
    """The current round. `arrived` also has the late updates that are aggregated with it."""

    # Its tasks have the numbers from `first` to below `end`.
    first: TaskId = 0
    end: TaskId = 0
    # Updates of its own that have arrived, and how many of them close it.
    own: int = 0
    closing: int = 0
    # Whether its window goes on.
    in_window: bool = False


@checked_dataclass
class FirstRounds(Schedule):
    """Synchronous: ask `clients_per_round` idle clients (None means all), close with k updates, repeat.

    k is `k`, or `share` of the clients that the round asked or that still train, rounded up, and at most of
    `clients_per_round`. With a `window`, a round also closes so many seconds after its first update, as soon
    as `least` are there.
    """

    programme: Programme
    share: RoundShare = 0.8
    k: Closing = None
    clients_per_round: ClientsPerRound = None
    late: Late = "drop"
    window: Window = None
    least: Least = 1
    snapshots = True

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.window is None and self.least > 1:
            raise ValueError(
                f"least = {self.least} with window = None is not allowed: least is for the end of a window; "
                "give window, or leave least out"
            )
        if self.clients_per_round is not None:
            self._check_round(self.clients_per_round, f"clients_per_round = {self.clients_per_round}")
        elif self.k is not None:
            self._check_round(self.k, f"k = {self.k}")
        return self

    def _check_round(self, clients: int, among: str) -> None:
        """Check k and `least` against the number of clients of a full round."""
        if self.k is not None and self.k > clients:
            raise ValueError(f"k = {self.k} is not allowed with {among}: choose at most {clients}")
        if self.least > (most := self.closes(clients)):
            raise ValueError(
                f"least = {self.least} is not allowed with {among}: {most} updates close a round; "
                f"choose at most {most}"
            )

    @property
    def requires(self) -> frozenset[Feature]:
        """Clients that can be told to stop, where late tasks are stopped."""
        return frozenset({Feature.CANCEL}) if self.late == "stop" else NONE

    @property
    def concurrency(self) -> int | None:
        """The clients that a round asks; those that are late with an earlier round's task also train."""
        return self.clients_per_round

    @property
    def largest_aggregation(self) -> int | None:
        """The updates that close a round, unless late ones count."""
        if self.late == "next":
            return None
        return self.k if self.clients_per_round is None else self.closes(self.clients_per_round)

    def check_clients(self, clients: int) -> None:
        """Check the number of clients at the beginning; k and `least` must fit it too."""
        super().check_clients(clients)
        try:
            self._check_round(self.clients_per_round or clients, f"{clients} clients")
        except ValueError as error:
            raise UsageError(str(error)) from None

    def closes(self, clients: int) -> int:
        """The number of updates that close a round of so many clients, at most all of them."""
        if self.k is not None:
            return min(self.k, clients)
        # Of floats, 0.07 · 100 is 7.000000000000001, which is not to be rounded up to 8.
        return min(clients, max(1, ceil(round(self.share * clients, 9))))

    def initial(self) -> FirstRound:
        """No round has begun."""
        return FirstRound()

    def on(self, event: Event, state: FirstRound, view: View) -> Iterator[Command]:
        """Collect the round's updates; the k-th one, or the end of the window, closes it."""
        match event:
            case Arrived() if state.first <= event.task < state.end:
                state.expected.discard(event.client)
                state.arrived.append(event.task)
                state.own += 1
                if state.own == 1 and self.window is not None:
                    state.in_window = True
                    yield SetTimer(TIMER, view.now + self.window)
            case Arrived() if self.late == "next":
                state.arrived.append(event.task)
            case Arrived():
                yield Drop(event.task, LATE)
            case Lost() | Left():
                state.expected.discard(event.client)
            case Timer() if event.timer == TIMER:
                state.in_window = False
                state.closing = min(state.closing, self.least)
        if state.own >= state.closing or not state.expected:
            # The round is over, or no client was there to start one with.
            yield from self._next_round(state, view)

    def _next_round(self, state: FirstRound, view: View) -> Iterator[Command]:
        if state.in_window:
            state.in_window = False
            yield CancelTimer(TIMER)
        if state.arrived:
            yield Aggregate(tuple(state.arrived))
            state.arrived.clear()
        for client in list(view.tasks) if self.late == "stop" else ():
            yield Discard(client, CLOSED)
        late, most = view.running, self.clients_per_round or len(view.fleet)
        clients = view.sample_idle(most)
        for client in clients:
            yield train(client, self.programme, view)
        state.expected = set(clients)
        state.own, state.closing = 0, min(len(clients), self.closes(min(most, len(clients) + late)))
        state.first = view.tasks[clients[0]].id if clients else 0
        state.end = state.first + len(clients)


@algorithm(
    paper="Begunov, Tyurin, Do We Need Asynchronous SGD? On the Near-Optimality of Synchronous Methods, 2026",
    kind="synchronous",
)
def first_of(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    share: RoundShare = 0.8,
    k: Closing = None,
    clients_per_round: ClientsPerRound = None,
    late: Late = "drop",
    window: Window = None,
    least: Least = 1,
) -> Algorithm:
    """Rounds that do not wait for the slowest clients: the first k updates close a round.

    w := Σ n_i w_i / Σ n_i over those k. k is `share` of the clients that could be asked, rounded up, unless
    `k` is given. `late` says what becomes of the other tasks. With a `window` a round also closes so many
    seconds after its first update, with `least` updates or more. With `share` = 1 it is FedAvg.
    """
    return Algorithm(
        schedule=FirstRounds(programme(steps, epochs), share, k, clients_per_round, late, window, least),
        aggregator=MeanOfModels(),
        objective=Plain(),
    )
