"""Prints a digest of each of two equal runs on a device, with PyTorch's deterministic algorithms.

python -m tests.device.deterministic_runs cuda true
"""

import json
import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when the first product of matrices is made

import torch
from torch import nn

import offbeat as ob
from tests.sim.sim_worlds import HARD, digits, outcome


def convolutions() -> nn.Module:
    """On a GPU, gradients of convolutions are sums in any order unless deterministic ones are asked for."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.Flatten(),
        nn.Linear(128, 64), nn.Dropout(0.2), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def main(device: str, cuda_graph: bool) -> None:
    """Make two runs."""
    torch.use_deterministic_algorithms(True)
    given = digits(convolutions)
    training = ob.Training("adam", lr=0.01, batch_size=20, device=device, cuda_graph=cuda_graph)
    for _ in range(2):
        learner = ob.TorchLearner(convolutions, given.data, training)
        run = ob.simulate(ob.fedasync(steps=20), HARD, learner, until=ob.Until(tasks=30), seed=1)
        sys.stdout.write(f"{outcome(run)['model']}\n")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
