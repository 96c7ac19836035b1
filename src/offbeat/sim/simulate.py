"""Running a simulation, from its start or from where it was interrupted."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offbeat.callbacks.callback import Callback
from offbeat.core.algorithm import Algorithm
from offbeat.core.guard import Guard
from offbeat.core.labels import check_label
from offbeat.core.learner import Learner
from offbeat.core.limits import Every, Until
from offbeat.core.privacy.privacy_options import Privacy
from offbeat.core.wire_types import FLOAT32, Wire
from offbeat.experiment import EACH_VERSION, ENDS, NEVER, Experiment
from offbeat.runs.extension import recorded_until
from offbeat.runs.initial import Initial
from offbeat.runs.record import read_run
from offbeat.sim.execution import CHECKPOINT_SECONDS, Execution
from offbeat.sim.executors.batched import Batched
from offbeat.sim.executors.ray.cluster import OnRay
from offbeat.sim.progress import Watcher
from offbeat.sim.result import Run
from offbeat.sim.run_experiment import resume_experiment, simulate_experiment
from offbeat.world.world import World


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
    cache_memory: int | None = None,
    initial: Initial | None = None,
    guard: Guard | None = Guard(),
    privacy: Privacy | None = None,
    wire: Wire = FLOAT32,
    callbacks: Sequence[Callback] = (),
    keep_checkpoint: bool = True,
) -> Run:
    """Run an algorithm in virtual time.

    Args:
        algorithm: The algorithm.
        world: Speeds, networks and availability of the clients.
        learner: Trains and evaluates. None means that nothing is trained, and the run shows only what the
            schedule does.
        seed: The run's seed, in [0, 2**63).
        until: The run's limits.
        evaluate: How often the global model is evaluated; None means never.
        workers: Number of single-threaded worker processes; 0 trains in the main process. The number does
            not change results.
        executor: `OnRay` trains on a Ray cluster, with the same results; `Batched` trains many clients
            together, and its results differ in the last bits. None means `workers` decides.
        out: Directory to write the run to, from which it can be resumed. None means it stays in memory.
        label: Name of the run in tables and figures. None means the algorithm's name.
        recipe: The recipe of the run, which is written to the run's directory.
        watch: Called with the progress about ten times a second.
        checkpoint_seconds: Real seconds between two checkpoints, at most.
        client_memory: Bytes of client state that stay in memory; the rest goes to files. None means that all
            of it stays in memory.
        cache_memory: Bytes of the clients' last updates that stay in memory, where an algorithm keeps them at
            the server; the rest goes to files. None means as many as `client_memory`.
        initial: The weights from which the run starts: a .safetensors file, the directory of a finished run,
            or a model. None means the learner's own.
        guard: Options of the guard, which refuses updates of absurd size. None means no guard.
        privacy: Options of noise and secure aggregation. None means that each update is used as it is.
        wire: The types of number in which models and updates travel.
        callbacks: Objects that are called during the run, in this order.
        keep_checkpoint: Whether the directory keeps a checkpoint of the run's end, from which `resume` can
            continue under other limits. It contains one model, and one more for each version from which a
            client was still training.

    Returns:
        The finished run.

    Raises:
        UsageError: The arguments do not describe a possible run.
        DivergedError: An update or a loss is not finite. A run that the guard ends is returned.
        RunError: The run fails otherwise, or a callback does.
    """
    if label is not None:
        check_label(label, "label =")
    execution = Execution(workers, executor, client_memory, cache_memory, checkpoint_seconds, keep_checkpoint)
    experiment = Experiment(
        algorithm, learner, seed, until, NEVER if evaluate is None else evaluate, guard, privacy, initial,
        label, recipe, wire,
    )  # fmt: skip
    return simulate_experiment(experiment, world, execution, out=out, watch=watch, callbacks=callbacks)


def resume(
    directory: str | Path,
    algorithm: Algorithm,
    world: World = World(),
    learner: Learner | None = None,
    *,
    until: Until | None = None,
    evaluate: Every | None = EACH_VERSION,
    workers: int = 0,
    executor: Batched | OnRay | None = None,
    watch: Watcher | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    client_memory: int | None = None,
    cache_memory: int | None = None,
    initial: Initial | None = None,
    guard: Guard | None = Guard(),
    privacy: Privacy | None = None,
    wire: Wire = FLOAT32,
    callbacks: Sequence[Callback] | None = None,
    keep_checkpoint: bool = True,
) -> Run:
    """Resume a run from its last checkpoint, with the arguments with which it was started.

    An interrupted run ends bit-identical to an uninterrupted one. A run that has ended continues if `until`
    is given, differs from its previous limits, and is not reached. It ends bit-identical to a run that had
    these limits from the start; only `best.safetensors` may be the version with which it had ended.

    Args:
        directory: The run's directory.
        algorithm: As for `simulate`, and so are the arguments that follow.
        world: Speeds, networks and availability of the clients.
        learner: Trains and evaluates.
        until: The run's limits. None means its previous limits.
        evaluate: How often the global model is evaluated; None means never.
        workers: Single-threaded processes that train.
        executor: `Batched` if the run was started with `Batched`, else any other executor.
        watch: Called with the progress about ten times a second.
        checkpoint_seconds: Real seconds between two checkpoints, at most.
        client_memory: Bytes in memory of what clients keep from task to task.
        cache_memory: Bytes in memory of the clients' last updates. None means as many as `client_memory`.
        initial: The weights that the run started from.
        guard: The guard that the run was started with.
        privacy: The options of privacy that the run was started with.
        wire: The types of number that the run was started with.
        callbacks: Objects that are called while the run continues. They are not called if it does not
            continue. None means none, and the log says which ones the run had.
        keep_checkpoint: As for `simulate`.

    Returns:
        The finished run. A run that had finished before and does not continue is returned as it is.

    Raises:
        UsageError: The arguments are not those with which the run was started. Or the run has ended and
            should continue, but its directory has no checkpoint of its end.
        RunError: The arguments do not repeat the run's journal, or only one of the two runs trains with
            `Batched`, or the run or a callback fails.
    """
    execution = Execution(workers, executor, client_memory, cache_memory, checkpoint_seconds, keep_checkpoint)
    experiment = Experiment(
        algorithm, learner, until=recorded_until(read_run(directory)) if until is None else until,
        evaluate=NEVER if evaluate is None else evaluate, guard=guard, privacy=privacy, initial=initial,
        wire=wire,
    )  # fmt: skip
    return resume_experiment(directory, experiment, world, execution, watch=watch, callbacks=callbacks)
