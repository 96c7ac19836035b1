"""Batched training: the tasks that are due next are trained together, in this process.

When a result is asked for, the task is trained and with it those whose results will be asked for next, up to
`clients` of them: all are known by their base models and their `LocalTask`s. A task that is cancelled or
submitted anew was trained for nothing. Which tasks are trained together follows from virtual time alone, and
a task's result does not depend on it; it differs from that of other executors in the last bits.

Convolutions take one client after the other on a CPU, and stacking the clients costs more than it saves.
There each task is trained by itself, and the log says so.

Where a GPU's memory runs out, half as many tasks are trained together from then on, and the log says so.
"""

import logging
from dataclasses import dataclass
from heapq import nsmallest
from operator import itemgetter

import torch

from offbeat.core.errors import UsageError
from offbeat.core.events import TaskId
from offbeat.core.learner import Learner, LocalResult
from offbeat.core.objective import Objective
from offbeat.local.fast.batched import BatchedTask, BatchedTrainer, has_no_gain
from offbeat.local.torch_learner import TorchLearner
from offbeat.sim.executors.in_process import InProcess

log = logging.getLogger(__name__)


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
        self._learner: TorchLearner = learner
        self._alone = has_no_gain(learner)
        # A trainer of one client checks that the learner and the objective can be trained so.
        self._clients = 1 if self._alone else options.clients
        self._trainer = self._made()
        self._results: dict[TaskId, LocalResult] = {}
        if self._alone:
            del self._trainer
            log.warning(
                "executor batched: convolutions gain nothing together on a CPU; tasks are trained one by one"
            )

    def result(self, task: TaskId) -> LocalResult:
        """Train the task and those that are due next, unless an earlier batch had it.

        Raises:
            UsageError: The device has not enough memory for this task alone.
        """
        if self._alone:
            return super().result(task)
        if task not in self._results:
            first = self._waiting.pop(task)
            others = nsmallest(self._clients - 1, self._waiting.values(), key=itemgetter(0))
            batch = [(local, base) for _, local, base, _ in (first, *others)]
            results = self._train(batch)
            # There are fewer results than tasks where memory ran out.
            for (local, _), result in zip(batch, results, strict=False):
                self._waiting.pop(local.task, None)
                self._results[local.task] = result
        return self._results.pop(task)

    def _train(self, batch: list[BatchedTask]) -> list[LocalResult]:
        """The results of the first tasks, as many as the device has memory for."""
        while True:
            try:
                return self._trainer.train(batch[: self._clients])
            except torch.OutOfMemoryError as error:
                told = str(error)
            # The error is gone here, and what its traceback held.
            del self._trainer
            self._lower(told)
            self._trainer = self._made()

    def _made(self) -> BatchedTrainer:
        """A trainer of as many tasks as the device has memory for."""
        while True:
            try:
                return BatchedTrainer(self._learner, self._objective, self._clients)
            except torch.OutOfMemoryError as error:
                told = str(error)
            self._lower(told)

    def _lower(self, told: str) -> None:
        """Train half as many together from now on. Raises `UsageError` where it is one task already."""
        device, first = self._learner.training.device, told.partition(". ")[0].rstrip(".")
        if self._clients == 1:
            raise UsageError(
                f"{device} has not enough memory to train one task ({first}): give a smaller "
                "training.batch_size, or another model"
            )
        self._clients //= 2
        log.warning(
            "%s has not enough memory (%s): at most %d tasks are trained together from now on",
            device, first, self._clients,
        )  # fmt: skip

    def cancel(self, task: TaskId) -> None:
        """Forget the task, and its result if it was trained."""
        super().cancel(task)
        self._results.pop(task, None)
