"""One logit, unequal classes: tumours in three hospitals, measured by balanced accuracy and AUROC.

The 569 samples of the breast cancer dataset come with scikit-learn: pip install -e ".[digits]".

    python examples/tabular.py
"""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

import offbeat as ob

TEST = 150


def net() -> nn.Module:
    """30 features in, one logit out: [N, 1]."""
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 1))


def main() -> None:
    """Train by FedCompass, whose hospitals differ in size and speed."""
    features, benign = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(features))
    x = torch.tensor((features - features.mean(0)) / features.std(0), dtype=torch.float32)[order]
    y = torch.tensor(1 - benign, dtype=torch.float32)[order].unsqueeze(
        1
    )  # 1: malignant; [N, 1] as the logits
    test, train = (x[:TEST], y[:TEST]), (x[TEST:], y[TEST:])
    hospitals = np.split(np.arange(len(train[0])), [60, 180])
    rarer = (len(train[1]) - train[1].sum()) / train[1].sum()
    learner = ob.TorchLearner(
        net,
        ob.federate(train, test, hospitals),
        ob.Training(optimizer="adam", lr=0.01, batch_size=16),
        loss=nn.BCEWithLogitsLoss(pos_weight=rarer),
        metrics=["balanced_accuracy", "auroc"],
    )
    run = ob.simulate(
        ob.fedcompass(q_min=5, q_max=20),
        world=ob.World([0.1, 0.2, 0.4]),
        learner=learner,
        until=ob.Until(seconds=60),
        evaluate=ob.Every(seconds=20),
    )
    for row in run.metrics:
        print(
            f"t = {row['t']:4.0f} s  loss {row['loss']:.3f}  "
            f"balanced accuracy {row['balanced_accuracy']:.3f}  AUROC {row['auroc']:.3f}"
        )


if __name__ == "__main__":
    main()
