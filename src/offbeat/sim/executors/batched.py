"""Batched training: the tasks that are due next are trained together, in this process.

When a result is asked for, the task is trained and with it those whose results will be asked for next, up to
`clients` of them: all are known by their base models and their `LocalTask`s. A task that is cancelled or
submitted anew was trained for nothing. Which tasks are trained together follows from virtual time alone, and
a task's result does not depend on it; it differs from that of other executors in the last bits.
"""

from dataclasses import dataclass
from heapq import nsmallest
from operator import itemgetter

from offbeat.core.errors import UsageError
from offbeat.core.events import TaskId
from offbeat.core.learner import Learner, LocalResult
from offbeat.core.objective import Objective
from offbeat.local.fast.batched import BatchedTrainer
from offbeat.local.torch_learner import TorchLearner
from offbeat.sim.executors.in_process import InProcess


@dataclass(frozen=True)
class Batched:
    """Train many clients' tasks together, in the main process.

    Args:
        clients: Largest number of tasks in one batch, at least 1.

    Raises:
        UsageError: `clients` is below 1.
    """

    clients: int = 32

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise UsageError(f"clients = {self.clients} is not allowed in batches: give a number from 1")


class BatchTraining(InProcess):
    """An executor that trains up to `clients` tasks together.

    Raises:
        UsageError: the learner or the objective cannot be trained so.
    """

    def __init__(self, learner: Learner, objective: Objective, options: Batched) -> None:
        if not isinstance(learner, TorchLearner):
            raise UsageError(
                f"executor batched cannot train with {type(learner).__name__}, only with a TorchLearner: "
                "leave it out"
            )
        super().__init__(learner, objective)
        self._clients = options.clients
        self._trainer = BatchedTrainer(learner, objective, options.clients)
        self._results: dict[TaskId, LocalResult] = {}

    def result(self, task: TaskId) -> LocalResult:
        """Train the task and those that are due next, unless an earlier batch had it."""
        if task not in self._results:
            first = self._waiting.pop(task)
            others = nsmallest(self._clients - 1, self._waiting.values(), key=itemgetter(0))
            batch = [(local, base) for _, local, base, _ in (first, *others)]
            for (local, _), result in zip(batch, self._trainer.train(batch), strict=True):
                self._waiting.pop(local.task, None)
                self._results[local.task] = result
        return self._results.pop(task)

    def cancel(self, task: TaskId) -> None:
        """Forget the task, and its result if it was trained."""
        super().cancel(task)
        self._results.pop(task, None)
