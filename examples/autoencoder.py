"""Samples without targets: a denoising autoencoder with a step function of its own.

python examples/autoencoder.py
"""

import numpy as np
import torch
from torch import Tensor, nn

import offbeat as ob


def net() -> nn.Module:
    """Eight numbers through two: enough for what the samples consist of."""
    return nn.Sequential(nn.Linear(8, 2), nn.Linear(2, 8))


def denoise(module: nn.Module, x: Tensor) -> Tensor:
    """The loss of a batch: how well the samples are restored from noisy ones. A batch is x alone."""
    return (module(x + 0.1 * torch.randn_like(x)) - x).square().mean()


def restored(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """What an evaluation measures: means over the batch, by name."""
    error = (module(x) - x).square().mean()
    return {"loss": error, "explained": 1 - error / x.var()}


def main() -> None:
    """Train by FedBuff and print the share of the variance that is explained."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(480, 2, generator=rng) @ torch.randn(2, 8, generator=rng)
    learner = ob.TorchLearner(
        net,
        ob.federate(x[:400], x[400:], np.array_split(np.arange(400), 5)),
        ob.Training(optimizer="adam", lr=0.02),
        step=denoise,
        evaluate=restored,
    )
    run = ob.simulate(
        ob.fedavg(steps=20),
        learner=learner,
        until=ob.Until(versions=30),
        evaluate=ob.Every(versions=10),
    )
    for row in run.metrics:
        print(f"version {row['version']:2d}  loss {row['loss']:.4f}  explained {row['explained']:.3f}")


if __name__ == "__main__":
    main()
