"""Executors: where local training is computed.

A task is fully determined by its base model and its `LocalTask`, so an executor may run it at any
moment between submission and the request for its result, anywhere, and again if need be.
"""

from typing import Protocol

from offbeat.core.events import Metrics, TaskId
from offbeat.core.learner import LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model


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
