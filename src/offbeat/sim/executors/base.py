"""Executors: where local training is computed.

A task is fully determined by its base model and its `LocalTask`, so an executor may run it at any
moment between submission and the request for its result, anywhere, and again if need be.
"""

from collections.abc import Iterable
from typing import Protocol

from offbeat.core.events import ClientId, ClientResults, Metrics, TaskId
from offbeat.core.learner import LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model


class Executor(Protocol):
    """Computes tasks and evaluations, each task once for its result."""

    def submit(self, task: LocalTask, base: Model, due: float, inputs: TaskInputs) -> None:
        """Accept a task.

        Args:
            task: what to train; its number is that of no other task whose result may still be asked for.
            base: the model to start from.
            due: virtual time in seconds at which the result is asked for.
            inputs: the client's state, and the model that is merged in mid-task if there is one.
        """

    def result(self, task: TaskId) -> LocalResult:
        """Wait for the result of a submitted task. Each is asked for once.

        Raises:
            RunError: the task failed, or no worker is left to train it.
        """

    def cancel(self, task: TaskId) -> None:
        """Discard a task, submitted or not; its result is not asked for."""

    def evaluate(self, model: Model) -> Metrics:
        """Wait for the metrics of a global model."""

    def evaluate_clients(self, model: Model, inputs: Iterable[tuple[ClientId, TaskInputs]]) -> ClientResults:
        """Wait for the clients' metrics on their held-out samples.

        Args:
            model: a global model.
            inputs: each client, with its own tensors.
        """

    def close(self) -> None:
        """End the workers."""
