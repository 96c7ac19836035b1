"""pfl-research's simulated backend with its PyTorch model, in one process."""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy
import torch
from job import Answer, Client, Data, Job, Stopwatch, UnavailableError, accuracy, load, run
from nets import Seen, build
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Net(nn.Module):
    """A model with the two methods that pfl asks for. Its evaluation of clients measures nothing."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean over the batch."""
        self.train()
        return cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Something, as pfl demands."""
        return {"samples": Weighted(len(y), len(y))}


class User(Dataset):
    """A client, whose every pass gives a task's shuffled batches, made by indexing."""

    def __init__(self, number: int, data: Data | None, job: Job) -> None:
        client = Client(data, number, job) if data is not None else None
        nothing = (torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))
        super().__init__((client.x, client.y) if client is not None else nothing, user_id=str(number))
        self._client = client

    def iter(self, batch_size: int | None) -> Iterator[Any]:
        """No batches in a task without work; but an evaluation, which has no batch size, wants one."""
        if self._client is None or batch_size is None:
            return super().iter(None) if batch_size is None or batch_size == len(self) else iter(())
        return iter(self._client)


def measure(job: Job) -> Answer:
    """FedAvg rounds."""
    if job.algorithm != "fedavg":
        raise UnavailableError(f"pfl-research has no {job.algorithm}: it simulates rounds.")
    numpy.random.seed(job.seed)
    data = load(job.data) if job.data else None
    net = Net(build(job.model, job.seed))
    users = [User(number, data, job) for number in range(job.clients)]
    sampler = get_user_sampler("minimize_reuse", list(range(job.clients)))
    federated = FederatedDataset(users.__getitem__, sampler)
    backend = SimulatedBackend(federated, federated, postprocessors=[WeightByDatapoints()])
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    rounds = NNAlgorithmParams(
        central_num_iterations=job.rounds, evaluation_frequency=job.rounds + 1,
        train_cohort_size=job.per_round, val_cohort_size=0,
    )  # fmt: skip
    training = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=job.lr, local_batch_size=job.batch, local_num_steps=None
    )
    with Stopwatch() as watch:
        FederatedAveraging().run(rounds, backend, model, training, send_metrics_to_platform=False)
    seen = Seen.batches, Seen.samples
    right = accuracy(net.net, data) if data is not None else None
    return Answer(watch.seconds, job.tasks, *seen, watch.cpu, accuracy=right, version=version("pfl"))


if __name__ == "__main__":
    run(measure)
