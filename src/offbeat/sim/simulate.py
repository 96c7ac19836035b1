"""Running a simulation, from its start or from where it was interrupted."""

import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from offbeat.algorithms import recorded_name
from offbeat.core.algorithm import Algorithm
from offbeat.core.buffers import finalizer
from offbeat.core.errors import RunError, UsageError
from offbeat.core.features import Feature
from offbeat.core.global_model import GlobalModel
from offbeat.core.learner import Learner, NoTraining
from offbeat.core.limits import Every, Until
from offbeat.core.model import Layout, Model
from offbeat.core.streams import check_seed
from offbeat.local.learner import TorchLearner
from offbeat.runs.client_states import ClientStates, check_memory
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.store import RunStore
from offbeat.runs.summary import Summary, summary_of
from offbeat.sim.backend import LiveBackend
from offbeat.sim.executors.base import Executor
from offbeat.sim.executors.batched import Batched, BatchTraining
from offbeat.sim.executors.in_process import InProcess
from offbeat.sim.executors.processes import ProcessPool
from offbeat.sim.executors.ray.cluster import OnRay
from offbeat.sim.executors.ray.pool import RayPool
from offbeat.sim.progress import ProgressMeter, Watcher
from offbeat.sim.restore import final_model, recorded_past, repeat, restore_tensors
from offbeat.sim.result import MemoryRecorder, Run
from offbeat.sim.signals import deferred_interrupts
from offbeat.sim.simulation import Simulation
from offbeat.vectors.allocator import HeapTrimmer
from offbeat.version import __version__
from offbeat.world.population import Population
from offbeat.world.world import World

CHECKPOINT_SECONDS = 10.0
WATCH_SECONDS = 0.1


def simulate(
    algorithm: Algorithm,
    world: World = World(),
    learner: Learner | None = None,
    *,
    seed: int = 0,
    until: Until = Until(versions=100),
    evaluate: Every | None = Every(versions=1),
    workers: int = 0,
    executor: Batched | OnRay | None = None,
    out: str | Path | None = None,
    label: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    watch: Watcher | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    client_memory: int | None = None,
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

    Returns:
        The finished run.

    Raises:
        UsageError: What is asked cannot be run.
        RunError: The run fails.
    """
    seed = check_seed(seed)
    check_memory(client_memory)
    learner, population = _population(algorithm, world, learner, seed, until, evaluate or Every())
    initial = learner.initial(seed)
    complete = finalizer(algorithm.buffers, learner, initial, seed)
    recorder = MemoryRecorder()
    store: RunStore | None = None
    with (
        _single_threaded(),
        _frozen(),
        _started(learner, algorithm, workers, executor) as trainer,
        deferred_interrupts() if out is not None else nullcontext(lambda: False) as interrupted,
    ):
        if out is not None:
            meta = _meta(algorithm, learner, seed, label, recipe)
            meta |= {"initial": initial.digest(), "batched": isinstance(executor, Batched)}
            store = RunStore.create(Path(out), meta, _client_rows(learner))
        clients = ClientStates(store.directory if store else None, client_memory)
        backend = LiveBackend(
            GlobalModel(algorithm, initial), trainer, clients, algorithm.codec, seed, complete
        )
        simulation = Simulation(
            algorithm, population, learner, backend.tensors.model.layout.nbytes,
            seed=seed, until=until, every=evaluate or Every(), backend=backend, recorder=store or recorder,
        )  # fmt: skip
        model = _run_loop(simulation, backend, store, watch, checkpoint_seconds, interrupted, fresh=True)
    return _result(simulation, backend, model, recorder, store)


def resume(
    directory: str | Path,
    algorithm: Algorithm,
    world: World = World(),
    learner: Learner | None = None,
    *,
    until: Until = Until(versions=100),
    evaluate: Every | None = Every(versions=1),
    workers: int = 0,
    executor: Batched | OnRay | None = None,
    watch: Watcher | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    client_memory: int | None = None,
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

    Returns:
        The finished run; one that had finished before, as it is.

    Raises:
        UsageError: What is given is not what the run was started with.
        RunError: What is given does not repeat the run's journal, or only one of the two trains with
            `Batched`, or the run fails.
    """
    check_memory(client_memory)
    record = read_run(Path(directory))
    seed = record.seed
    learner, population = _population(algorithm, world, learner, seed, until, evaluate or Every())
    initial = learner.initial(seed)
    if record.status == "finished":
        return _finished(record, initial.layout)
    complete = finalizer(algorithm.buffers, learner, initial, seed)
    record.check_same("algorithm", _described(algorithm))  # a momentum does not show in a journal
    _check_executor(record, executor)
    if record.meta["initial"] != initial.digest():
        raise UsageError(f"{directory}: the learner's initial model is not the one the run started from")
    with _single_threaded(), _frozen(), _started(learner, algorithm, workers, executor) as trainer:
        store = RunStore.reopen(Path(directory))  # first: no other process may write from here on
        clients = ClientStates(store.directory, client_memory)
        backend = LiveBackend(
            GlobalModel(algorithm, initial), trainer, clients, algorithm.codec, seed, complete
        )
        try:
            record = read_run(Path(directory))  # as the last holder of the lock left it
            if record.status == "finished":
                store.close()
                return _finished(record, initial.layout)
            past = recorded_past(record)
            checkpoint = record.checkpoint()
            simulation = Simulation(
                algorithm, population, learner, backend.tensors.model.layout.nbytes,
                seed=seed, until=until, every=evaluate or Every(), backend=past, recorder=past,
            )  # fmt: skip
            if checkpoint is not None:
                repeat(simulation, checkpoint)
                restore_tensors(backend, simulation, Path(directory), checkpoint)
        except BaseException:
            store.close()
            raise
        simulation.go_live(backend, store)
        del past  # and with it its reading of the journal, which would let the write-ahead log grow
        with deferred_interrupts() as interrupted:
            store.set_meta({"status": "running"})
            fresh = checkpoint is None
            model = _run_loop(simulation, backend, store, watch, checkpoint_seconds, interrupted, fresh=fresh)
    return _result(simulation, backend, model, MemoryRecorder(), store)


# ---- before ----


def _population(
    algorithm: Algorithm, world: World, learner: Learner | None, seed: int, until: Until, every: Every
) -> tuple[Learner, Population]:
    """The learner and the population, where all agree on who there is."""
    if not isinstance(algorithm, Algorithm):
        raise UsageError(
            f"a {type(algorithm).__name__} is not an Algorithm: call a factory, such as offbeat.fedavg()"
        )
    clients = world.population(learner.clients if learner else None)
    concurrency = algorithm.schedule.concurrency
    if concurrency is not None and concurrency > clients:
        raise UsageError(
            f"{algorithm.name}: {concurrency} clients cannot train at the same time, there are {clients}; "
            f"choose at most {clients}"
        )
    if Feature.RADIO in algorithm.requires and world.channel is None:
        raise UsageError(f"{algorithm.name} needs a world with a channel: give world.channel")
    if until.never:
        raise UsageError("the run would never end: give until seconds, versions, tasks or accuracy")
    if until.accuracy is not None and every.never:
        raise UsageError(
            f"until.accuracy = {until.accuracy} needs evaluations: give evaluate seconds or versions"
        )
    return learner or NoTraining(clients), Population(world, seed)


def _meta(
    algorithm: Algorithm, learner: Learner, seed: int, label: str | None, recipe: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "offbeat": __version__,
        "label": label or algorithm.name,
        "algorithm": _described(algorithm),
        "seed": seed,
        "clients": learner.clients,
        "recipe": recipe,
    }


def _described(algorithm: Algorithm) -> dict[str, Any]:
    return {"name": recorded_name(algorithm), **algorithm.hyperparameters}


def _check_executor(record: RunRecord, executor: Batched | OnRay | None) -> None:
    """The others give the same bits as each other."""
    then, now = record.meta.get("batched", False), isinstance(executor, Batched)
    if then != now:
        before, allowed = ("with", "only batched") if then else ("without", "any other")
        raise RunError(
            f"{record.path} was started {before} executor batched, which rounds differently: it would "
            f"not end as it would have without the interruption; resume it with {allowed}"
        )


def _client_rows(learner: Learner) -> Iterator[tuple[int, int, str | None]]:
    for client in range(learner.clients):
        counts = learner.label_counts(client)
        yield client, learner.samples(client), json.dumps(counts) if counts is not None else None


@contextmanager
def _started(
    learner: Learner, algorithm: Algorithm, workers: int, executor: Batched | OnRay | None
) -> Iterator[Executor]:
    if not (hasattr(workers, "__index__") and workers >= 0):
        raise UsageError(
            f"workers = {workers} is not allowed: 0 trains in this process, more in so many others"
        )
    if workers and executor is not None:
        raise UsageError(
            f"workers = {workers} is not allowed beside an executor: Batched trains in this process, "
            f"OnRay(workers={workers}) on as many"
        )
    if workers or isinstance(executor, OnRay):
        _check_device(learner, f"workers = {workers}" if workers else "executor ray")
    trainer: Executor
    if isinstance(executor, Batched):
        trainer = BatchTraining(learner, algorithm.objective, executor)
    elif executor is not None:
        trainer = RayPool(learner, algorithm.objective, executor)
    elif workers:
        trainer = ProcessPool(learner, algorithm.objective, workers)
    else:
        trainer = InProcess(learner, algorithm.objective)
    try:
        yield trainer
    finally:
        trainer.close()


def _check_device(learner: Learner, option: str) -> None:
    """Several processes train on CPUs only."""
    if isinstance(learner, TorchLearner) and learner.training.device != "cpu":
        raise UsageError(
            f"{option} is not allowed with device = {learner.training.device!r}: its processes train on "
            "CPUs; leave it out, or give executor batched to train many clients together on the device"
        )


@contextmanager
def _single_threaded() -> Iterator[None]:
    """One thread, as in the workers: the number of threads changes the last bits of a convolution.

    The global random state, which dropout layers draw from, is put back afterwards.
    """
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


@contextmanager
def _frozen() -> Iterator[None]:
    """What was there before the run is none of its garbage: looking through PyTorch's modules takes longer
    than many a run's events."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


# ---- during ----


def _run_loop(
    simulation: Simulation,
    backend: LiveBackend,
    store: RunStore | None,
    watch: Watcher | None,
    checkpoint_seconds: float,
    interrupted: Callable[[], bool],
    *,
    fresh: bool,
) -> Model:
    """Step to the final model, with checkpoints; an interruption leaves one behind."""
    meter, trimmer, version = ProgressMeter(simulation), HeapTrimmer(), backend.tensors.version
    watched = saved = time.monotonic()
    pause = checkpoint_seconds
    try:
        if fresh:
            simulation.start()
        while simulation.stop_reason is None:
            simulation.step()
            if backend.tensors.version != version:
                version = backend.tensors.version
                trimmer.after(backend.tensors.model.values.nbytes)
            now = time.monotonic()
            if watch and now - watched > WATCH_SECONDS:
                watch(meter.progress())
                watched = now
            if simulation.stop_reason is not None:
                break  # what is left is to write the end
            if store and (now - saved > pause or interrupted()):
                store.checkpoint(backend.tensors, backend.clients, simulation.now)
                saved = time.monotonic()
                pause = max(checkpoint_seconds, 20 * (saved - now))  # at most 5 % of the time
            if interrupted():
                raise KeyboardInterrupt
        if watch:
            watch(meter.progress())
        return backend.completed()
    except BaseException as error:
        if store:
            store.abandon("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise


# ---- after ----


def _result(
    simulation: Simulation,
    backend: LiveBackend,
    model: Model,
    recorder: MemoryRecorder,
    store: RunStore | None,
) -> Run:
    reason = simulation.stop_reason or ""
    numbers = summary_of(simulation.engine, simulation.now, simulation.evaluations.log)
    summary = Summary(**numbers, client_state_bytes=backend.clients.nbytes)
    if store is None:
        return Run(model, summary, reason, recorder)
    try:
        store.finish(model, simulation.now, reason, asdict(summary))
    finally:
        store.close()
    return Run(model, summary, reason, read_run(store.directory), store.directory)


def _finished(record: RunRecord, layout: Layout) -> Run:
    model = final_model(record, layout)
    return Run(model, Summary(**record.meta["summary"]), record.stop_reason or "", record, record.path)
