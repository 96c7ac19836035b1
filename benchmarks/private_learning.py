"""Accuracy against ε: FedBuff with integer sums and with noise, as a table.

    python benchmarks/private_learning.py
    python benchmarks/private_learning.py --seeds 1 --versions 50
    python benchmarks/private_learning.py --data heart_disease --versions 100

digits: 100 clients with skewed labels and speeds train a logistic regression (650 parameters); buffers of 10
clients. heart_disease: four hospitals with their own patients, another logistic regression, buffers of 3.
The number is the mean accuracy over the last five evaluations, with its standard deviation over the seeds;
ε is that of the busiest client. The noise follows from the seed: these models are not private.
"""

import argparse
from collections.abc import Iterator
from statistics import mean, pstdev

import numpy as np
from torch import nn

import offbeat as ob
from offbeat.models.logistic import LogisticRegression

CLIENTS, STEPS, DELTA = 100, 5, 1e-3
SIZES = {"digits": (10, 30), "heart_disease": (3, 4)}  # clients of a buffer, clients at a time
Case = tuple[str, ob.Privacy | None, bool, float]


def logistic() -> nn.Module:
    """Logistic regression for 8x8 images, from zeros."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    return net


def learner(data: str, seed: int) -> ob.TorchLearner:
    """Digits in 100 parts of equal size and few labels, trained by whole parts; or the four hospitals."""
    if data == "heart_disease":
        found = ob.load(data)
        hospitals = ob.federate(found, None, [np.flatnonzero(found.groups == group) for group in range(4)])
        return ob.TorchLearner(
            lambda: LogisticRegression(13, 2), hospitals, ob.Training(lr=0.05, batch_size=8)
        )
    source = ob.load("digits")
    labels = source.train.y.numpy()
    order = np.argsort(labels + np.random.default_rng(seed).random(len(labels)) * 6)
    data = ob.federate(source, None, np.array_split(order, CLIENTS))
    return ob.TorchLearner(logistic, data, ob.Training(lr=0.5, batch_size=20))


def noisy(multiplier: float, bits: int, bands: int = 1) -> ob.Privacy:
    """Noise whose budget is counted and not limited."""
    noise = ob.Noise(multiplier=multiplier, bands=bands, budget=ob.Budget(delta=DELTA))
    return ob.Privacy(clip=0.5, weight_bits=bits, noise=noise)


def cases() -> Iterator[Case]:
    """Title, privacy, whether staleness counts, server learning rate."""
    yield "plain, staleness weights", None, True, 1.0
    yield "sums, w = 4 with dither, clip 5", ob.Privacy(clip=5, weight_bits=4, secure=ob.Secure()), True, 1.0
    yield "plain, equal weights", None, False, 1.0
    yield "sums, w = 0, clip 5", ob.Privacy(clip=5, weight_bits=0, secure=ob.Secure()), False, 1.0
    for multiplier, bands in ((1.0, 1), (2.0, 1), (4.0, 1), (8.0, 1), (8.0, 16), (16.0, 16)):
        title = f"z = {multiplier:g}, bands {bands}"
        yield f"{title}, w = 0, server_lr 0.3", noisy(multiplier, 0, bands), False, 0.3
    yield "z = 8, bands 16, w = 4, server_lr 0.3", noisy(8.0, 4, 16), True, 0.3


def accuracy(case: Case, data: str, seed: int, versions: int) -> tuple[float, ob.Run]:
    """Mean accuracy over the last five evaluations of one run."""
    _, privacy, staleness, server_lr = case
    weight = ob.polynomial() if staleness else ob.constant()
    size, concurrency = SIZES[data]
    algorithm = ob.fedbuff(size, STEPS, concurrency=concurrency, server_lr=server_lr, staleness=weight)
    world = ob.World(seconds_per_step=ob.laws.LogNormal(1.0), jitter=0.2)
    run = ob.simulate(
        algorithm, world, learner(data, seed), seed=seed, until=ob.Until(versions=versions),
        evaluate=ob.Every(versions=max(1, versions // 30)), privacy=privacy,
    )  # fmt: skip
    return mean(row["accuracy"] for row in run.metrics[-5:]), run


def main() -> None:
    """Print a line of a Markdown table for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", choices=list(SIZES), default="digits")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--versions", type=int, default=300)
    options = parser.parse_args()
    title = f"FedBuff on {options.data}, {options.versions} releases"
    print(f"| {title} | accuracy | ε (δ = {DELTA:g}) | releases |")
    print("|---|---|---|---|", flush=True)
    for case in cases():
        runs = [accuracy(case, options.data, seed, options.versions) for seed in range(options.seeds)]
        found, spent = [a for a, _ in runs], [run.summary.privacy or {} for _, run in runs]
        epsilon = f"{mean(s['epsilon'] for s in spent):.1f}" if spent[0] else "–"
        releases = f"{max(s['releases'] for s in spent):.0f}" if spent[0] else "–"
        print(f"| {case[0]} | {mean(found):.3f} ± {pstdev(found):.3f} | {epsilon} | {releases} |", flush=True)


if __name__ == "__main__":
    main()
