"""The replies of a site to one Flower message: a function of the server's messages and the site's memory."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from offbeat.core.error_feedback import with_old_residual
from offbeat.core.errors import OffbeatError, RunError, UsageError
from offbeat.core.features import Feature
from offbeat.core.learner import LocalResult, MergePoint, TaskInputs
from offbeat.flower.context_state import Memory, PausedTask
from offbeat.local.torch_learner import TorchLearner
from offbeat.net.client.first_batch import DataError, trying
from offbeat.net.client.site import Site
from offbeat.net.client.task import TrainingContext
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
from offbeat.net.run_spec import read_run_spec

log = logging.getLogger(__name__)


def register(registered: Registered, site: Site, tell_labels: bool) -> Register | Leave:
    """A site's answer to a run's spec: `Leave`, with the reason, if it cannot take part."""
    try:
        with trying():
            context = TrainingContext.of(read_run_spec(registered.plan), site, registered.client)
            if Feature.MERGE in context.objective.provides and not isinstance(context.learner, TorchLearner):
                raise UsageError(
                    "Flower stores a task that asks for a fresh model, which it cannot with a training loop "
                    "of one's own: use offbeat.client, or an algorithm without fresh models"
                )
            context.check_data()
    except DataError as error:
        log.error("%s", error)
        return Leave(error.told)
    except UsageError as error:
        return Leave(str(error))
    labels = site.labels if tell_labels else None
    return Register(site.told_samples, site.steps_per_epoch, tuple(labels or ()))


def respond(
    registered: Registered, messages: Sequence[Message], memory: Memory, site: Site
) -> list[FromSite]:
    """Carry out the server's messages; returns the replies, and leaves in `memory` the state of the node."""
    memory.begin(registered.run)
    context = TrainingContext.of(read_run_spec(registered.plan), site, registered.client)
    runner = _TaskRunner(memory, context)
    return [reply for message in messages for reply in runner.handle(message)]


@dataclass
class _TaskRunner:
    memory: Memory
    context: TrainingContext

    def handle(self, message: Message) -> Iterator[FromSite]:
        memory = self.memory
        match message:
            case UpdateAck():
                memory.acknowledge(message.task, message.accepted)
            case TaskCancel():
                memory.acknowledge(message.task, False)
                if memory.paused is not None and memory.paused.assignment.task == message.task:
                    memory.paused = None
            case TaskAssignment() | ModelResponse():
                try:
                    yield self._train(message)
                except Exception as error:
                    # The text of Offbeat's own errors says all, so their traceback is left out.
                    own = isinstance(error, OffbeatError)
                    log.error("task %d failed: %s", message.task, error, exc_info=not own)
                    yield TaskFailed(message.task, f"{type(error).__name__}: {error}")

    def _train(self, message: TaskAssignment | ModelResponse) -> UpdateSubmission | ModelRequest:
        """Begin a task, or go on with the one that has asked for this model."""
        paused, self.memory.paused = self.memory.paused, None
        if isinstance(message, TaskAssignment):
            self.memory.pending = None
            return self._begin(message)
        if paused is None or paused.assignment.task != message.task:
            raise RunError("the checkpoint of the task is lost")
        return self._resume(paused, message)

    def _begin(self, a: TaskAssignment) -> UpdateSubmission | ModelRequest:
        c, task, inputs = self.context, self.context.local_task(a), TaskInputs(dict(self.memory.state))
        if not 0 < a.ask_after < a.steps:
            return self._update(a, c.learner.train(a.model, task, c.objective, inputs))
        # Other learners are refused when the site registers.
        assert isinstance(c.learner, TorchLearner)
        training = c.learner.train_until(a.model, task, c.objective, inputs, a.ask_after)
        self.memory.paused = PausedTask(a, training)
        return ModelRequest(a.task, a.ask_after)

    def _resume(self, paused: PausedTask, response: ModelResponse) -> UpdateSubmission:
        a, model, c = paused.assignment, response.model, self.context
        merging = MergePoint(a.ask_after, response.version, response.clock) if model is not None else None
        task, inputs = c.local_task(a, merging), TaskInputs(dict(self.memory.state), model)
        assert isinstance(c.learner, TorchLearner)
        result = c.learner.train_from(a.model, task, c.objective, inputs, a.ask_after, paused.training)
        return self._update(a, result)

    def _update(self, a: TaskAssignment, result: LocalResult) -> UpdateSubmission:
        """An update as it is sent; the state after it counts once it is accepted."""
        state = with_old_residual(result.state, self.memory.state)
        update, after = self.context.encode(self.context.submission(a, a.steps, result), state)
        self.memory.pending = a.task, after
        return update
