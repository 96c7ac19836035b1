"""Start of the executor that trains for a run."""

import gc
from collections.abc import Iterator
from contextlib import closing, contextmanager

import torch

from offbeat.core.errors import UsageError
from offbeat.core.learner import Learner
from offbeat.core.objective import Objective
from offbeat.local.torch_learner import TorchLearner
from offbeat.sim.execution import Execution
from offbeat.sim.executors.base import Executor
from offbeat.sim.executors.batched import BatchTraining
from offbeat.sim.executors.in_process import InProcess
from offbeat.sim.executors.leftovers import collect_leftovers
from offbeat.sim.executors.processes import ProcessPool
from offbeat.sim.executors.ray.actors import RayPool
from offbeat.sim.executors.ray.cluster import OnRay


@contextmanager
def started(learner: Learner, objective: Objective, execution: Execution) -> Iterator[Executor]:
    """Start the executor that an execution names, in a process that is prepared for training.

    One thread, as in the workers: the number of threads changes the last bits of a convolution. What was
    there before is none of the run's garbage: looking through PyTorch's modules takes longer than many a
    run's events. The global random state, which dropout layers draw from, is put back afterwards.

    Raises:
        UsageError: The executor cannot train with this learner.
    """
    collect_leftovers()
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    gc.freeze()
    try:
        with closing(_start(learner, objective, execution)) as trainer:
            yield trainer
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


def _start(learner: Learner, objective: Objective, execution: Execution) -> Executor:
    workers, executor = execution.workers, execution.executor
    if isinstance(executor, OnRay):
        _check_device(learner, "executor ray", "cpu")
        return RayPool(learner, objective, executor)
    if executor is not None:
        return BatchTraining(learner, objective, executor)
    if workers:
        _check_device(learner, f"workers = {workers}", "cpu", "cuda")
        return ProcessPool(learner, objective, workers)
    return InProcess(learner, objective)


def _check_device(learner: Learner, option: str, *kinds: str) -> None:
    """Raises `UsageError` where the processes of an option do not train on the learner's kind of device."""
    device = learner.training.device if isinstance(learner, TorchLearner) else "cpu"
    if device.partition(":")[0] not in kinds:
        raise UsageError(
            f"{option} is not allowed with device = {device!r}: its processes train on {' or '.join(kinds)}; "
            "leave it out, or give executor batched to train many clients together on the device"
        )
