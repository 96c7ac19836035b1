"""Running a simulation, from its start or from where it was interrupted."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from offbeat.callbacks.callback import Callback
from offbeat.callbacks.callback_list import CallbackList, live_run
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import RunError
from offbeat.core.guard import Guard
from offbeat.core.learner import Learner, own_tensors
from offbeat.core.limits import Every, Until
from offbeat.core.metric_names import NamedMetric
from offbeat.core.model import Model
from offbeat.core.privacy.options import Privacy
from offbeat.core.schedule_rule import recorded_schedule_rule, with_rule
from offbeat.experiment import EACH_VERSION, ENDS, Experiment
from offbeat.runs.best import BestModel
from offbeat.runs.client_states import ClientStates, check_memory, write_own
from offbeat.runs.initial import Initial
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.store import RunStore
from offbeat.runs.summary import Summary, summary_of
from offbeat.sim.backend import LiveBackend
from offbeat.sim.executors.batched import Batched
from offbeat.sim.executors.ray.cluster import OnRay
from offbeat.sim.executors.start import started
from offbeat.sim.loop import run_to_end
from offbeat.sim.observed import ObservedRecorder
from offbeat.sim.progress import Watcher
from offbeat.sim.restore import final_model, restore
from offbeat.sim.result import MemoryRecorder, Run
from offbeat.sim.signals import deferred_interrupts
from offbeat.sim.simulated_run import SimulatedRun
from offbeat.sim.simulation import Recorder, Simulation
from offbeat.world.world import World

CHECKPOINT_SECONDS = 10.0


def simulate(
    algorithm: Algorithm,
    world: World = World(),
    learner: Learner | None = None,
    *,
    seed: int = 0,
    until: Until = ENDS,
    evaluate: Every | None = EACH_VERSION,
    workers: int = 0,
    executor: Batched | OnRay | None = None,
    out: str | Path | None = None,
    label: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    watch: Watcher | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    client_memory: int | None = None,
    initial: Initial | None = None,
    guard: Guard | None = Guard(),
    privacy: Privacy | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Run an algorithm in virtual time.

    Args:
        algorithm: The algorithm.
        world: Speeds, networks and availability of the clients.
        learner: Trains and evaluates. None means nothing is trained: the run shows what the schedule does.
        seed: The run's seed, in [0, 2**63).
        until: The run's limits.
        evaluate: How often the global model is evaluated; None means never.
        workers: Single-threaded processes that train; 0 trains in this process. Results do not depend on it.
        executor: `OnRay` trains on a Ray cluster, with the same results; `Batched` trains many clients
            together, and its results differ in the last bits. None means `workers` decides.
        out: Directory to write the run to, from which it can be resumed. None means it stays in memory.
        label: What the run is called in tables and pictures; None means the algorithm's name.
        recipe: The recipe the run is made from, written to its directory.
        watch: Called with the progress about ten times a second.
        checkpoint_seconds: Real seconds between two checkpoints, at most.
        client_memory: Bytes in memory of what clients keep from task to task; the rest goes to files. None
            means all of it stays in memory.
        initial: The weights that the run starts from: a .safetensors file, the directory of a finished run,
            or a model. None means the learner's own.
        guard: Refuses updates whose size is absurd beside the recent ones. None means no guard.
        privacy: Noise, secure sums and their options. None means that each update is used as it is.
        callbacks: What is called while the run goes on, in this order.

    Returns:
        The finished run.

    Raises:
        UsageError: What is asked cannot be run.
        RunError: The run fails, or a callback does.
    """
    check_memory(client_memory)
    calls = CallbackList(callbacks)
    experiment = Experiment(
        algorithm, learner, seed, until, evaluate or Every(), guard, privacy, initial, label, recipe
    )
    planned = SimulatedRun.of(experiment, world)
    with calls.exceptions():
        with (
            started(planned.learner, algorithm.objective, workers, executor) as trainer,
            deferred_interrupts() if out is not None else nullcontext(lambda: False) as interrupted,
        ):
            store, directory, meta = None, None if out is None else Path(out), dict[str, Any]()
            if directory is not None or calls:
                meta = planned.prepared.metadata() | {"batched": isinstance(executor, Batched)}
            if directory is not None:
                store = RunStore.create(directory, meta | planned.described, _client_rows(planned))
            recorder = store or MemoryRecorder(
                experiment.name, experiment.seed, planned.learner.clients, planned.prepared.higher_is_better
            )
            backend = LiveBackend(planned, trainer, ClientStates(directory, client_memory))
            simulation = Simulation(planned, backend, _observed(recorder, planned, backend, calls))
            if calls:
                calls.run = live_run(meta, directory, (), simulation.stop)
            model = run_to_end(simulation, backend, store, watch, checkpoint_seconds, interrupted, calls)
        run = _result(simulation, backend, model, recorder)
    calls.on_end(run.stop_reason, model)
    return run


def resume(
    directory: str | Path,
    algorithm: Algorithm,
    world: World = World(),
    learner: Learner | None = None,
    *,
    until: Until = ENDS,
    evaluate: Every | None = EACH_VERSION,
    workers: int = 0,
    executor: Batched | OnRay | None = None,
    watch: Watcher | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    client_memory: int | None = None,
    initial: Initial | None = None,
    guard: Guard | None = Guard(),
    privacy: Privacy | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Resume an interrupted run from its last checkpoint, given what it was started with.

    It ends bit-identical to a run that was never interrupted.

    Args:
        directory: The run's directory.
        algorithm: As for `simulate`, and so are the arguments that follow.
        world: Speeds, networks and availability of the clients.
        learner: Trains and evaluates.
        until: The run's limits.
        evaluate: How often the global model is evaluated; None means never.
        workers: Single-threaded processes that train.
        executor: `Batched` if the run was started with it, else any other.
        watch: Called with the progress about ten times a second.
        checkpoint_seconds: Real seconds between two checkpoints, at most.
        client_memory: Bytes in memory of what clients keep from task to task.
        initial: The weights that the run started from.
        guard: The guard that the run was started with.
        privacy: The options of privacy that the run was started with.
        callbacks: What is called while the run goes on from its checkpoint; not if it has finished.

    Returns:
        The finished run; one that had finished before, as it is.

    Raises:
        UsageError: What is given is not what the run was started with.
        RunError: What is given does not repeat the run's journal, or only one of the two trains with
            `Batched`, or the run or a callback fails.
    """
    check_memory(client_memory)
    calls = CallbackList(callbacks)
    directory = Path(directory)
    record = read_run(directory)
    algorithm = with_rule(algorithm, recorded_schedule_rule(record.entry("algorithm")))
    experiment = Experiment(
        algorithm, learner, record.seed, until, evaluate or Every(), guard, privacy, initial
    )
    planned = SimulatedRun.of(experiment, world)
    planned.prepared.check_same(record, planned.described)
    if record.status == "finished":
        return _finished(record, planned)
    _check_executor(record, executor)
    with calls.exceptions():
        with started(planned.learner, algorithm.objective, workers, executor) as trainer:
            store = RunStore.reopen(directory)  # first: no other process may write from here on
            try:
                record = read_run(directory)  # as the last holder of the lock left it
                if record.status == "finished":
                    store.close()
                    return _finished(record, planned)
                backend = LiveBackend(planned, trainer, ClientStates(directory, client_memory))
                recorder = _observed(store, planned, backend, calls)
                simulation = Simulation(planned, backend, recorder)
                restore(simulation, backend, recorder, record)
            except BaseException:
                store.close()
                raise
            with deferred_interrupts() as interrupted:
                store.set_meta({"status": "running"})
                if calls:
                    calls.run = live_run(record.meta, directory, record.evaluations(), simulation.stop)
                model = run_to_end(simulation, backend, store, watch, checkpoint_seconds, interrupted, calls)
        run = _result(simulation, backend, model, store)
    calls.on_end(run.stop_reason, model)
    return run


def _observed(
    recorder: RunStore | MemoryRecorder, run: SimulatedRun, backend: LiveBackend, calls: CallbackList
) -> Recorder:
    """The recorder, with what observes the run around it, if anything does."""
    if (name := run.experiment.evaluate.keep_best) is not None:
        directory = recorder.directory if isinstance(recorder, RunStore) else None
        past = read_run(directory).evaluations() if directory is not None else []
        metric = NamedMetric.of(name, run.prepared.higher_is_better)
        recorder.best = BestModel(metric, directory, [(m.version, m.t) for m in past])
    if not calls and recorder.best is None:
        return recorder
    return ObservedRecorder(recorder, backend, calls, recorder.best)


def _client_rows(run: SimulatedRun) -> Iterator[tuple[int, int, str | None]]:
    learner = run.learner
    for client in range(learner.clients):
        counts = learner.label_counts(client)
        yield client, run.samples(client), json.dumps(counts) if counts is not None else None


def _check_executor(record: RunRecord, executor: Batched | OnRay | None) -> None:
    """The others give the same bits as each other."""
    then, now = record.meta.get("batched", False), isinstance(executor, Batched)
    if then != now:
        before, allowed = ("with", "only batched") if then else ("without", "any other")
        raise RunError(
            f"{record.path} was started {before} executor batched, which rounds differently: it would "
            f"not end as it would have without the interruption; resume it with {allowed}"
        )


def _result(
    simulation: Simulation, backend: LiveBackend, model: Model, recorder: RunStore | MemoryRecorder
) -> Run:
    reason = simulation.stop_reason or ""
    numbers = summary_of(simulation.engine, simulation.now, simulation.evaluations)
    summary = Summary(**numbers, client_state_bytes=backend.clients.nbytes)
    if isinstance(recorder, MemoryRecorder):
        states = backend.clients
        own = {client: own_tensors(states.get(client), model.layout) for client in states.sizes()}
        return Run(model, summary, reason, recorder, own=own)
    with closing(recorder):
        write_own(recorder.directory, backend.clients, model.layout)
        recorder.finish(model, simulation.now, reason, asdict(summary))
    return Run(model, summary, reason, read_run(recorder.directory), recorder.directory)


def _finished(record: RunRecord, run: SimulatedRun) -> Run:
    model = final_model(record, run.prepared.initial.layout)
    return Run(model, Summary.read(record.entry("summary")), record.stop_reason or "", record, record.path)
