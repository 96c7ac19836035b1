"""Masks: a small convolutional network finds discs in noisy pictures, measured by the Dice coefficient.

Four clients; each has pictures of its own brightness. A batch is (float32 [N, 1, 32, 32], float32
[N, 32, 32]), and the module gives one logit per pixel.

    python examples/segmentation.py
"""

import torch
from torch import Tensor, nn

import offbeat as ob

SIDE = 32


class Net(nn.Module):
    """One logit per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(8, 8, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(8, 1, 1),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits [N, 32, 32] of pictures [N, 1, 32, 32]."""
        return self.layers(pictures).squeeze(1)


def pictures(count: int, seed: int, brightness: float = 1.0) -> tuple[Tensor, Tensor]:
    """Pictures of one disc each, and their masks."""
    rng = torch.Generator().manual_seed(seed)
    row, column, radius = (
        torch.rand(3, count, 1, 1, generator=rng) * 16 + torch.tensor([8, 8, 3])[:, None, None, None]
    )
    at = torch.arange(SIDE, dtype=torch.float32)
    mask = ((at[:, None] - row) ** 2 + (at - column) ** 2 <= (radius / 2) ** 2).float()
    noise = torch.randn(count, SIDE, SIDE, generator=rng)
    return (brightness * mask + 0.4 * noise).unsqueeze(1), mask


def main() -> None:
    """Train by FedBuff and print the Dice coefficient on pictures of all kinds."""
    clients = [pictures(40, seed, brightness) for seed, brightness in enumerate((0.6, 0.8, 1.0, 1.2))]
    learner = ob.TorchLearner(
        Net,
        ob.federate(clients, pictures(60, seed=9)),  # a list: one dataset per client
        ob.Training(optimizer="adam", lr=0.01, batch_size=10, clip_norm=1.0),
        loss=nn.BCEWithLogitsLoss(),
        metrics=["dice"],
    )
    run = ob.simulate(
        ob.fedbuff(size=2, steps=8),
        world=ob.World(ob.laws.LogNormal(median=0.2)),
        learner=learner,
        until=ob.Until(versions=24),
        evaluate=ob.Every(versions=8),
    )
    for row in run.metrics:
        print(f"version {row['version']:2d}  loss {row['loss']:.3f}  Dice {row['dice']:.3f}")


if __name__ == "__main__":
    main()
