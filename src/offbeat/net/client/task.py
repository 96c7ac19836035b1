"""One task in training at a site, between the thread that trains and the loop that talks to the server."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Condition
from typing import Protocol

from offbeat.core.codec import Codec
from offbeat.core.events import ClientId, TaskId
from offbeat.core.learner import LocalResult, LocalTask, TaskControl, TaskInputs
from offbeat.core.learner import MergePoint as Merging
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import Objective
from offbeat.core.streams import Purpose, stream
from offbeat.net.client.store import PendingUpdate
from offbeat.net.messages import ModelResponse, TaskAssignment, UpdateSubmission


class SiteLearner(Protocol):
    """What trains at a site."""

    def steps_per_epoch(self, client: ClientId) -> int:
        """⌈n_i / batch size⌉."""

    def train(
        self,
        base: Model,
        task: LocalTask,
        objective: Objective,
        inputs: TaskInputs,
        watch: TaskControl | None,
    ) -> LocalResult:
        """Train from `base`, asking `watch` between the steps."""


@dataclass(frozen=True)
class TrainingContext:
    """What a site needs to carry out tasks: made once it knows its number and what is trained."""

    client: ClientId
    learner: SiteLearner
    objective: Objective
    codec: Codec | None = None


class TaskCancelledError(Exception):
    """The task is not wanted any more."""


class TrainingTask(TaskControl):
    """A task under way. `ask` is called in the training thread when it wants a model, and has to wait."""

    def __init__(
        self, assign: TaskAssignment, workshop: TrainingContext, ask: Callable[["TrainingTask"], None]
    ) -> None:
        self.assign, self.workshop = assign, workshop
        self.steps = 0
        self.asking = False
        self._ask = ask
        self._epoch = workshop.learner.steps_per_epoch(workshop.client)
        self._news = Condition()
        self._answer: ModelResponse | None = None
        self._cut = self._given_up = False
        self._end = assign.steps

    @property
    def task(self) -> TaskId:
        """The task's number."""
        return self.assign.task

    # ---- called by the loop ----

    def answer(self, fresh: ModelResponse) -> None:
        """The model asked for is here, or there is none."""
        with self._news:
            if self.asking:
                self._answer = fresh
                self._news.notify_all()

    def cut_short(self) -> None:
        """Report at the end of the epoch under way."""
        self._cut = True

    def give_up(self) -> None:
        """Stop at the next step."""
        with self._news:
            self._given_up = True
            self._news.notify_all()

    # ---- called by the training thread ----

    def stops(self, steps: int) -> bool:
        """At the end of an epoch, once the task is to be cut short."""
        self.steps = steps
        if self._given_up:
            raise TaskCancelledError
        if self._cut and steps and steps % self._epoch == 0:
            self._end = steps
            return True
        return False

    def fresh(self, steps: int) -> tuple[Merging, Model] | None:
        """Ask once, after the steps that the task says, and wait."""
        if not self.assign.ask_after or steps != self.assign.ask_after:
            return None
        with self._news:
            self.asking = True
            self._ask(self)
            self._news.wait_for(lambda: self._answer is not None or self._given_up)
            self.asking = False
            if self._given_up or self._answer is None:
                raise TaskCancelledError
            fresh = self._answer
        if fresh.model is None:
            return None
        return Merging(steps, fresh.version, fresh.clock), fresh.model

    def run(self, state: Tensors) -> PendingUpdate:
        """Train; returns what is to be sent, and the client's new state."""
        a, w = self.assign, self.workshop
        task = LocalTask(a.task, w.client, a.base, a.steps, a.seed, a.lr_factor)
        result = w.learner.train(a.model, task, w.objective, TaskInputs(dict(state)), self)
        if self._given_up:
            raise TaskCancelledError
        told = UpdateSubmission(
            a.task, self._end, result.delta, result.integers, result.metrics, result.lr, result.shared
        )
        if a.hold:
            norm = float(result.delta[: a.model.layout.parameters].norm())
            return PendingUpdate(
                replace(told, metrics={**result.metrics, "norm": norm}), result.state, held=True
            )
        return PendingUpdate(encoded(told, w, a.seed, None), result.state)


def encoded(
    result: UpdateSubmission, workshop: TrainingContext, seed: int, bits: int | None
) -> UpdateSubmission:
    """A result as it travels: its update within so many bits, where the algorithm has a codec."""
    if workshop.codec is None or isinstance(result.delta, bytes):
        return result
    generator = stream(seed, Purpose.CODEC, task=result.task)
    return replace(result, delta=workshop.codec.encode(result.delta, bits, generator))
