"""Numbers as targets: the progress of diabetes after a year, measured by RMSE and mean absolute error.

The 442 patients come with scikit-learn: pip install -e ".[digits]".

    python examples/regression.py
"""

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn

import offbeat as ob


def main() -> None:
    """Train a linear model by FedAsync in five clinics."""
    x, y = load_diabetes(return_X_y=True, scaled=False)
    x, y = (torch.tensor((v - v.mean(0)) / v.std(0), dtype=torch.float32) for v in (x, y))
    y = y.unsqueeze(1)  # [N, 1], as the module's output
    order = np.random.default_rng(0).permutation(442)
    test, clinics = order[:92], np.array_split(order[92:], 5)
    learner = ob.TorchLearner(
        nn.Linear(10, 1),  # a module: its weights are the initial ones
        ob.federate((x, y), (x[test], y[test]), clinics),  # a dataset, and indices for each client
        ob.Training(lr=0.02, batch_size=10, momentum=0.5),
        loss=nn.HuberLoss(),
        metrics=["rmse", "mae"],
    )
    run = ob.simulate(
        ob.fedasync(steps=7),
        world=ob.World(ob.laws.Exponential(0.5)),
        learner=learner,
        until=ob.Until(tasks=60),
        evaluate=ob.Every(versions=20),
    )
    for row in run.metrics:
        print(f"version {row['version']:2d}  RMSE {row['rmse']:.3f}  mean absolute error {row['mae']:.3f}")


if __name__ == "__main__":
    main()
