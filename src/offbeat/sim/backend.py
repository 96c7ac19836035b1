"""Where a simulation's training comes from: an executor, or the record of a run that is repeated.

`LiveBackend` trains. `ReplayBackend` stands in for it while a run is repeated from its journal: the same
events happen in the same order, while metrics come from the record and no tensor is touched.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from offbeat.core.codec import Codec
from offbeat.core.commands import Discard, Upload
from offbeat.core.error_feedback import RESIDUAL, with_new_residual, with_old_residual, with_residual
from offbeat.core.errors import DivergedError, UsageError
from offbeat.core.events import Arrived, ClientId, ClientResults, Lost, Metrics, RolledBack, Skipped, TaskId
from offbeat.core.global_model import GlobalModel
from offbeat.core.journal import Row, event_of, metrics_of
from offbeat.core.learner import (
    ClientEvaluator,
    LocalResult,
    LocalTask,
    TaskInputs,
    evaluation_inputs,
)
from offbeat.core.limits import check_found
from offbeat.core.metric_names import check_metric_names
from offbeat.core.model import Model, Tensors
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.core.privacy.releases import ReleaseSeeds, SummedUpdates
from offbeat.core.recorded import RecordedJournal, ReplayError
from offbeat.core.release import EachUpdate, Release
from offbeat.core.streams import Purpose, stream
from offbeat.metrics.clients import aggregate_clients
from offbeat.runs.cached_vectors import CachedVectors
from offbeat.runs.client_states import ClientStates
from offbeat.runs.record import RunRecord
from offbeat.runs.schema import ClientMetric, Metric
from offbeat.sim.executors.base import Executor
from offbeat.sim.simulated_run import SimulatedRun

_NO_MODEL = 0, None


class _NotFiniteError(DivergedError):
    """An update that cannot be encoded."""


class LiveBackend:
    """Trains on an executor, from the versions of a global model.

    Attributes:
        guard: Options of the guard; None means that there is none.
    """

    def __init__(
        self, run: SimulatedRun, executor: Executor, clients: ClientStates, cached: CachedVectors
    ) -> None:
        algorithm, experiment, prepared, self.clients = run.algorithm, run.experiment, run.prepared, clients
        release = simulated_release(prepared.release_plan, experiment.seed)
        release.cache.keep_in(cached)
        self.tensors, self.guard = prepared.global_model(release, run.device), prepared.guard
        self._run, self._executor, self._codec = run, executor, algorithm.codec
        self._finished: dict[TaskId, LocalResult] = {}
        self._submitted: set[TaskId] = set()
        self._evaluated: tuple[int, Metrics, ClientResults] | None = None

    def submit(self, task: LocalTask, due: float) -> None:
        """Train a task, due at `due` (seconds); anew, if it was submitted otherwise before."""
        number, tensors = task.task, self.tensors
        if number in self._submitted:
            self._executor.cancel(number)
        self._submitted.add(number)
        _, base = tensors.bases[number]
        _, fresh = tensors.fresh.get(number, _NO_MODEL)
        self._executor.submit(task, base, due, TaskInputs(self.clients.get(task.client), fresh))

    def prepare(self, task: TaskId) -> Metrics:
        """Wait for the training of a task whose client holds the update; its metrics, and its "norm"."""
        result = self._result(task)
        norm = float(result.delta[: self.tensors.model.layout.parameters].norm())
        return {**result.metrics, "norm": norm}

    def finish(self, arrival: Arrived, upload: Upload | None) -> tuple[Arrived | Lost, LocalResult | None]:
        """Wait for the training of a task whose update is due; its arrival with metrics, and the update.

        The update goes through the codec, and the client keeps its new state; not where the guard refuses
        the update, with which the task is lost.
        """
        client, task, steps = arrival.client, arrival.task, arrival.steps
        result = self._take(task)
        if self._codec is not None:
            try:
                result = self._coded(self._codec, arrival, result, upload.bits if upload else None)
            except _NotFiniteError:
                if self.tensors.guard is None:
                    raise
        tensors = self.tensors
        result = tensors.release.clip(task, steps, result, self._run.algorithm.aggregator)
        reason = tensors.admit(client, task, steps, result)
        if tensors.guard is not None:
            self._forget_initial()
        if reason is not None:
            return Lost(client, task, f"rejected: {reason}"), None
        self._keep(client, result.state)
        return replace(arrival, metrics=result.metrics), result

    def _forget_initial(self) -> None:
        """Free the initial model, the target of a rollback, once the guard knows ordinary norms."""
        guard = self.tensors.update_guard
        if guard is not None and guard.settled and guard.poisoned is None:
            self.tensors.good = None

    def _keep(self, client: ClientId, state: Tensors) -> None:
        """A client keeps its new state, with which it may evaluate the same version otherwise."""
        self.clients.put(client, state)
        if state and self._run.experiment.evaluate.at_clients:
            self._evaluated = None

    def _coded(self, codec: Codec, arrival: Arrived, result: LocalResult, bits: int | None) -> LocalResult:
        """Apply the codec to an update; its cost with integers and shared vector is the metric "bits"."""
        task, residual = arrival.task, self.clients.get(arrival.client).get(RESIDUAL)
        rng = stream(self._run.experiment.seed, Purpose.CODEC, task=task)
        vector = with_residual(codec, result.delta.cpu(), residual)
        try:
            delta, charged = codec.apply(vector, bits, rng)
        except UsageError:
            if bool(result.delta.isfinite().all()):
                raise
            raise _NotFiniteError(
                f"the update of task {task} has infinities or NaN, which no codec can encode: its training "
                "has diverged; give a smaller learning rate"
            ) from None
        layout = self.tensors.model.layout
        total = charged + 64 * layout.integers + 32 * layout.shared
        state = with_new_residual(codec, result.state, vector, delta)
        metrics = {**result.metrics, "bits": total}
        return replace(result, delta=delta.to(result.delta.device), metrics=metrics, state=state)

    @property
    def diverged(self) -> str | None:
        """Why the guard refuses all updates; None means that it does not."""
        return self.tensors.guard.diverged if self.tensors.guard is not None else None

    def skipped(self) -> Sequence[Skipped]:
        """The aggregations that the last event has led to and that are skipped."""
        return tuple(self.tensors.skipped) if self.tensors.skipped else ()

    def poisoned(self) -> RolledBack | None:
        """The rollback that the guard demands after the last event, if it does."""
        return self.tensors.poisoned

    def discard(self, command: Discard) -> None:
        """A client does not send the update it holds. One that keeps state has trained all the same."""
        if command.task in self._finished or command.task in self._submitted:
            state, before = self._result(command.task).state, self.clients.get(command.client)
            self._keep(command.client, with_old_residual(state, before))
        self.cancel(command.task)

    def _result(self, task: TaskId) -> LocalResult:
        """The result of a task's training, which is kept until it is taken."""
        result = self._finished[task] = self._take(task)
        return result

    def _take(self, task: TaskId) -> LocalResult:
        """Wait for the result of a task's training, and keep it no longer."""
        if task in self._finished:
            return self._finished.pop(task)
        result = self._executor.result(task)
        check_metric_names(result.metrics)
        self._submitted.discard(task)
        return result

    def cancel(self, task: TaskId) -> None:
        """A task ends without an update."""
        self._finished.pop(task, None)
        if task in self._submitted:
            self._submitted.discard(task)
            self._executor.cancel(task)

    def evaluate(self, version: int) -> tuple[Metrics, ClientResults]:
        """Evaluate the current version, once: the metrics, and those of each client."""
        if self._evaluated is None or self._evaluated[0] != version:
            every, model = self._run.experiment.evaluate, self.completed()
            metrics = dict(self._executor.evaluate(model)) if every.at_server else {}
            clients = self._evaluate_clients(model) if every.at_clients else {}
            if every.at_clients:
                metrics |= aggregate_clients(clients, self._run.prepared.higher_is_better)
            if self._evaluated is None:
                check_found(self._run.experiment.until, every, metrics)
            self._evaluated = version, metrics, clients
        return self._evaluated[1:]

    def _evaluate_clients(self, model: Model) -> ClientResults:
        learner = self._run.learner
        assert isinstance(learner, ClientEvaluator)
        holding = [client for client in range(learner.clients) if learner.held_out(client)]
        inputs = ((client, evaluation_inputs(self.clients.get(client))) for client in holding)
        return self._executor.evaluate_clients(model, inputs)

    def completed(self) -> Model:
        """The current version, complete."""
        return self._run.prepared.complete(self.tensors.model)


def simulated_release(plan: ReleasePlan | None, seed: int) -> Release:
    """How versions are made; sums have randomness that follows from the seed, and masks if asked to."""
    if plan is None:
        return EachUpdate()
    secure, seeds = plan.privacy.secure, simulated_seeds(seed)
    if secure is None or not secure.masks:
        return SummedUpdates(plan, seeds)
    # The module needs the extra `secure`.
    from offbeat.sim.masked_sums import MaskedSums

    return SummedUpdates(plan, seeds, sum_updates=MaskedSums(plan))


def simulated_seeds(seed: int) -> ReleaseSeeds:
    """Seeds of releases that follow from the run's: such a model is not private."""
    return ReleaseSeeds(
        noise=lambda release: stream(seed, Purpose.NOISE, task=release.version).bytes(32),
        rounding=lambda task, _: stream(seed, Purpose.ROUND, task.client, task.id).bytes(32),
    )


class ReplayBackend:
    """Answers from a run's record, and as its recorder checks that the run repeats it."""

    tensors: GlobalModel | None = None
    diverged: str | None = None

    def __init__(self, record: RunRecord) -> None:
        self._journal, self._evaluations = RecordedJournal(record.rows()), record.evaluations()
        self._found = iter(self._evaluations)

    def row(self, row: Row) -> None:
        """Check a journal row."""
        self._journal.check(row)

    def metric(self, metric: Metric, clients: Iterable[ClientMetric] = ()) -> None:
        """Check an evaluation: it must have been made at the same moment."""
        recorded = self._evaluations[metric.seq] if metric.seq < len(self._evaluations) else None
        if recorded is None or recorded[:6] != metric[:6]:
            raise ReplayError(f"it now evaluates at {metric}, the record has {recorded}")

    def submit(self, task: LocalTask, due: float) -> None:
        """Train nothing: tasks still in training at the end are submitted then."""

    def cancel(self, task: TaskId) -> None:
        """Nothing was submitted."""

    def discard(self, command: Discard) -> None:
        """Nothing was submitted."""

    def prepare(self, task: TaskId) -> Metrics:
        """The recorded metrics."""
        return self._recorded(task, "ready")

    def finish(self, arrival: Arrived, upload: Upload | None) -> tuple[Arrived | Lost, LocalResult | None]:
        """The arrival with the recorded metrics; or that the guard refused the update."""
        row = self._journal.peek()
        if row is not None and (row.name, row.task) == ("lost", arrival.task):
            return Lost(arrival.client, arrival.task, (row.data or {})["reason"]), None
        metrics = self._recorded(arrival.task, "arrived")
        return replace(arrival, metrics=metrics), None

    def _recorded(self, task: TaskId, name: str) -> Metrics:
        row = self._journal.peek()
        if row is None or row.name != name or row.task != task:
            raise ReplayError(f"task {task} is {name} now, the journal has {row}")
        return metrics_of(row)

    def skipped(self) -> Iterator[Skipped]:
        """The recorded ones, which are the next rows."""
        while (row := self._journal.peek()) is not None and row.name == "skipped":
            skipped = event_of(row)
            assert isinstance(skipped, Skipped)
            yield skipped

    def poisoned(self) -> RolledBack | None:
        """The recorded rollback, if it is the next row."""
        row = self._journal.peek()
        if row is None or row.name != "rolled_back":
            return None
        event = event_of(row)
        assert isinstance(event, RolledBack)
        return event

    def evaluate(self, version: int) -> tuple[Metrics, ClientResults]:
        """The next recorded evaluation; `metric` checks that it is this one."""
        recorded = next(self._found, None)
        return recorded.found if recorded is not None else {}, {}


Backend = LiveBackend | ReplayBackend
