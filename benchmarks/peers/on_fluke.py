"""fluke's FedAvg, in one process."""

from importlib.metadata import version

import numpy
import torch
from job import Answer, Client, Data, Job, Stopwatch, UnavailableError, accuracy, load, run
from nets import Seen, build
from stand_in import stand_in

stand_in("torchvision")

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.client import Client as FlukeClient  # noqa: E402
from fluke.config import OptimizerConfigurator  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.server import Server  # noqa: E402


class Idle(FlukeClient):
    """A client whose tasks are without work."""

    def fit(self, override_local_epochs: int = 0) -> float:
        """Train nothing."""
        return 0.0


def client(job: Job, number: int, data: Data | None) -> FlukeClient:
    """A client, whose loader gives a task's batches by indexing."""
    optimizer = OptimizerConfigurator(DDict(name="SGD", lr=job.lr), DDict(name="StepLR", step_size=10**6))
    x, y = torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)
    kind, loader = Idle, FastDataLoader(x, y, num_labels=10)
    if data is not None:
        kind, loader = FlukeClient, Client(data, number, job)
    return kind(number, loader, None, optimizer, torch.nn.CrossEntropyLoss(), local_epochs=1)


def measure(job: Job) -> Answer:
    """FedAvg rounds, without evaluations."""
    if job.algorithm != "fedavg":
        raise UnavailableError(f"fluke has no {job.algorithm}: it simulates rounds.")
    numpy.random.seed(job.seed)
    data = load(job.data) if job.data else None
    FlukeENV().set_seed(job.seed)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    clients = [client(job, number, data) for number in range(job.clients)]
    server = Server(build(job.model, job.seed), None, clients)
    algorithm = FedAVG(job.clients, None, DDict(), clients=clients, server=server)
    with Stopwatch() as watch:
        algorithm.run(job.rounds, job.per_round / job.clients, finalize=False)
    seen = Seen.batches, Seen.samples
    right = accuracy(server.model, data) if data is not None else None
    return Answer(watch.seconds, job.tasks, *seen, watch.cpu, accuracy=right, version=version("fluke-fl"))


if __name__ == "__main__":
    run(measure)
