"""A round of FedAvg on a device: a bare loop of PyTorch, and ours with one client at a time or many."""

from collections.abc import Callable

import numpy as np
import torch
from nets import CLASSES, Net
from torch import Tensor, nn

import offbeat as ob
from offbeat.data import Dataset, federate

BATCH, LR = 32, 0.01


def learner_of(net: Net, clients: int, device: str, *, cuda_graph: bool = False) -> ob.TorchLearner:
    """As many clients, each with two batches."""
    x = net.samples(2 * BATCH * clients)
    y = torch.randint(CLASSES, (len(x),), generator=torch.Generator().manual_seed(1))
    data = federate(Dataset(x, y, CLASSES), None, np.array_split(np.arange(len(x)), clients))
    training = ob.Training(lr=LR, batch_size=BATCH, device=device, cuda_graph=cuda_graph)
    return ob.TorchLearner(net.make, data, training)


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


def bare(net: Net, clients: int, steps: int, device: str, *, cuda_graph: bool = False) -> Callable[[], None]:
    """The loop: load the model, SGD on the client's batches, add the result to the mean; on the device."""
    module, x = net.make().to(device), net.samples(2 * BATCH * clients).to(device)
    if x.ndim == 4:
        module, x = (
            module.to(memory_format=torch.channels_last),
            x.contiguous(memory_format=torch.channels_last),
        )  # type: ignore[call-overload]
    y = torch.randint(CLASSES, (len(x),), generator=torch.Generator().manual_seed(1)).to(device)
    parameters = list(module.parameters())
    own_x, own_y = x[:BATCH].clone(), y[:BATCH].clone()
    optimizer = torch.optim.SGD(parameters, LR)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(own_x), own_y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    step = _recorded(step) if cuda_graph else step

    def one(client: int, model: list[Tensor], mean: list[Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(parameters, model)
        for number in range(steps):
            rows = slice(BATCH * (2 * client + number % 2), BATCH * (2 * client + number % 2 + 1))
            own_x.copy_(x[rows])
            own_y.copy_(y[rows])
            step()
        with torch.no_grad():
            torch._foreach_add_(mean, parameters, alpha=1 / clients)

    def run() -> None:
        model = [p.detach().clone() for p in parameters]
        mean = [torch.zeros_like(p) for p in model]
        for client in range(clients):
            one(client, model, mean)

    return run


def _recorded(step: Callable[[], None]) -> Callable[[], None]:
    """A step as a CUDA graph, recorded as PyTorch's documentation does it."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
