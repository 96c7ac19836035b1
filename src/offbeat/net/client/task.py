"""A task in training at a site, shared by the training thread and the event loop."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition
from typing import Protocol

from msgspec.structs import replace

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
    """A learner at a site."""

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
    """What the tasks of a site have in common; made once the site is registered."""

    client: ClientId
    learner: SiteLearner
    objective: Objective
    codec: Codec | None = None


class TaskCancelledError(Exception):
    """The server has cancelled the task."""


class TrainingTask(TaskControl):
    """A task in training. `ask` is called in the training thread when the task waits for a model."""

    def __init__(
        self, assign: TaskAssignment, context: TrainingContext, ask: Callable[["TrainingTask"], None]
    ) -> None:
        self.assign, self.context = assign, context
        self.steps = 0
        self.asking = False
        self._ask = ask
        self._epoch = context.learner.steps_per_epoch(context.client)
        self._change = Condition()
        self._answer: ModelResponse | None = None
        self._recalled = self._cancelled = False
        self._end = assign.steps

    @property
    def task(self) -> TaskId:
        """The task's number."""
        return self.assign.task

    # ---- called by the loop ----

    def answer(self, fresh: ModelResponse) -> None:
        """Pass the answer to the task's request."""
        with self._change:
            if self.asking:
                self._answer = fresh
                self._change.notify_all()

    def recall(self) -> None:
        """Report at the end of the epoch under way."""
        self._recalled = True

    def cancel(self) -> None:
        """Stop at the next step."""
        with self._change:
            self._cancelled = True
            self._change.notify_all()

    # ---- called by the training thread ----

    def stops(self, steps: int) -> bool:
        """Whether the task is recalled and at the end of an epoch."""
        self.steps = steps
        if self._cancelled:
            raise TaskCancelledError
        if self._recalled and steps and steps % self._epoch == 0:
            self._end = steps
            return True
        return False

    def fresh(self, steps: int) -> tuple[Merging, Model] | None:
        """Request a model once, after `ask_after` steps, and wait for it."""
        if not self.assign.ask_after or steps != self.assign.ask_after:
            return None
        with self._change:
            self.asking = True
            self._ask(self)
            self._change.wait_for(lambda: self._answer is not None or self._cancelled)
            self.asking = False
            if self._cancelled or self._answer is None:
                raise TaskCancelledError
            fresh = self._answer
        if fresh.model is None:
            return None
        return Merging(steps, fresh.version, fresh.clock), fresh.model

    def run(self, state: Tensors) -> PendingUpdate:
        """Train; returns the update and the client's new state."""
        a, c = self.assign, self.context
        task = LocalTask(a.task, c.client, a.base, a.steps, a.seed, a.lr_factor)
        result = c.learner.train(a.model, task, c.objective, TaskInputs(dict(state)), self)
        if self._cancelled:
            raise TaskCancelledError
        update = UpdateSubmission(
            a.task, self._end, result.delta, result.integers, result.metrics, result.lr, result.shared
        )
        if a.hold:
            norm = float(result.delta[: a.model.layout.parameters].norm())
            return PendingUpdate(
                replace(update, metrics={**result.metrics, "norm": norm}), result.state, held=True
            )
        return PendingUpdate(encode_update(update, c, a.seed, None), result.state)


def encode_update(
    update: UpdateSubmission, context: TrainingContext, seed: int, bits: int | None
) -> UpdateSubmission:
    """An update as it is sent: encoded within `bits` (None means no limit), if the algorithm has a codec."""
    if context.codec is None or isinstance(update.delta, bytes):
        return update
    generator = stream(seed, Purpose.CODEC, task=update.task)
    return replace(update, delta=context.codec.encode(update.delta, bits, generator))
