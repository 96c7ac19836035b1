"""A run of an experiment in the simulator, from its start or from its last checkpoint."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from weakref import ref

from offbeat.callbacks.callback import Callback
from offbeat.callbacks.callback_list import CallbackList, live_run
from offbeat.core.errors import RunError
from offbeat.core.learner import in_order, own_tensors
from offbeat.core.metric_names import NamedMetric
from offbeat.core.model import Model
from offbeat.documents import user_path
from offbeat.experiment import Experiment
from offbeat.local.torch_learner import TorchLearner
from offbeat.runs.best import BestModel
from offbeat.runs.cached_vectors import CachedVectors, check_cache_memory
from offbeat.runs.client_states import ClientStates, write_own
from offbeat.runs.extension import check_simulated, goes_on, limits_meta
from offbeat.runs.processor import gpu_name
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.store import RunStore
from offbeat.runs.summary import Summary, summary_of
from offbeat.signals import deferred_interrupts
from offbeat.sim.backend import LiveBackend
from offbeat.sim.event_loop import run_to_end
from offbeat.sim.execution import HERE, Execution
from offbeat.sim.executors.base import Executor
from offbeat.sim.executors.start import started
from offbeat.sim.executors.start_method import refuse_while_main_is_imported
from offbeat.sim.observed import ObservedRecorder
from offbeat.sim.progress import Watcher, check_watcher
from offbeat.sim.result import MemoryRecorder, Run
from offbeat.sim.resume import final_model, restore
from offbeat.sim.simulated_run import SimulatedRun
from offbeat.sim.simulation import Recorder, Simulation
from offbeat.world.world import World

log = logging.getLogger(__name__)


def simulate_experiment(
    experiment: Experiment,
    world: World,
    execution: Execution = HERE,
    *,
    out: str | Path | None = None,
    watch: Watcher | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Run an experiment in virtual time; arguments as of `offbeat.simulate`."""
    refuse_while_main_is_imported()
    check_watcher(watch)
    calls = CallbackList(callbacks)
    planned = SimulatedRun.of(experiment, world)
    check_cache_memory(execution.cache_limit, planned.algorithm, planned.prepared.initial.layout)
    with calls.exceptions():
        with (
            started(planned.learner, experiment.algorithm.objective, execution) as trainer,
            deferred_interrupts() if out is not None else nullcontext(lambda: False) as interrupted,
        ):
            store, directory, meta = None, None if out is None else user_path(out), dict[str, Any]()
            if directory is not None or calls:
                meta = planned.prepared.metadata() | {"batched": execution.batched}
                meta |= {"callbacks": calls.names} if calls else {}
            if directory is not None:
                names = {"client_names": [*planned.client_names.values()]} if planned.client_names else {}
                store = RunStore.create(directory, meta | planned.described | names, _client_rows(planned))
                _add_gpu(store, planned)
            recorder = store or MemoryRecorder(
                experiment.name, experiment.seed, planned.learner.clients, planned.prepared.higher_is_better,
                planned.client_names,
            )  # fmt: skip
            backend = _backend(planned, trainer, directory, execution)
            simulation = Simulation(planned, backend, _observed(recorder, planned, backend, calls))
            if calls:
                calls.run = live_run(meta, directory, (), _stop_of(simulation))
            pause = execution.checkpoint_seconds
            model = run_to_end(simulation, backend, store, watch, pause, interrupted, calls)
        run = _result(simulation, backend, model, recorder, execution.keep_checkpoint)
    calls.on_end(run.stop_reason, model)
    return run


def resume_experiment(
    directory: str | Path,
    experiment: Experiment,
    world: World,
    execution: Execution = HERE,
    *,
    watch: Watcher | None = None,
    callbacks: Sequence[Callback] | None = (),
) -> Run:
    """Resume an experiment's run under the recorded seed; arguments as of `offbeat.resume`.

    One that has ended goes on where its limits are others now, and it has reached none of them.
    """
    refuse_while_main_is_imported()
    check_watcher(watch)
    calls = CallbackList(callbacks or ())
    directory = user_path(directory)
    record = read_run(directory)
    check_simulated(record)
    learner = in_order(experiment.learner, record.columns)
    experiment = replace(experiment, learner=learner, seed=record.seed)
    planned = SimulatedRun.of(experiment, world)
    check_cache_memory(execution.cache_limit, planned.algorithm, planned.prepared.initial.layout)
    planned.prepared.check_same(record, planned.described)
    if _stays_ended(record, planned):
        return _finished(record, planned)
    _check_executor(record, execution)
    if callbacks is None and (dropped := record.meta.get("callbacks")):
        log.warning(
            "%s: the run goes on without its callbacks %.200s, which are told nothing from here on: give "
            "resume callbacks=[…], or callbacks=[] where that is meant",
            directory, ascii(dropped),
        )  # fmt: skip
    with calls.exceptions():
        with started(planned.learner, experiment.algorithm.objective, execution) as trainer:
            # Reopening takes the lock: from here on no other process may write.
            store = RunStore.reopen(directory)
            try:
                _add_gpu(store, planned)
                # The record is read again, since the last holder of the lock may have changed it.
                record = read_run(directory)
                if _stays_ended(record, planned):
                    store.close()
                    return _finished(record, planned)
                backend = _backend(planned, trainer, directory, execution)
                recorder = _observed(store, planned, backend, calls)
                simulation = Simulation(planned, backend, recorder)
                evaluations = restore(simulation, backend, recorder, record)
                limits = limits_meta(experiment.until, record.recipe)
                if record.status == "finished":
                    store.go_on(limits, evaluations)
                    record = read_run(directory)
                store.set_meta({"status": "running", "stop_reason": None, **limits})
            except BaseException:
                store.close()
                raise
            with deferred_interrupts() as interrupted:
                if calls:
                    past = record.evaluations()
                    calls.run = live_run(record.meta, directory, past, _stop_of(simulation))
                pause = execution.checkpoint_seconds
                model = run_to_end(simulation, backend, store, watch, pause, interrupted, calls)
        run = _result(simulation, backend, model, store, execution.keep_checkpoint)
    calls.on_end(run.stop_reason, model)
    return run


def _backend(
    run: SimulatedRun, trainer: Executor, directory: Path | None, execution: Execution
) -> LiveBackend:
    """The backend that trains, whose states and cache are in memory as far as they may be."""
    clients = ClientStates(directory, execution.client_memory)
    return LiveBackend(run, trainer, clients, CachedVectors(directory, execution.cache_limit))


def _stop_of(simulation: Simulation) -> Callable[[str], None]:
    """A function that ends a simulation in progress, and does not keep it in memory."""
    kept = ref(simulation)

    def stop(reason: str) -> None:
        if (running := kept()) is not None:
            running.stop(reason)

    return stop


def _stays_ended(record: RunRecord, run: SimulatedRun) -> bool:
    """Whether a run has ended, and its limits, as they are given now, do not let it go on."""
    return record.status == "finished" and not goes_on(record, run.experiment.until)


def _observed(
    recorder: RunStore | MemoryRecorder, run: SimulatedRun, backend: LiveBackend, calls: CallbackList
) -> Recorder:
    """The recorder, inside the observers of the run, if any."""
    if (name := run.experiment.evaluate.keep_best) is not None:
        directory = recorder.directory if isinstance(recorder, RunStore) else None
        past = read_run(directory).evaluations() if directory is not None else []
        metric = NamedMetric.of(name, run.prepared.higher_is_better)
        recorder.best = BestModel(metric, directory, [(m.version, m.t) for m in past])
    if not calls and recorder.best is None:
        return recorder
    return ObservedRecorder(recorder, backend, calls, recorder.best)


def _add_gpu(store: RunStore, run: SimulatedRun) -> None:
    """Record the kind of GPU that trains, if one does: it rounds unlike any processor."""
    if isinstance(run.learner, TorchLearner) and (name := gpu_name(run.learner.training.device)):
        store.add_processor(name)


def _client_rows(run: SimulatedRun) -> Iterator[tuple[int, int, str | None]]:
    learner = run.learner
    for client in range(learner.clients):
        counts = learner.label_counts(client)
        yield client, run.samples(client), json.dumps(counts) if counts is not None else None


def _check_executor(record: RunRecord, execution: Execution) -> None:
    """The others give the same bits as each other."""
    then, now = record.meta.get("batched", False), execution.batched
    if then != now:
        before, allowed = ("with", "only batched") if then else ("without", "any other")
        raise RunError(
            f"{record.path} was started {before} executor batched, which rounds differently: it would "
            f"not end as it would have without the interruption; resume it with {allowed}"
        )


def _result(
    simulation: Simulation,
    backend: LiveBackend,
    model: Model,
    recorder: RunStore | MemoryRecorder,
    keep_checkpoint: bool,
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
        last = (backend.tensors, backend.clients) if keep_checkpoint else None
        recorder.finish(model, simulation.now, reason, asdict(summary), last=last)
    return Run(model, summary, reason, read_run(recorder.directory), recorder.directory)


def _finished(record: RunRecord, run: SimulatedRun) -> Run:
    model = final_model(record, run.prepared.initial.layout)
    return Run(model, Summary.read(record.entry("summary")), record.stop_reason or "", record, record.path)
