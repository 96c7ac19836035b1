"""AUROC of three hospitals by whose statistics scale the features; the table of docs/feature-scaling.md.

    python benchmarks/feature_scaling.py [--seeds 10]

Cleveland, Hungarian and VA of the dataset heart_disease, in the units of their files. Two thirds of the rows
of each are for training. FedBuff trains a logistic regression; a seed is another split and another run.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from harness import Rows, main

import offbeat as ob
from offbeat.data.heart_disease import HOSPITALS, read_hospital
from offbeat.data.paths import data_root

Array = npt.NDArray[np.float64]
Labelled = tuple[Array, npt.NDArray[np.int64]]
Scale = tuple[Array, Array]
"""Means and deviations of the features."""
USED = ("cleveland", "hungarian", "va")


def numbers(x: Array) -> Scale:
    """Means and deviations of some rows; a constant feature has a deviation of 1."""
    std: Array = x.std(0)
    return x.mean(0), np.where(std == 0, 1.0, std)


def federated(train: list[Array]) -> Scale:
    """Means and deviations as sites tell them: rounded, and no row leaves a site."""
    tensors = [(torch.from_numpy(x.astype(np.float32)), torch.zeros(len(x)).long()) for x in train]
    found = ob.feature_statistics(ob.federate(tensors), rounded=True)
    return np.asarray(found.mean), np.where(found.std == 0, 1.0, found.std)


def scales(train: list[Array]) -> dict[str, list[Scale]]:
    """The means and deviations of each hospital, by where they come from."""
    unscaled: Scale = np.zeros(train[0].shape[1]), np.ones(train[0].shape[1])
    return {
        "as they are": [unscaled] * len(train),
        "each hospital's own": [numbers(x) for x in train],
        "all, pooled": [numbers(np.concatenate(train))] * len(train),
        "all, federated and rounded": [federated(train)] * len(train),
    }


def auroc(train: list[Labelled], test: list[Labelled], seed: int, lr: float) -> float:
    """AUROC on the test rows of all hospitals together, after 60 versions."""

    def samples(x: Array, y: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y).float().unsqueeze(1)

    tested = samples(np.concatenate([x for x, _ in test]), np.concatenate([y for _, y in test]))
    learner = ob.TorchLearner(
        lambda: torch.nn.Linear(13, 1),
        ob.federate([samples(x, y) for x, y in train], tested),
        ob.Training(lr=lr, batch_size=16),
        loss=torch.nn.BCEWithLogitsLoss(),
        metrics=["auroc"],
    )
    world = ob.World(seconds_per_step=[0.1, 0.15, 0.3])
    until = ob.Until(versions=60)
    run = ob.simulate(ob.fedbuff(2, steps=10), world, learner, until=until, seed=seed, guard=None)
    return float(run.evaluations()[-1].found["auroc"])


def feature_scaling(seeds: int = 10) -> Rows:
    assert set(USED) < set(HOSPITALS)
    files = [data_root() / "heart_disease" / f"processed.{name}.data" for name in USED]
    hospitals = [read_hospital(Path(file)) for file in files]
    found: dict[tuple[str, float], list[float]] = {}
    for seed in range(seeds):
        train: list[Labelled] = []
        test: list[Labelled] = []
        for x, y in hospitals:
            order = np.random.default_rng([seed, len(y)]).permutation(len(y))
            cut = len(y) * 66 // 100
            train.append((x[order[:cut]], y[order[:cut]]))
            test.append((x[order[cut:]], y[order[cut:]]))
        for name, by in scales([x for x, _ in train]).items():
            sides = [
                [((x - mean) / std, y) for (x, y), (mean, std) in zip(side, by, strict=True)]
                for side in (train, test)
            ]
            for lr in (0.1, 0.001) if name == "as they are" else (0.1,):
                found.setdefault((name, lr), []).append(auroc(sides[0], sides[1], seed, lr))
    for (name, lr), values in found.items():
        deviation = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
        yield {"features scaled by": name, "learning rate": lr, "AUROC": f"{np.mean(values):.3f}{deviation}"}


if __name__ == "__main__":
    main(feature_scaling)
