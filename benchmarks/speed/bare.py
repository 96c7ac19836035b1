"""The floor: the same SGD steps as a hand-written PyTorch loop, in one process or split over several.

With several processes each does its share of the clients and averages them by itself, with no word to the
others: less than any real federation could do.
"""

import multiprocessing
import time
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from job import Answer, Data, Job, Stopwatch, accuracy, batches, load, run
from nets import Seen, build
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def rounds(job: Job, module: nn.Module, data: Data) -> None:
    """FedAvg: the model is trained in place, from the global weights, once for each client of a round."""
    generator = torch.Generator().manual_seed(job.seed)
    own = [(data.x[part], data.y[part]) for part in data.parts]
    if data.x.shape[1] > 1 or job.model == "cnn":
        module.to(memory_format=torch.channels_last)
        own = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in own]
    parameters, buffers = list(module.parameters()), [b for b in module.buffers() if b.is_floating_point()]
    tensors = [p.detach() for p in parameters] + buffers
    world = [t.clone() for t in tensors]
    for _ in range(job.rounds):
        total = [torch.zeros_like(t) for t in tensors]
        for client in torch.randperm(job.clients, generator=generator)[: job.per_round].tolist():
            torch._foreach_copy_(tensors, world)
            train(job, module, parameters, *own[client], generator)
            torch._foreach_add_(total, tensors, alpha=1 / job.per_round)
        world = total
    torch._foreach_copy_(tensors, world)


def train(
    job: Job,
    module: nn.Module,
    parameters: list[nn.Parameter],
    x: Tensor,
    y: Tensor,
    generator: torch.Generator,
) -> None:
    """One client's steps."""
    for batch in batches(len(y), job, generator):
        loss = cross_entropy(module(x.index_select(0, batch)), y.index_select(0, batch))
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-job.lr)


def empty_rounds(job: Job, module: nn.Module) -> None:
    """Tasks without work: the weights go to the client's model, come back and are averaged."""
    tensors = [p.detach() for p in module.parameters()]
    world = [t.clone() for t in tensors]
    for _ in range(job.rounds):
        total = [torch.zeros_like(t) for t in tensors]
        for _ in range(job.per_round):
            torch._foreach_copy_(tensors, world)
            torch._foreach_add_(total, tensors, alpha=1 / job.per_round)
        world = total


def once(job: Job, ready: Barrier | None = None) -> Answer:
    """Load, wait for the others if there are any, train, evaluate."""
    module = build(job.model, job.seed)
    data = load(job.data) if job.data else None
    module.train()
    if ready is not None:
        ready.wait()
    with Stopwatch() as watch:
        if data is None:
            empty_rounds(job, module)
        else:
            rounds(job, module, data)
        if ready is not None:
            ready.wait()
    seen = Seen.batches, Seen.samples
    right = accuracy(module, data) if data is not None else None
    return Answer(watch.seconds, job.tasks, *seen, watch.cpu, accuracy=right, version=torch.__version__)


def _child(job: Job, ready: Barrier, answers: Any) -> None:
    torch.set_num_threads(1)
    answers.put(once(job, ready))


def several(job: Job) -> Answer:
    """The clients of every round dealt to processes; timed from when all are ready to when all are done."""
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    ready, answers = context.Barrier(job.processes), context.SimpleQueue()
    share = replace(job, per_round=job.per_round // job.processes)
    children = [
        context.Process(target=_child, args=(replace(share, seed=job.seed + n), ready, answers))
        for n in range(job.processes)
    ]
    for child in children:
        child.start()
    parts = [answers.get() for _ in children]
    for child in children:
        child.join()
    seconds = max(part.seconds for part in parts)
    steps, samples = sum(part.steps for part in parts), sum(part.samples for part in parts)
    startup = time.perf_counter() - began - seconds
    return Answer(
        seconds, job.tasks, steps, samples,
        startup=startup, accuracy=parts[0].accuracy, version=torch.__version__,
    )  # fmt: skip


if __name__ == "__main__":
    run(lambda job: once(job) if job.processes == 1 else several(job))
