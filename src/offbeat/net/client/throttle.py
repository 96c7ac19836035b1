"""A learner that is slowed down, to try out an algorithm with sites of different speed."""

import time
from dataclasses import dataclass

from offbeat.core.events import ClientId
from offbeat.core.learner import LocalResult, LocalTask, MergePoint, TaskControl, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.net.client.task import SiteLearner


@dataclass(frozen=True)
class Throttled:
    """A learner whose local steps take at least `seconds` each; its results are the same."""

    learner: SiteLearner
    seconds: float

    def steps_per_epoch(self, client: ClientId) -> int:
        """⌈n_i / batch size⌉."""
        return self.learner.steps_per_epoch(client)

    def train(
        self,
        base: Model,
        task: LocalTask,
        objective: Objective,
        inputs: TaskInputs,
        watch: TaskControl | None,
    ) -> LocalResult:
        """Train, and wait between the steps and after the last."""
        waiting = _Waiting(watch, self.seconds)
        result = self.learner.train(base, task, objective, inputs, waiting)
        waiting.wait()
        return result


class _Waiting(TaskControl):
    """Waits for the end of each step's time before it asks the inner control."""

    def __init__(self, watch: TaskControl | None, seconds: float) -> None:
        self._watch, self._seconds = watch, seconds
        self._steps, self._begun = 0, time.monotonic()

    def wait(self) -> None:
        """Until the step under way may be over; asks now and then whether the task is still wanted."""
        while (left := self._begun + self._seconds - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))
            if self._watch is not None:
                self._watch.stops(self._steps)

    def stops(self, steps: int) -> bool:
        """At the end of a step, and at the start of the first."""
        if steps:
            self.wait()
        self._steps = steps
        return self._watch is not None and self._watch.stops(steps)

    def fresh(self, steps: int) -> tuple[MergePoint, Model] | None:
        """At the start of a step, once the answer is here."""
        found = self._watch.fresh(steps) if self._watch is not None else None
        self._begun = time.monotonic()
        return found
