"""A round of FedAvg on a device: a bare loop of PyTorch, and ours with one client at a time or many."""

from collections.abc import Callable

import numpy as np
import torch
from nets import CLASSES, Net
from torch import Tensor, nn

import offbeat as ob
from offbeat.data import Dataset, federate

BATCH, LR = 32, 0.01


def learner_of(net: Net, clients: int, device: str) -> ob.TorchLearner:
    """As many clients, each with two batches."""
    x = net.samples(2 * BATCH * clients)
    y = torch.randint(CLASSES, (len(x),), generator=torch.Generator().manual_seed(1))
    data = federate(Dataset(x, y, CLASSES), None, np.array_split(np.arange(len(x)), clients))
    return ob.TorchLearner(net.make, data, ob.Training(lr=LR, batch_size=BATCH, device=device))


def ours(learner: ob.TorchLearner, steps: int, *, together: int = 1, workers: int = 0) -> Callable[[], None]:
    """One round of all clients, so many of them at a time, or in so many worker processes."""
    executor = None if together == 1 else ob.Batched(together)
    algorithm = ob.fedavg(steps=steps)

    def run() -> None:
        until = ob.Until(tasks=learner.clients)
        ob.simulate(
            algorithm, ob.World(), learner, until=until, evaluate=None, executor=executor, workers=workers
        )

    return run


def bare(net: Net, clients: int, steps: int, device: str) -> Callable[[], None]:
    """The loop: load the model, SGD on the client's batches, add the result to the mean; on the device."""
    module = net.make().to(device)
    x = net.samples(2 * BATCH * clients).to(device)
    y = torch.randint(CLASSES, (len(x),), generator=torch.Generator().manual_seed(1)).to(device)
    parameters = list(module.parameters())

    def one(client: int, model: list[Tensor], mean: list[Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(parameters, model)
        optimizer = torch.optim.SGD(parameters, LR)
        for step in range(steps):
            rows = slice(BATCH * (2 * client + step % 2), BATCH * (2 * client + step % 2 + 1))
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            torch._foreach_add_(mean, parameters, alpha=1 / clients)

    def run() -> None:
        model = [p.detach().clone() for p in parameters]
        mean = [torch.zeros_like(p) for p in model]
        for client in range(clients):
            one(client, model, mean)

    return run
