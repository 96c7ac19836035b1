"""A site's answers to what the server says, one letter at a time: a function of the letter and its memory."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from offbeat.core.errors import UsageError
from offbeat.core.learner import Fresh as Merging
from offbeat.core.learner import Inputs, LocalResult, LocalTask
from offbeat.core.model import Layout
from offbeat.data.dataset import Dataset
from offbeat.flower.letters import Letter
from offbeat.flower.memory import Half, Memory
from offbeat.local.learner import TorchLearner
from offbeat.net.job import Workshop, encoded
from offbeat.net.messages import Asks, Assign, Bye, Failed, Forget, Fresh, FromSite, Hello, Receipt, Result
from offbeat.net.plan import Plan, evaluating_learner, make_learner, read_plan

log = logging.getLogger(__name__)


def greet(letter: Letter, data: Dataset, tell_labels: bool) -> Hello | Bye:
    """What a site says first; goodbye, and why, where it cannot take part."""
    try:
        read_plan(_document(letter.head), data)
    except UsageError as error:
        return Bye(str(error))
    labels = torch.bincount(data.y, minlength=data.classes).tolist() if tell_labels else None
    return Hello(len(data), 0, tuple(labels) if labels else None)


def layout_of(head: Mapping[str, Any]) -> Layout:
    """The layout of the models in a letter with this head."""
    return _layout(json.dumps(_document(head)))


@lru_cache(4)
def _layout(document: str) -> Layout:
    plan = read_plan(json.loads(document))
    model = evaluating_learner(plan, None).initial(plan.seed)
    return model.sharing(plan.make_algorithm().objective.shared_vectors).layout


def answer(letter: Letter, memory: Memory, data: Dataset, device: str) -> list[FromSite]:
    """Do what a letter says; returns what the site has to say, and leaves in `memory` what is to be kept."""
    memory.begin(str(letter.head["run"]))
    site = _Site(memory, read_plan(_document(letter.head), data), int(letter.head["client"]), data, device)
    return [said for message in letter.messages for said in site.hear(message)]


def _document(head: Mapping[str, Any]) -> Mapping[str, Any]:
    plan = head.get("plan")
    return plan if isinstance(plan, dict) else {}


@dataclass
class _Site:
    memory: Memory
    plan: Plan
    client: int
    data: Dataset
    device: str

    def __post_init__(self) -> None:
        algorithm = self.plan.make_algorithm()
        self.learner: TorchLearner = make_learner(self.plan, self.data, self.client, self.device)
        self.workshop = Workshop(self.client, self.learner, algorithm.objective, algorithm.codec)

    def hear(self, message: Any) -> Iterator[FromSite]:
        memory = self.memory
        match message:
            case Receipt():
                memory.settle(message.task, message.accepted)
            case Forget():
                memory.settle(message.task, False)
                if memory.half is not None and memory.half.assign.task == message.task:
                    memory.half = None
            case Assign():
                memory.pending = memory.half = None
                yield self._work(message, self._begin)
            case Fresh():
                half, memory.half = memory.half, None
                if half is None or half.assign.task != message.task:
                    yield Failed(message.task, "what the task had done before it asked is not here any more")
                else:
                    yield self._work(half.assign, lambda _: self._go_on(half, message))
            case _:
                pass

    def _work(self, assign: Assign, train: Callable[[Assign], Result | Asks]) -> FromSite:
        """Train; a failure is told."""
        try:
            return train(assign)
        except Exception as error:
            log.exception("task %d failed", assign.task)
            return Failed(assign.task, f"{type(error).__name__}: {error}")

    def _begin(self, assign: Assign) -> Result | Asks:
        objective, inputs, steps = self.workshop.objective, Inputs(dict(self.memory.state)), assign.ask_after
        task = self._task(assign, None)
        if not 0 < steps < assign.steps:
            return self._told(assign, self.learner.train(assign.model, task, objective, inputs))
        half = self.learner.train_half(assign.model, task, objective, inputs, steps)
        self.memory.half = Half(assign, half)
        return Asks(assign.task, steps)

    def _go_on(self, half: Half, fresh: Fresh) -> Result:
        assign = half.assign
        steps, model = assign.ask_after, fresh.model
        merging = Merging(steps, fresh.version, fresh.clock) if model is not None else None
        inputs = Inputs(dict(self.memory.state), model)
        result = self.learner.train_rest(
            assign.model, self._task(assign, merging), self.workshop.objective, inputs, steps, half.training
        )
        return self._told(assign, result)

    def _task(self, assign: Assign, fresh: Merging | None) -> LocalTask:
        a = assign
        return LocalTask(a.task, self.client, a.base, a.steps, a.seed, a.lr_factor, fresh)

    def _told(self, assign: Assign, result: LocalResult) -> Result:
        """An update as it travels; the state after it counts once it is accepted."""
        self.memory.pending = assign.task, result.state
        r = result
        told = Result(assign.task, assign.steps, r.delta, r.integers, r.metrics, r.lr, r.shared)
        return encoded(told, self.workshop, assign.seed, None)
