"""The course of a task in training: when it asks for a fresh model, and when it ends, in virtual time."""

from math import ceil

from msgspec import Struct

from offbeat.core.commands import Train, Upload
from offbeat.core.events import Arrived, Event, Line, Lost, Ready, WantsModel
from offbeat.core.learner import LocalTask, MergePoint
from offbeat.world.population import TaskOutcome


class SimulatedTask(Struct, gc=False):
    """A task in training.

    It downloads the model, does its steps, pausing for the fresh model after `ask_after` of them, and
    uploads: at once, or, if its update is to be held, when it is told to (`upload`). `steps` falls when it
    is recalled; `pause` is known once the request has been answered.
    `due` is what happens next; any other event of this task that is still queued is not true any more.
    """

    command: Train
    started: float
    outcome: TaskOutcome
    steps: int
    pause: float | None = None
    fresh: MergePoint | None = None
    upload: tuple[float, Upload] | None = None
    due: tuple[float, Event] | None = None

    def next(self) -> tuple[float, Event]:
        """When and how it goes on, as things are."""
        command, outcome, steps = self.command, self.outcome, self.steps
        client, task, ask = command.client, command.task, command.ask_after
        if self.upload is not None:
            return self.upload[0] + outcome.up, self._arrived()
        event: Event
        if 0 < ask < steps and self.pause is None:
            end, event = self._done(ask) + outcome.latency, WantsModel(client, task, ask)
        elif command.hold:
            end, event = self._done(steps) + outcome.latency, Ready(client, task, steps)
        else:
            end, event = self._done(steps) + outcome.up, self._arrived()
        if outcome.lost < 1.0 and self._lost() < end:
            return self._lost(), Lost(client, task)
        return end, event

    def answer(self, fresh: MergePoint | None) -> None:
        """Answer the request. The client has waited for the model, or for the message that none is newer."""
        self.fresh = fresh
        self.pause = self.outcome.latency + (self.outcome.down if fresh else self.outcome.latency)

    def recall(self, now: float, epoch: int) -> bool:
        """Recall the client at `now`, to the next end of an epoch; returns whether the task ends earlier."""
        heard = now + self.outcome.latency
        begun = self.started + self.outcome.down + (self.pause or 0.0)
        epochs = ceil((heard - begun) / (self.outcome.per_step * epoch) - 1e-9)
        first = 1 if self.pause is None else self.command.ask_after // epoch + 1
        steps = max(first, epochs) * epoch
        if steps >= self.steps:
            return False
        self.steps = steps
        return True

    def local(self, seed: int) -> LocalTask:
        """The local task of the client."""
        c = self.command
        return LocalTask(c.task, c.client, c.base, self.steps, seed, c.lr_factor, self.fresh)

    def _arrived(self) -> Arrived:
        """The arrival, with the parts of the task's time where messages take any."""
        outcome, steps = self.outcome, self.steps
        line = None
        if outcome.down or outcome.up or outcome.latency:
            pause = (self.pause or 0.0) if steps > self.command.ask_after else 0.0
            # A client that holds its update says so first.
            sent = outcome.up + (outcome.latency if self.command.hold else 0.0)
            line = Line(outcome.down + pause, steps * outcome.per_step, sent, outcome.latency)
        return Arrived(self.command.client, self.command.task, steps, line=line)

    def _done(self, steps: int) -> float:
        """The time at which `steps` steps are done."""
        pause = (self.pause or 0.0) if steps > self.command.ask_after else 0.0
        return self.started + self.outcome.down + pause + steps * self.outcome.per_step

    def _lost(self) -> float:
        """When the client drops out of it, at a share of the time it would take without a fresh model."""
        return self.started + self.outcome.lost * self.outcome.seconds(self.command.steps)
