"""A site's answers to what the server says, one letter at a time: a function of the letter and its memory."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from offbeat.core.errors import UsageError
from offbeat.core.learner import LocalResult, LocalTask, TaskInputs
from offbeat.core.learner import MergePoint as Merging
from offbeat.core.model import Layout
from offbeat.data.dataset import Dataset
from offbeat.flower.context_state import Memory, PausedTask
from offbeat.flower.serialization import Payload
from offbeat.local.learner import TorchLearner
from offbeat.net.client.task import TrainingContext, encoded
from offbeat.net.messages import (
    FromSite,
    Leave,
    ModelRequest,
    ModelResponse,
    Register,
    TaskAssignment,
    TaskCancel,
    TaskFailed,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.run_spec import RunSpec, evaluating_learner, make_learner, read_run_spec

log = logging.getLogger(__name__)


def register(letter: Payload, data: Dataset, tell_labels: bool) -> Register | Leave:
    """What a site says first; goodbye, and why, where it cannot take part."""
    try:
        read_run_spec(_document(letter.head), data)
    except UsageError as error:
        return Leave(str(error))
    labels = torch.bincount(data.y, minlength=data.classes).tolist() if tell_labels else None
    return Register(len(data), 0, tuple(labels) if labels else None)


def layout_of(head: Mapping[str, Any]) -> Layout:
    """The layout of the models in a letter with this head."""
    return _layout(json.dumps(_document(head)))


@lru_cache(4)
def _layout(document: str) -> Layout:
    plan = read_run_spec(json.loads(document))
    model = evaluating_learner(plan, None).initial(plan.seed)
    return model.sharing(plan.make_algorithm().objective.shared_vectors).layout


def respond(letter: Payload, memory: Memory, data: Dataset, device: str) -> list[FromSite]:
    """Do what a letter says; returns what the site has to say, and leaves in `memory` what is to be kept."""
    memory.begin(str(letter.head["run"]))
    site = _TaskRunner(
        memory, read_run_spec(_document(letter.head), data), int(letter.head["client"]), data, device
    )
    return [said for message in letter.messages for said in site.hear(message)]


def _document(head: Mapping[str, Any]) -> Mapping[str, Any]:
    plan = head.get("plan")
    return plan if isinstance(plan, dict) else {}


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
        self.workshop = TrainingContext(self.client, self.learner, algorithm.objective, algorithm.codec)

    def hear(self, message: Any) -> Iterator[FromSite]:
        memory = self.memory
        match message:
            case UpdateAck():
                memory.settle(message.task, message.accepted)
            case TaskCancel():
                memory.settle(message.task, False)
                if memory.half is not None and memory.half.assign.task == message.task:
                    memory.half = None
            case TaskAssignment():
                memory.pending = memory.half = None
                yield self._work(message, self._begin)
            case ModelResponse():
                half, memory.half = memory.half, None
                if half is None or half.assign.task != message.task:
                    yield TaskFailed(
                        message.task, "what the task had done before it asked is not here any more"
                    )
                else:
                    yield self._work(half.assign, lambda _: self._go_on(half, message))
            case _:
                pass

    def _work(
        self, assign: TaskAssignment, train: Callable[[TaskAssignment], UpdateSubmission | ModelRequest]
    ) -> FromSite:
        """Train; a failure is told."""
        try:
            return train(assign)
        except Exception as error:
            log.exception("task %d failed", assign.task)
            return TaskFailed(assign.task, f"{type(error).__name__}: {error}")

    def _begin(self, assign: TaskAssignment) -> UpdateSubmission | ModelRequest:
        objective, inputs, steps = (
            self.workshop.objective,
            TaskInputs(dict(self.memory.state)),
            assign.ask_after,
        )
        task = self._task(assign, None)
        if not 0 < steps < assign.steps:
            return self._told(assign, self.learner.train(assign.model, task, objective, inputs))
        half = self.learner.train_until(assign.model, task, objective, inputs, steps)
        self.memory.half = PausedTask(assign, half)
        return ModelRequest(assign.task, steps)

    def _go_on(self, half: PausedTask, fresh: ModelResponse) -> UpdateSubmission:
        assign = half.assign
        steps, model = assign.ask_after, fresh.model
        merging = Merging(steps, fresh.version, fresh.clock) if model is not None else None
        inputs = TaskInputs(dict(self.memory.state), model)
        result = self.learner.train_from(
            assign.model, self._task(assign, merging), self.workshop.objective, inputs, steps, half.training
        )
        return self._told(assign, result)

    def _task(self, assign: TaskAssignment, fresh: Merging | None) -> LocalTask:
        a = assign
        return LocalTask(a.task, self.client, a.base, a.steps, a.seed, a.lr_factor, fresh)

    def _told(self, assign: TaskAssignment, result: LocalResult) -> UpdateSubmission:
        """An update as it travels; the state after it counts once it is accepted."""
        self.memory.pending = assign.task, result.state
        r = result
        told = UpdateSubmission(assign.task, assign.steps, r.delta, r.integers, r.metrics, r.lr, r.shared)
        return encoded(told, self.workshop, assign.seed, None)
