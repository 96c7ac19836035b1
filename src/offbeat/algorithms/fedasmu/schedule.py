"""FedASMU's server triggers clients periodically (Jia et al., 2025, Algorithm 1)."""

from collections.abc import Iterator
from dataclasses import dataclass as plain
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from offbeat.algorithms.options import Count, Positive
from offbeat.algorithms.schedules import train
from offbeat.core.algorithm import Schedule, View
from offbeat.core.commands import Aggregate, Command, Drop, SetTimer
from offbeat.core.events import Arrived, Begin, Event, Joined, Timer
from offbeat.core.programme import Programme
from offbeat.core.validation import STRICT

Size = Annotated[Count, Field(description="clients triggered at a time m'")]
Period = Annotated[Positive, Field(description="seconds 𝒯 between triggers")]
Threshold = Annotated[
    int | None, Field(ge=1, description="a trigger counts while fewer train; None means always")
]
TIMER = "trigger"


@plain
class Triggering:
    """Is the next trigger set? It is not while nobody is there."""

    set: bool = False


@dataclass(frozen=True, config=STRICT)
class Periodic(Schedule):
    """Every `period` seconds `size` idle clients start, or all there are, if fewer than `threshold` train.

    So at most `threshold` − 1 + `size` train at the same time. A threshold of None means that every trigger
    counts. Each update is aggregated as it comes; one staler than `tau_max` (s = τ + 1) is dropped.
    """

    programme: Programme
    period: Period
    size: Size
    threshold: Threshold = None
    tau_max: Count | None = None

    @property
    def concurrency(self) -> int | None:
        """Every client may train: the threshold bounds how many trained before a trigger, not after it."""
        return None

    def initial(self) -> Triggering:
        """No trigger yet."""
        return Triggering()

    def on(self, event: Event, state: Triggering, view: View) -> Iterator[Command]:
        """Algorithm 1, the server's two threads."""
        match event:
            case Arrived():
                s = view.task(event.task).staleness + 1
                if self.tau_max is not None and s > self.tau_max:
                    yield Drop(event.task, f"staleness {s} is above tau_max = {self.tau_max}")
                else:
                    yield Aggregate((event.task,))
            case Begin() | Timer():
                yield from self._trigger(state, view)
            case Joined() if not state.set:
                yield from self._trigger(state, view)
            case _:
                pass

    def _trigger(self, state: Triggering, view: View) -> Iterator[Command]:
        if self.threshold is None or view.running < self.threshold:  # line 4
            for client in view.sample_idle(self.size):
                yield train(client, self.programme, view)
        state.set = len(view.fleet) > 0
        if state.set:
            yield SetTimer(TIMER, view.now + self.period)
