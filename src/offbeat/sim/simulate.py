"""Running a simulation, from its start or from where it was interrupted."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offbeat.callbacks.callback import Callback
from offbeat.core.algorithm import Algorithm
from offbeat.core.guard import Guard
from offbeat.core.learner import Learner
from offbeat.core.limits import Every, Until
from offbeat.core.privacy.options import Privacy
from offbeat.experiment import EACH_VERSION, ENDS, Experiment
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
    initial: Initial | None = None,
    guard: Guard | None = Guard(),
    privacy: Privacy | None = None,
    callbacks: Sequence[Callback] = (),
    keep_checkpoint: bool = True,
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
        keep_checkpoint: Whether the directory keeps a checkpoint of the run's end, from which `resume` can
            go on under other limits: one model, and one for each version that was still being trained on.

    Returns:
        The finished run.

    Raises:
        UsageError: What is asked cannot be run.
        RunError: The run fails, or a callback does.
    """
    execution = Execution(workers, executor, client_memory, checkpoint_seconds, keep_checkpoint)
    experiment = Experiment(
        algorithm, learner, seed, until, evaluate or Every(), guard, privacy, initial, label, recipe
    )
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
    initial: Initial | None = None,
    guard: Guard | None = Guard(),
    privacy: Privacy | None = None,
    callbacks: Sequence[Callback] = (),
    keep_checkpoint: bool = True,
) -> Run:
    """Resume a run from its last checkpoint, with the arguments of its start.

    An interrupted run ends bit-identical to one that was never interrupted. A run that has ended goes on if
    `until` is given, differs from its limits so far, and is not reached. It ends bit-identical to a run that
    had these limits from the start; only `best.safetensors` may be the version with which it had ended.

    Args:
        directory: The run's directory.
        algorithm: As for `simulate`, and so are the arguments that follow.
        world: Speeds, networks and availability of the clients.
        learner: Trains and evaluates.
        until: The run's limits. None means those it had.
        evaluate: How often the global model is evaluated; None means never.
        workers: Single-threaded processes that train.
        executor: `Batched` if the run was started with it, else any other.
        watch: Called with the progress about ten times a second.
        checkpoint_seconds: Real seconds between two checkpoints, at most.
        client_memory: Bytes in memory of what clients keep from task to task.
        initial: The weights that the run started from.
        guard: The guard that the run was started with.
        privacy: The options of privacy that the run was started with.
        callbacks: What is called while the run goes on from its checkpoint; not if it stays as it is.
        keep_checkpoint: As for `simulate`.

    Returns:
        The finished run; one that had finished before, and does not go on, as it is.

    Raises:
        UsageError: What is given is not what the run was started with; or the run has ended, should go on,
            and its directory has no checkpoint of its end.
        RunError: What is given does not repeat the run's journal, or only one of the two trains with
            `Batched`, or the run or a callback fails.
    """
    execution = Execution(workers, executor, client_memory, checkpoint_seconds, keep_checkpoint)
    experiment = Experiment(
        algorithm, learner, until=until or recorded_until(read_run(directory)) or ENDS,
        evaluate=evaluate or Every(), guard=guard, privacy=privacy, initial=initial,
    )  # fmt: skip
    return resume_experiment(directory, experiment, world, execution, watch=watch, callbacks=callbacks)
