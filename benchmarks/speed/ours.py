"""Offbeat's part of a measurement: the same tasks through its public interface."""

import os
import time
from collections.abc import Iterator
from itertools import islice
from statistics import mean
from typing import Any

import numpy
import torch
from job import Answer, Data, Job, Stopwatch, UnavailableError, accuracy, load, run, warm
from msgspec.structs import replace
from nets import build, parameters

import offbeat as ob
import offbeat.sim.simulate  # names are imported when they are first used: not while the clock runs

SPEEDS = ob.laws.Exponential(1.0)


class Stamped(ob.TorchLearner):
    """Notes when each task's training began, and in which process: that worker is up by then."""

    def train(self, *arguments: Any) -> Any:
        """As the learner does, once PyTorch is ready in this process."""
        warm()
        began = time.monotonic()
        result = super().train(*arguments)
        return replace(result, metrics={**result.metrics, "began": began, "process": os.getpid()})


class WithoutBatches(ob.TorchLearner):
    """Does all that a task takes but its steps."""

    def _batches(self, task: Any) -> Iterator[Any]:
        return islice(super()._batches(task), 0)


def algorithm(job: Job) -> ob.Algorithm:
    """The job's algorithm; where an algorithm chooses the steps itself, about as many on average."""
    steps, many = job.steps, job.per_round
    match job.algorithm:
        case "fedavg":
            return ob.fedavg(steps=steps, clients_per_round=many)
        case "fedbuff":
            return ob.fedbuff(size=many, steps=steps, concurrency=many)
        case "fedasync":
            return ob.fedasync(steps=steps, concurrency=many)
        case "fedfa":
            return ob.fedfa(size=many, steps=steps, concurrency=many, server_lr=0.2)
        case "fedasmu":
            return ob.fedasmu(steps=steps, size=many, period=10.0, threshold=many)
        case "fedcompass":
            return ob.fedcompass(q_min=steps // 2, q_max=2 * steps)
        case name:
            raise UnavailableError(f"algorithm {name!r} is not measured here")


def learner(job: Job, data: Data | None) -> Any:
    """The clients: their images, or no work at all."""
    if job.client_code:
        blank = ob.Dataset(torch.zeros(job.clients, 1), torch.zeros(job.clients, dtype=torch.int64), 10)
        federated = ob.federate(blank, blank, numpy.arange(job.clients).reshape(-1, 1))
        return WithoutBatches(build(job.model, job.seed), federated)
    if data is None:
        return ob.NoTraining(job.clients, parameters(build(job.model, job.seed)))
    train = ob.Dataset(data.x, data.y, 10)
    test = ob.Dataset(data.test_x, data.test_y, 10)
    federated = ob.federate(train, test, list(data.parts.numpy()))
    training = ob.Training(lr=job.lr, batch_size=job.batch)
    kind = Stamped if job.processes > 1 else ob.TorchLearner
    return kind(build(job.model, job.seed), federated, training)


def options(job: Job) -> dict[str, Any]:
    """Where the tasks are trained."""
    if job.executor == "batched":
        if not hasattr(ob, "Batched"):
            raise UnavailableError(f"Offbeat {ob.__version__} has no batched executor")
        return {"executor": ob.Batched()}
    return {"workers": job.processes if job.processes > 1 else 0}


def measure(job: Job) -> Answer:
    """Simulate, without evaluations; then evaluate."""
    data = load(job.data) if job.data else None
    clients, method, where = learner(job, data), algorithm(job), options(job)
    called = time.monotonic()
    with Stopwatch() as watch:
        done = ob.simulate(
            method, ob.World(SPEEDS), clients, seed=job.seed,
            until=ob.Until(tasks=job.tasks), evaluate=None, **where,
        )  # fmt: skip
    arrived = done.entries("arrived")
    startup = mean(_first_tasks(arrived)) - called if job.processes > 1 else 0.0
    right = None
    if data is not None:
        right = accuracy(done.model.load_into(build(job.model, job.seed)), data)
    return Answer(
        watch.seconds - startup,
        len(arrived),
        steps=sum(entry["steps"] for entry in arrived) if data is not None else 0,
        cpu=watch.cpu if job.processes == 1 else 0.0,
        startup=startup,
        accuracy=right,
        version=ob.__version__,
    )


def _first_tasks(arrived: list[dict[str, Any]]) -> list[float]:
    """When each worker began its first task: until then it could do no work."""
    first: dict[float, float] = {}
    for entry in arrived:
        first[entry["process"]] = min(entry["began"], first.get(entry["process"], entry["began"]))
    return list(first.values())


def measure_or_refuse(job: Job) -> Answer:
    """As `measure`; what Offbeat refuses to run is not there, for the reason it gives."""
    try:
        return measure(job)
    except ob.UsageError as error:
        raise UnavailableError(f"Offbeat refuses: {error}.") from error


if __name__ == "__main__":
    run(measure_or_refuse)
