"""Training in this process, each task when its result is asked for."""

from collections.abc import Iterable

from offbeat.core.events import ClientId, ClientResults, Metrics, TaskId
from offbeat.core.learner import ClientEvaluator, Learner, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective


class InProcess:
    """An executor of this process alone."""

    def __init__(self, learner: Learner, objective: Objective) -> None:
        self._learner, self._objective = learner, objective
        self._waiting: dict[TaskId, tuple[float, LocalTask, Model, TaskInputs]] = {}

    def submit(self, task: LocalTask, base: Model, due: float, inputs: TaskInputs) -> None:
        """Remember the task."""
        self._waiting[task.task] = (due, task, base, inputs)

    def result(self, task: TaskId) -> LocalResult:
        """Train now."""
        _, local, base, inputs = self._waiting.pop(task)
        return self._learner.train(base, local, self._objective, inputs)

    def cancel(self, task: TaskId) -> None:
        """Forget the task, which was never trained."""
        self._waiting.pop(task, None)

    def evaluate(self, model: Model) -> Metrics:
        """Evaluate now."""
        return self._learner.evaluate(model)

    def evaluate_clients(self, model: Model, inputs: Iterable[tuple[ClientId, TaskInputs]]) -> ClientResults:
        """Evaluate now, one client after another."""
        learner = self._learner
        assert isinstance(learner, ClientEvaluator)
        return {client: learner.evaluate_client(model, client, own) for client, own in inputs}

    def close(self) -> None:
        """Do nothing: there are no workers."""
