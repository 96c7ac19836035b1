"""FedBuff with a module, tensors and a division of the data that are all your own.

Eight clients hold unequal parts of a two-class problem that no straight line separates.

    python examples/own_module.py
"""

import numpy as np
import torch
from torch import nn

import offbeat as ob
from offbeat.data import Dataset


class Net(nn.Module):
    """Two inputs, two classes. A class at the top of a file can also be trained in worker processes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, 2] of points [N, 2]."""
        return self.layers(x)


def points(count: int, seed: int) -> Dataset:
    """Points of the square; the class says whether both coordinates have the same sign."""
    x = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return Dataset(x, (x[:, 0] * x[:, 1] > 0).long(), classes=2)


def main() -> None:
    """Train for 400 client tasks and use the trained module."""
    train, test = points(1440, seed=1), points(500, seed=2)
    parts = np.split(np.arange(1440), np.cumsum([40, 80, 120, 160, 200, 240, 280]))  # the last gets 320
    learner = ob.TorchLearner(
        Net,  # a function that makes the module: the run's seed draws its weights
        ob.federate(train, test, parts),
        ob.Training(optimizer="adam", lr=0.01, batch_size=32),
    )
    run = ob.simulate(
        ob.fedbuff(size=3, steps=10),
        world=ob.World(ob.laws.LogNormal(median=0.2), jitter=0.05),
        learner=learner,
        seed=0,
        until=ob.Until(tasks=400),
        evaluate=ob.Every(versions=20),
    )
    for row in run.metrics[::2]:
        print(f"t = {row['t']:6.1f} s  version {row['version']:3d}  accuracy {row['accuracy']:.3f}")

    module = run.model.load_into(Net())
    with torch.inference_mode():
        print("(0.5, 0.5) is of class", int(module(torch.tensor([[0.5, 0.5]])).argmax()))


if __name__ == "__main__":
    main()
