"""Executors: where local training is computed.

A task is fully determined by its base model and its `LocalTask`, so an executor may run it at any
moment between submission and the request for its result, anywhere, and again if need be.
"""

from typing import Protocol

from offbeat.core.events import Metrics, TaskId
from offbeat.core.learner import Learner, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective


class Executor(Protocol):
    """Computes tasks and evaluations."""

    def submit(self, task: LocalTask, base: Model, due: float, inputs: TaskInputs) -> None:
        """Take on a task whose result is asked for at virtual time `due` (seconds)."""

    def result(self, task: TaskId) -> LocalResult:
        """The result of a submitted task; waits for it. Each is asked for once."""

    def cancel(self, task: TaskId) -> None:
        """The result of this task will not be asked for."""

    def evaluate(self, model: Model) -> Metrics:
        """Measure a global model; waits for it."""

    def close(self) -> None:
        """Stop whatever runs."""


class InProcess:
    """Trains in this process, each task when its result is asked for."""

    def __init__(self, learner: Learner, objective: Objective) -> None:
        self._learner, self._objective = learner, objective
        self._tasks: dict[TaskId, tuple[LocalTask, Model, TaskInputs]] = {}

    def submit(self, task: LocalTask, base: Model, due: float, inputs: TaskInputs) -> None:
        """Remember the task."""
        self._tasks[task.task] = (task, base, inputs)

    def result(self, task: TaskId) -> LocalResult:
        """Train now."""
        local, base, inputs = self._tasks.pop(task)
        return self._learner.train(base, local, self._objective, inputs)

    def cancel(self, task: TaskId) -> None:
        """Forget the task, which was never trained."""
        self._tasks.pop(task, None)

    def evaluate(self, model: Model) -> Metrics:
        """Evaluate now."""
        return self._learner.evaluate(model)

    def close(self) -> None:
        """Nothing runs."""
