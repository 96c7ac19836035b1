"""Ringmaster ASGD: asynchronous SGD that bounds the delay (Maranjyan, Tyurin, Richtárik, ICML 2025).

An update of delay R or more is not used. With `stop`, a task whose update would have such a delay is stopped
as soon as that is known, and its client starts again from the current model: then no update is ever in vain.
"""

from collections.abc import Iterator
from itertools import takewhile
from typing import Annotated

from pydantic import Field

from offbeat.algorithms.aggregators import SumOfDeltas
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Count, Epochs, ServerRate, Steps
from offbeat.algorithms.schedules import train
from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Aggregate, Command, Discard, Drop
from offbeat.core.events import Arrived, Event
from offbeat.core.features import NONE, Feature
from offbeat.core.programme import Programme, programme
from offbeat.core.schedule import Schedule, View
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain

__all__ = ["BoundedDelay", "ringmaster"]

Threshold = Annotated[
    Count | None, Field(description="delay R that is too large; None means the number of clients that train")
]
Stop = Annotated[bool, Field(description="whether tasks that would be too late are stopped")]
TOO_LATE = "its delay has reached {limit} versions"


@checked_dataclass
class BoundedDelay(Schedule):
    """Asynchronous: every update with a delay below `threshold` makes a version; the others are dropped.

    With `stop` they are not waited for: their tasks are stopped, and the same clients start again. Otherwise
    each arrival frees a place, which an idle client, drawn at random, takes at once.
    """

    programme: Programme
    threshold: Threshold = None
    stop: Stop = True
    concurrency: Concurrency = None
    snapshots = True
    largest_aggregation = 1
    one_distribution = True

    @property
    def requires(self) -> frozenset[Feature]:
        """Clients that can be told to stop, where tasks are stopped."""
        return frozenset({Feature.CANCEL}) if self.stop else NONE

    def initial(self) -> None:
        """Nothing is remembered."""

    def on(self, event: Event, state: None, view: View) -> Iterator[Command]:
        """Use an update that is not too late, stop what has become too late, and fill every free place."""
        most = self.concurrency or len(view.fleet)
        limit = self.threshold or most
        if isinstance(event, Arrived):
            if view.task(event.task).staleness >= limit:
                yield Drop(event.task, TOO_LATE.format(limit=limit))
            else:
                yield Aggregate((event.task,))
                if self.stop:
                    yield from self._restart(limit, view)
        free = most - view.running
        for client in view.sample_idle(free) if free > 0 else ():
            yield train(client, self.programme, view)

    def _restart(self, limit: int, view: View) -> Iterator[Command]:
        """Have the clients start again whose update would be too late."""
        # The oldest tasks come first, so the bases do not fall.
        late = takewhile(lambda task: view.version - task.base >= limit, view.tasks.values())
        for client in [task.client for task in late]:
            yield Discard(client, TOO_LATE.format(limit=limit))
            yield train(client, self.programme, view)


@algorithm(
    paper="Maranjyan, Tyurin, Richtárik, Ringmaster ASGD: The First Asynchronous SGD with Optimal Time "
    "Complexity, ICML 2025",
    kind="asynchronous",
)
def ringmaster(
    threshold: Threshold = None,
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    stop: Stop = True,
    concurrency: Concurrency = None,
    server_lr: ServerRate = 1.0,
) -> Algorithm:
    """Every update makes a version, unless it comes too late; tasks that would be too late start again.

    w := w + γ Δ_i for an update of staleness below R, which is `threshold`; `server_lr` is γ. For clients
    whose data are of one distribution. Of slow clients it may never use an update.
    """
    return Algorithm(
        schedule=BoundedDelay(programme(steps, epochs), threshold, stop, concurrency),
        aggregator=SumOfDeltas(weights="equal", scale=server_lr),
        objective=Plain(),
    )
