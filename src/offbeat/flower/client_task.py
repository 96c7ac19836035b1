"""The replies of a site to one Flower message: a function of the server's messages and the site's memory."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from offbeat.core.errors import UsageError
from offbeat.core.learner import LocalResult, LocalTask, TaskInputs
from offbeat.core.learner import MergePoint as Merging
from offbeat.data.dataset import Dataset
from offbeat.flower.context_state import Memory, PausedTask
from offbeat.local.learner import TorchLearner
from offbeat.net.client.task import TrainingContext, encode_update
from offbeat.net.messages import (
    FromSite,
    Leave,
    Message,
    ModelRequest,
    ModelResponse,
    Register,
    Registered,
    TaskAssignment,
    TaskCancel,
    TaskFailed,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.run_spec import RunSpec, make_learner, read_run_spec

log = logging.getLogger(__name__)


def register(registered: Registered, data: Dataset, tell_labels: bool) -> Register | Leave:
    """A site's answer to a run's plan: `Leave`, with the reason, if it cannot take part."""
    try:
        read_run_spec(registered.plan, data)
    except UsageError as error:
        return Leave(str(error))
    labels = torch.bincount(data.y, minlength=data.classes).tolist() if tell_labels else None
    return Register(len(data), 0, tuple(labels) if labels else None)


def respond(
    registered: Registered, messages: Sequence[Message], memory: Memory, data: Dataset, device: str
) -> list[FromSite]:
    """Carry out the server's messages; returns the replies, and leaves in `memory` what is to be kept."""
    memory.begin(registered.run)
    runner = _TaskRunner(memory, read_run_spec(registered.plan, data), registered.client, data, device)
    return [reply for message in messages for reply in runner.handle(message)]


@dataclass
class _TaskRunner:
    memory: Memory
    plan: RunSpec
    client: int
    data: Dataset
    device: str

    def __post_init__(self) -> None:
        algorithm = self.plan.make_algorithm()
        self.learner: TorchLearner = make_learner(self.plan, self.data, self.client, self.device)
        self.context = TrainingContext(self.client, self.learner, algorithm.objective, algorithm.codec)

    def handle(self, message: Message) -> Iterator[FromSite]:
        memory = self.memory
        match message:
            case UpdateAck():
                memory.acknowledge(message.task, message.accepted)
            case TaskCancel():
                memory.acknowledge(message.task, False)
                if memory.paused is not None and memory.paused.assignment.task == message.task:
                    memory.paused = None
            case TaskAssignment():
                memory.pending = memory.paused = None
                yield self._try(message, lambda: self._begin(message))
            case ModelResponse():
                paused, memory.paused = memory.paused, None
                if paused is None or paused.assignment.task != message.task:
                    yield TaskFailed(message.task, "the checkpoint of the task is lost")
                else:
                    yield self._try(paused.assignment, lambda: self._resume(paused, message))
            case _:
                pass

    def _try(
        self, assignment: TaskAssignment, train: Callable[[], UpdateSubmission | ModelRequest]
    ) -> FromSite:
        """Train; report a failure."""
        try:
            return train()
        except Exception as error:
            log.exception("task %d failed", assignment.task)
            return TaskFailed(assignment.task, f"{type(error).__name__}: {error}")

    def _begin(self, assignment: TaskAssignment) -> UpdateSubmission | ModelRequest:
        objective, steps, model = self.context.objective, assignment.ask_after, assignment.model
        task, inputs = self._task(assignment, None), TaskInputs(dict(self.memory.state))
        if not 0 < steps < assignment.steps:
            return self._update(assignment, self.learner.train(model, task, objective, inputs))
        training = self.learner.train_until(model, task, objective, inputs, steps)
        self.memory.paused = PausedTask(assignment, training)
        return ModelRequest(assignment.task, steps)

    def _resume(self, paused: PausedTask, response: ModelResponse) -> UpdateSubmission:
        assignment, model, objective = paused.assignment, response.model, self.context.objective
        steps = assignment.ask_after
        merging = Merging(steps, response.version, response.clock) if model is not None else None
        task, inputs = self._task(assignment, merging), TaskInputs(dict(self.memory.state), model)
        result = self.learner.train_from(assignment.model, task, objective, inputs, steps, paused.training)
        return self._update(assignment, result)

    def _task(self, assignment: TaskAssignment, fresh: Merging | None) -> LocalTask:
        a = assignment
        return LocalTask(a.task, self.client, a.base, a.steps, a.seed, a.lr_factor, fresh)

    def _update(self, assignment: TaskAssignment, result: LocalResult) -> UpdateSubmission:
        """An update as it is sent; the state after it counts once it is accepted."""
        self.memory.pending = assignment.task, result.state
        a, r = assignment, result
        update = UpdateSubmission(a.task, a.steps, r.delta, r.integers, r.metrics, r.lr, r.shared)
        return encode_update(update, self.context, a.seed, None)
