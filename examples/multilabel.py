"""Several labels per sample: findings in a record, any number of which may be present.

python examples/multilabel.py
"""

import numpy as np
import torch
from torch import Tensor, nn

import offbeat as ob

FEATURES, LABELS = 12, 4


def records(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features [N, 12], and which of four findings hold, float32 [N, 4]."""
    x = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, :LABELS] + x[:, LABELS : 2 * LABELS] > 0.5).float()


def main() -> None:
    """Train by FedAvg with weighted labels, and print what the metrics of many labels say."""
    parts = np.array_split(np.arange(600), 6)
    learner = ob.TorchLearner(
        lambda: nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, LABELS)),
        ob.federate(records(600, seed=1), records(300, seed=2), parts),
        ob.Training(optimizer="adamw", lr=0.01, batch_size=20, weight_decay=0.01),
        loss=nn.BCEWithLogitsLoss(pos_weight=torch.full((LABELS,), 2.0)),
        metrics=["accuracy", "exact_match", "f1", "auroc"],
    )
    run = ob.simulate(
        ob.fedavg(steps=10), learner=learner, until=ob.Until(versions=12), evaluate=ob.Every(versions=4)
    )
    for row in run.metrics:
        shown = "  ".join(f"{name} {row[name]:.3f}" for name in ("accuracy", "exact_match", "f1", "auroc"))
        print(f"round {row['version']:2d}  {shown}")


if __name__ == "__main__":
    main()
