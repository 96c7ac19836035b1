"""A site whose training runs in several processes: torchrun starts them, rank 0 takes part for all of them.

    torchrun --nproc-per-node 2 site.py --kit north.kit --state state

Replace `data` and model.py by your own.
"""

import argparse
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from model import net
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import offbeat as ob
from offbeat.local import RankTask, each_rank
from offbeat.net import kit_connector

BATCH, LR = 32, 0.1


def data() -> TensorDataset:
    """All of the site's samples; each rank loads its part of a batch."""
    train = ob.load("digits", samples=600).train
    return TensorDataset(train.x, train.y)


def train(task: RankTask, module: nn.Module, ddp: nn.Module, samples: TensorDataset) -> None:
    """Do a task; every rank does each step."""
    task.load_into(module)
    ranks = dist.get_world_size()
    sampler = DistributedSampler(samples, seed=task.number, drop_last=True)
    loader = DataLoader(samples, BATCH // ranks, sampler=sampler, drop_last=True)
    lr = LR * task.lr_factor
    optimizer = torch.optim.SGD(module.parameters(), lr)
    device = next(module.parameters()).device
    for x, y in task.steps(loader):
        optimizer.zero_grad()
        cross_entropy(ddp(x.to(device)), y.to(device)).backward()
        task.correct_gradients()
        optimizer.step()
    task.submit(lr=lr)


def main() -> None:
    """Join, or follow the rank that does."""
    options = argparse.ArgumentParser()
    options.add_argument("--kit", help="the site's kit")
    options.add_argument("--address", help="without a kit, of a server of this machine")
    options.add_argument("--state", help="directory for the site's state")
    given = options.parse_args()
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu"
    samples, module = data(), net().to(device)
    ddp = DistributedDataParallel(module)

    def tasks() -> Iterator[ob.ClientTask]:
        """Take part; rank 0 alone calls this."""
        server = given.address or kit_connector(given.kit, state=given.state)
        name = "cluster" if given.address else None
        return ob.client(server, len(samples), name=name, batch_size=BATCH, drop_last=True, state=given.state)

    for task in each_rank(tasks):
        train(task, module, ddp, samples)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
