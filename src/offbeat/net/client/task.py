"""A task in training at a site, shared by the training thread and the event loop."""

import dataclasses
import logging
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from math import inf
from queue import SimpleQueue
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING

import torch
from msgspec.structs import replace

from offbeat.core.codec import Codec
from offbeat.core.error_feedback import (
    RESIDUAL,
    feeds_back,
    with_new_residual,
    with_old_residual,
    with_residual,
)
from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId, Metrics, TaskId
from offbeat.core.extras import requires_extra
from offbeat.core.learner import (
    LocalResult,
    LocalTask,
    MergePoint,
    TaskControl,
    TaskInputs,
    evaluation_inputs,
)
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import Objective
from offbeat.core.privacy.privacy_options import Privacy, rounded_up
from offbeat.core.streams import Purpose, stream
from offbeat.local.batches import samples_per_epoch, steps_per_epoch
from offbeat.local.examples_privacy import sampling_rate
from offbeat.local.feature_statistics import StatisticsLearner
from offbeat.local.loop_learner import LoopLearner
from offbeat.local.torch_learner import TorchLearner
from offbeat.net.client.examples_ledger import ExamplesLedger
from offbeat.net.client.first_batch import check_data
from offbeat.net.client.policy import DEFAULT_POLICY, PolicyError, SitePolicy
from offbeat.net.client.site import Site
from offbeat.net.client.store import PendingUpdate
from offbeat.net.client.task_digests import result_digest
from offbeat.net.messages import (
    LONGEST_METRIC,
    MOST_METRICS,
    ModelResponse,
    TaskAssignment,
    UpdateSubmission,
)
from offbeat.net.run_spec import RunSpec
from offbeat.net.secure.private_update import failed_update, private_update

if TYPE_CHECKING:
    from offbeat.net.secure.masking import Masking

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingContext:
    """The common context of a site's tasks; made once the site is registered.

    `seed` is the run's. `evaluator` evaluates on what the site holds out, if it holds out any: a learner with
    a module of its own, since it works beside a training; `threads` is its number of PyTorch threads. A local
    step takes at least `min_step_seconds`, to try out an algorithm with sites of different speed; the results
    are the same. `policy` is the site's. `privacy` are the run's options of privacy, and `clip_factor` gives
    what an update is multiplied by before it is clipped, from its number of steps; None means by 1.
    `parameters` is the model's number of them. `masking` masks the updates of a secure run; None of any
    other, and before its helpers are known.
    `examples` counts what the site's examples spend; None means that they have no privacy of their own.
    `may_need_labels` says whether the plan allows a server to ask for the numbers of samples by class.
    """

    client: ClientId
    learner: TorchLearner | LoopLearner
    objective: Objective
    codec: Codec | None
    seed: int
    min_step_seconds: float = 0.0
    evaluator: TorchLearner | LoopLearner | None = None
    threads: int = 1
    policy: SitePolicy = DEFAULT_POLICY
    privacy: Privacy | None = None
    clip_factor: Callable[[int], float] | None = None
    parameters: int = 0
    masking: "Masking | None" = None
    examples: ExamplesLedger | None = None
    may_need_labels: bool = False

    @classmethod
    def of(
        cls,
        spec: RunSpec,
        site: Site,
        client: ClientId,
        min_step_seconds: float = 0.0,
        examples: ExamplesLedger | None = None,
    ) -> "TrainingContext":
        """The context of a site as a run's client. Raises `UsageError` if it does not fit the run."""
        objective, policy, metrics = spec.objective(site.allow), site.policy, spec.metrics or {}
        policy.check_plan(objective, tuple(metrics.values()), spec.privacy)
        if spec.secure:
            require_masks()
        learner = site.make_learner(spec, client)
        policy.check_batch(site.samples, learner.batch_size)
        labels = spec.may_need_labels(site.allow)
        if isinstance(learner, StatisticsLearner):
            site.note_statistics(learner)
            labels = False
        if examples is not None:
            learner = _by_example(learner, objective, site.samples, examples)
        return cls(
            client, learner, objective, spec.codec, spec.seed, min_step_seconds, policy=policy,
            privacy=spec.privacy, clip_factor=partial(spec.clip_factor, allow=site.allow),
            parameters=spec.parameters, examples=examples, may_need_labels=labels,
        )  # fmt: skip

    @property
    def waits_for_helpers(self) -> bool:
        """Whether updates are to be masked, and it is not known yet for whom."""
        return self.privacy is not None and self.privacy.secure is not None and self.masking is None

    @property
    def private(self) -> bool:
        """Whether nothing leaves the site of a training but the update."""
        return self.privacy is not None or self.examples is not None

    @property
    def steps_per_epoch(self) -> int:
        """Local steps of an epoch of the reported number of samples."""
        samples = rounded_up(self.learner.samples(self.client), self.policy.samples_unit)
        return steps_per_epoch(samples, self.learner.batch_size, self.learner.drop_last)

    def check_data(self) -> None:
        """Try the data: one forward and backward pass. Raises `DataError` where they do not fit the run.

        A training loop of one's own does with its data what it likes.
        """
        if isinstance(self.learner, TorchLearner):
            check_data(self.learner, self.client, self.seed, self.objective)

    def begin(self, steps: int) -> None:
        """Charge a task's steps to the examples, unless the policy refuses it: `local_task` raises then.

        Raises:
            UsageError: Their budget does not allow it.
        """
        if self.examples is not None:
            with suppress(PolicyError):
                self._check_task(steps)
                self.examples.begin(steps)

    def _check_task(self, steps: int) -> None:
        """Raises `PolicyError` for a task of `steps` steps that the policy refuses."""
        learner, samples = self.learner, self.learner.samples(self.client)
        used = samples_per_epoch(samples, learner.batch_size, learner.drop_last)
        self.policy.check_task(steps, used, learner.batch_size)

    def evaluating(self, threads: int) -> "TrainingContext":
        """The same context, ready for evaluations if the site holds out samples.

        To be called where no task is in training: modules are made with PyTorch's global random stream.
        """
        if self.private or not (self.policy.evaluations and self.learner.held_out(self.client)):
            return self
        evaluator = self.learner
        if isinstance(evaluator, TorchLearner):
            # The copy makes a module of its own.
            evaluator = copy(evaluator)
            evaluator.initial(self.seed)
            evaluator.prepare()
        return dataclasses.replace(self, evaluator=evaluator, threads=threads)

    def evaluate(self, model: Model, state: Tensors) -> tuple[int, Metrics]:
        """Evaluate on held-out samples: reported number of samples, and metrics. In any thread, in turn."""
        if self.evaluator is None:
            return 0, {}
        torch.set_num_threads(self.threads)
        samples, found = self.evaluator.evaluate_client(model, self.client, evaluation_inputs(state))
        return rounded_up(samples, self.policy.samples_unit), found

    def local_task(self, a: TaskAssignment, fresh: MergePoint | None = None) -> LocalTask:
        """The task of an assignment, as the learner trains it. Raises `PolicyError` for one it may not."""
        self._check_task(a.steps)
        return LocalTask(a.task, self.client, a.base, a.steps, a.seed, a.lr_factor, fresh)

    def encode(
        self, update: UpdateSubmission, state: Tensors, bits: int | None = None
    ) -> tuple[UpdateSubmission, Tensors]:
        """An update as it is sent, and the client's state once it is accepted.

        Args:
            update: The update.
            state: The client's state after the task; its residual is that before the task.
            bits: The largest size of the update, if the algorithm has a codec. None means no limit.
        """
        if self.codec is None or isinstance(update.delta, bytes):
            return update, state
        generator = stream(self.seed, Purpose.CODEC, task=update.task)
        vector = with_residual(self.codec, update.delta, state.get(RESIDUAL))
        payload = self.codec.encode(vector, bits, generator)
        if feeds_back(self.codec):
            state = with_new_residual(self.codec, state, vector, self.codec.decode(payload, len(vector)))
        return replace(update, delta=payload), state

    def submission(self, a: TaskAssignment, steps: int, result: LocalResult) -> UpdateSubmission:
        """The update of a task that ended after `steps` steps, under the policy; not encoded."""
        if self.privacy is None:
            result = result if self.examples is None else private_update(result, a.model, inf)
        else:
            assert self.privacy.clip is not None
            # No sum needs the learning rate, and that of a failed training would reveal the failure.
            result = replace(result, lr=0.0)
            factor = self.clip_factor(steps) if self.clip_factor is not None else 1.0
            if self.privacy.secure is not None:
                assert self.masking is not None, "a task before the committee"
                result = self.policy.clipped(result, a.model.layout)
                return self.masking.submission(a, steps, result, factor)
            factor = abs(factor)
            result = private_update(result, a.model, self.privacy.clip / factor if factor else inf)
        r = self.policy.clipped(result, a.model.layout)
        check_own_metrics(r.metrics)
        return UpdateSubmission(a.task, steps, r.delta, r.integers, r.metrics, r.lr, r.shared)


def _by_example(
    learner: TorchLearner | LoopLearner, objective: Objective, samples: int, examples: ExamplesLedger
) -> TorchLearner:
    """The learner with privacy of examples. Raises `UsageError` for one that cannot have it."""
    if isinstance(learner, LoopLearner):
        raise UsageError(
            "examples privacy needs Offbeat's own local steps, a loop of one's own has others: give data, or "
            "a TorchLearner"
        )
    examples.options.check_objective(objective)
    private = learner.with_examples_privacy(examples.options, lambda _: examples.secret)
    examples.prepare(sampling_rate(learner.batch_size, samples))
    return private


def check_own_metrics(metrics: Metrics) -> None:
    """Raises `UsageError` for metrics of which no server would take the update."""
    longest = max(metrics, key=len, default="")
    if len(metrics) > MOST_METRICS or len(longest) > LONGEST_METRIC:
        raise UsageError(
            f"the update has {len(metrics)} metrics, the longest name {len(longest)} characters: at most "
            f"{MOST_METRICS} metrics of {LONGEST_METRIC} characters each can be sent"
        )


def require_masks() -> None:
    """Raises `UsageError` where masks cannot be made for want of the extra."""
    with requires_extra("secure", "secure aggregation: "):
        import cryptography  # noqa: F401


class TaskCancelledError(Exception):
    """The server has cancelled the task."""


class OtherResultError(Exception):
    """A task was trained a second time, with another result than the one that may have been sent."""


class TrainingTask(TaskControl):
    """A task in training.

    Args:
        assign: The task.
        context: What the tasks of the site have in common.
        ask: Called in the training thread when the task waits for a model.
        sent: Digest of the result that may have been sent before; no other one is sent. "" means none.
        received: Seconds in which its model came.
    """

    def __init__(
        self,
        assign: TaskAssignment,
        context: TrainingContext,
        ask: Callable[["TrainingTask"], None],
        sent: str = "",
        received: float = 0.0,
    ) -> None:
        self.assign, self.context, self._sent = assign, context, sent
        # Seconds in which the task's models came, of which those of `_asked` lie within the training.
        self._received, self._asked = received, 0.0
        self.steps = 0
        self.asking = False
        self._ask = ask
        self._epoch = context.steps_per_epoch
        # None means that the task is cancelled.
        self._answers: SimpleQueue[ModelResponse | None] = SimpleQueue()
        self._recalled, self._cancelled = False, Event()
        # The last step of the task, and when the present step began.
        self._end, self._begun = assign.steps, monotonic()

    @property
    def task(self) -> TaskId:
        """The task's number."""
        return self.assign.task

    # ---- called by the loop ----

    def answer(self, fresh: ModelResponse) -> None:
        """Pass the answer to the task's request."""
        if self.asking:
            self._answers.put(fresh)

    def recall(self) -> None:
        """Report at the end of the epoch under way."""
        self._recalled = True

    def cancel(self) -> None:
        """Stop at the next step."""
        self._cancelled.set()
        self._answers.put(None)

    # ---- called by the training thread ----

    def stops(self, steps: int) -> bool:
        """Whether the task is recalled and at the end of an epoch."""
        if steps:
            self._wait()
        self.steps = steps
        if self._cancelled.is_set():
            raise TaskCancelledError
        if self._recalled and steps >= self.context.policy.min_steps and steps % self._epoch == 0:
            self._end = steps
            return True
        return False

    def fresh(self, steps: int) -> tuple[MergePoint, Model] | None:
        """Request a model once, after `ask_after` steps, and wait for it."""
        found = self._request(steps) if 0 < steps == self.assign.ask_after else None
        self._begun = monotonic()
        return found

    def _request(self, steps: int) -> tuple[MergePoint, Model] | None:
        self.asking, begun = True, monotonic()
        self._ask(self)
        fresh = self._answers.get()
        self.asking, self._asked = False, monotonic() - begun
        if fresh is None:
            raise TaskCancelledError
        return None if fresh.model is None else (MergePoint(steps, fresh.version, fresh.clock), fresh.model)

    def _wait(self) -> None:
        """Until the step under way has taken its least time, or the task is cancelled."""
        left = self._begun + self.context.min_step_seconds - monotonic()
        if left > 0:
            self._cancelled.wait(left)

    def _train(self, task: LocalTask, state: Tensors) -> LocalResult:
        """Train; with privacy a training that fails gives zeros."""
        a, c = self.assign, self.context
        try:
            return c.learner.train(a.model, task, c.objective, TaskInputs(dict(state)), self)
        except TaskCancelledError:
            raise
        except Exception:
            if not c.private:
                raise
            log.exception("task %d failed: zeros are sent in place of its update", a.task)
            return failed_update(a.model, state)

    def run(self, state: Tensors) -> PendingUpdate:
        """Train; returns the update and the client's new state."""
        a, c = self.assign, self.context
        begun = monotonic()
        result = self._train(c.local_task(a), dict(state))
        self._wait()
        trained = monotonic() - begun - self._asked
        if self._cancelled.is_set():
            raise TaskCancelledError
        if c.examples is not None:
            c.examples.tell()
        digest = "" if c.privacy is None else result_digest(self._end, result)
        if self._sent and digest != self._sent:
            raise OtherResultError(f"task {a.task} has another result now than the one that was sent")
        update = c.submission(a, self._end, result)
        if not c.private:
            update = replace(update, received=self._received + self._asked, trained=max(0.0, trained))
        if a.hold and c.privacy is None:
            assert isinstance(update.delta, torch.Tensor)
            norm = float(update.delta[: a.model.layout.parameters].norm())
            update = replace(update, metrics={**update.metrics, "norm": norm})
        after = with_old_residual(result.state, state)
        if not a.hold:
            update, after = c.encode(update, after)
        return PendingUpdate(update, after, a.hold, digest)
