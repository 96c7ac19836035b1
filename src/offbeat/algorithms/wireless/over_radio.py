"""Any schedule on a shared radio: its clients upload as soon as they are ready.

No client waits for a period: the channel of a ready client is measured, and the client gets the symbols of a
slot. If a schedule makes N updates in T' seconds, the slot T' / N uses as many symbols as the periodic scheme
of `wireless`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import Field

from offbeat.algorithms.option_types import Positive
from offbeat.algorithms.wireless.bandwidth import Halving, with_decayed_lr
from offbeat.core.commands import Command, Measure, Train, Upload
from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId, Event, Left, Measured, Ready
from offbeat.core.features import Feature
from offbeat.core.schedule import Schedule, ScheduleWrapper, View
from offbeat.core.validation import checked_dataclass


@checked_dataclass
class UploadSlots:
    """Each upload gets the radio for `slot` seconds.

    The learning rate halves in the first `halving` seconds. None means that the learning rate stays.
    """

    slot: Annotated[Positive, Field(description="seconds of radio for an upload")]
    halving: Halving = None

    def around(self, schedule: Schedule) -> "OverRadio":
        """The schedule, whose clients upload in such slots. Raises `UsageError` for one that stops tasks."""
        if Feature.CANCEL in schedule.requires:
            raise UsageError(
                f"{type(schedule).__name__} as it is set stops tasks before they are done, and a task over a "
                "radio ends with its upload: turn that off (stop = false, or late = drop)"
            )
        return OverRadio(schedule, self)


@dataclass
class OnAir:
    """The wrapped schedule's state, and the clients that wait for a measurement."""

    inner: Any
    waiting: list[ClientId] = field(default_factory=list)
    measuring: list[ClientId] = field(default_factory=list)


@dataclass(frozen=True)
class OverRadio(ScheduleWrapper):
    """A schedule whose clients upload as soon as they are ready, each in its own slot."""

    inner: Schedule
    slots: UploadSlots
    own_requires = frozenset({Feature.RADIO})

    def initial(self) -> OnAir:
        """No client waits."""
        return OnAir(self.inner.initial())

    def on(self, event: Event, state: OnAir, view: View) -> Iterator[Command]:
        """Measure the channel of ready clients and let them upload; pass everything else to the schedule."""
        match event:
            case Ready():
                state.waiting.append(event.client)
            case Measured():
                for client, capacity in event.capacities:
                    if client in state.measuring and client in view.tasks:
                        yield Upload(client, int(event.symbols / len(event.capacities) * capacity))
                state.measuring = []
            case Left():
                state.waiting = [k for k in state.waiting if k != event.client]
                state.measuring = [k for k in state.measuring if k != event.client]
        if not isinstance(event, Ready | Measured):
            yield from self._inside(event, state, view)
        if state.waiting and not state.measuring:
            state.measuring, state.waiting = state.waiting, []
            yield Measure(tuple(state.measuring), self.slots.slot * len(state.measuring))

    def _inside(self, event: Event, state: OnAir, view: View) -> Iterator[Command]:
        for command in self.inner.on(event, state.inner, view):
            if isinstance(command, Train):
                command = with_decayed_lr(replace(command, hold=True), self.slots.halving, view.now)
            yield command
