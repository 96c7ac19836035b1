"""A site of several processes, for the test of `each_rank`: `torchrun rank_site.py ADDRESS [crash]`."""

import os
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import offbeat as ob
from offbeat.local import RankTask, each_rank

SAMPLES, BATCH, LR = 64, 16, 0.1


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def points() -> tuple[Tensor, Tensor]:
    x = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def rows_of(rank: int, ranks: int) -> list[Tensor]:
    """A rank's part of each batch."""
    return [rows[rank::ranks] for rows in torch.arange(SAMPLES).split(BATCH)]


def tasks(address: str) -> Iterator[ob.ClientTask]:
    return ob.client(address, SAMPLES, name="cluster", batch_size=BATCH)


def train(task: RankTask, module: nn.Module, wrapped: nn.Module) -> None:
    x, y = points()
    task.load_into(module)
    optimizer = torch.optim.SGD(module.parameters(), LR * task.lr_factor)
    for rows in task.steps(rows_of(dist.get_rank(), dist.get_world_size())):
        optimizer.zero_grad()
        cross_entropy(wrapped(x[rows]), y[rows]).backward()
        task.correct_gradients()
        optimizer.step()
    same = [torch.zeros_like(p) for p in module.parameters()]
    for own, first in zip(module.parameters(), same, strict=True):
        first.copy_(own.detach())
        dist.broadcast(first, 0)
        assert torch.equal(own, first), f"rank {dist.get_rank()} has other weights than rank 0"
    task.submit(lr=LR)


def main() -> None:
    address, crashes = sys.argv[1], sys.argv[2:] == ["crash"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    module = net()
    wrapped = DistributedDataParallel(module)
    for done, task in enumerate(each_rank(lambda: tasks(address))):
        if crashes and done == 1 and dist.get_rank() == 1:
            os._exit(3)
        train(task, module, wrapped)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
