"""Accuracy against ε, and time to an accuracy, of integer sums and noise, as tables.

    python benchmarks/private_learning.py
    python benchmarks/private_learning.py --target 0.9 --seeds 10
    python benchmarks/private_learning.py --seeds 1 --versions 50
    python benchmarks/private_learning.py --data heart_disease --versions 100

digits: 100 clients with skewed labels and speeds train a logistic regression (650 parameters); buffers of 10
clients. heart_disease: four hospitals with their own patients, another logistic regression, buffers of 3.
The number is the mean accuracy over the last five evaluations, with its standard deviation over the seeds;
ε is that of the busiest client. The noise follows from the seed: these models are not private.

With --target: virtual seconds until the accuracy of a version is that high, of FedBuff and FedCompass, plain
and with sums; each version is evaluated. The mean has Student's interval over the seeds. The ratio to the
plain run of the same algorithm and weights is that of the means; its interval is the paired bootstrap over
seeds. "rounded weights" are real-valued sums with the integer weights of the pooled releases. Where the
extra secure is there, the first seed is run with masks as well: the model must be the same, bit for bit.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import sqrt
from statistics import mean, pstdev, stdev
from typing import Literal

import numpy as np
from harness import Rows, main
from torch import Tensor, nn

import offbeat as ob
from offbeat import experiment
from offbeat.core.aggregator import SumOnly, Update, UpdateSum
from offbeat.core.commands import Aggregate
from offbeat.core.global_model import GlobalModel
from offbeat.models.logistic import LogisticRegression
from offbeat.report.seed_statistics import student_t

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


# ---- time to an accuracy ----

MOST_VERSIONS = 2000  # of a run that does not get there
SAMPLES = 10_000  # of the bootstrap


class RealSums(GlobalModel):
    """Makes each version from float64 sums with the rounded weights: no grid, no dither, no clip."""

    def _step(self, updates: Sequence[Update], command: Aggregate) -> Tensor:
        aggregator, plan = self._algorithm.aggregator, self.release.plan
        assert isinstance(aggregator, SumOnly)
        weights = dict(zip(command.tasks, command.note["weights"], strict=True))
        tasks, scale = [u.task for u in updates], command.note["scale"]
        scaled = [scale * weights[task.id] / plan.grid.q for task in tasks]
        total = sum(
            c * aggregator.factor(u.task) * u.delta.double() for c, u in zip(scaled, updates, strict=True)
        )
        bases = [u.base for u in updates]
        summed = UpdateSum(total.float(), scaled, tasks, bases, command.note)
        return aggregator.from_sum(summed, self.model, self.memory)


@dataclass(frozen=True)
class Timed:
    """A row of the table: an algorithm, with equal weights or not, and how its versions are made.

    FedCompass weighs by shares of samples, and has no equal weights.
    """

    algorithm: str
    equal: bool
    how: str  # "plain", "rounded weights" or "sums"

    @property
    def title(self) -> str:
        """What the row is called."""
        bits = 0 if self.equal else 4
        told = {
            "plain": f"plain, {'equal' if self.equal else 'staleness'} weights",
            "rounded weights": f"real-valued sums, weights of {bits} bits",
            "sums": f"sums, w = {bits}{'' if self.equal else ' with dither'}",
        }
        return f"{self.algorithm}: {told[self.how]}"

    @property
    def privacy(self) -> ob.Privacy | None:
        """Options of the sums; None where there are none."""
        bits = 0 if self.equal else 4
        return None if self.how == "plain" else ob.Privacy(clip=5, weight_bits=bits, secure=ob.Secure())

    def make(self) -> ob.Algorithm:
        """The algorithm."""
        if self.algorithm == "FedCompass":
            return ob.fedcompass(q_min=2, q_max=10)
        size, concurrency = SIZES["digits"]
        weight = ob.constant() if self.equal else ob.polynomial()
        return ob.fedbuff(size, STEPS, concurrency=concurrency, staleness=weight)


TIMED = [
    Timed(algorithm, equal, how)
    for algorithm, equal in (("FedBuff", True), ("FedBuff", False), ("FedCompass", False))
    for how in ("plain", *(() if equal else ("rounded weights",)), "sums")
]


def timed_run(case: Timed, target: float, seed: int, *, masks: bool = False) -> ob.Run:
    """A run until its target."""
    privacy = case.privacy
    if privacy is not None and masks:
        privacy = replace(privacy, secure=ob.Secure(masks=True))
    until = ob.Until(metric="accuracy", reaches=target, versions=MOST_VERSIONS)
    world = ob.World(seconds_per_step=ob.laws.LogNormal(1.0), jitter=0.2)
    with global_model(RealSums if case.how == "rounded weights" else GlobalModel):
        return ob.simulate(
            case.make(), world, learner("digits", seed), seed=seed, until=until, privacy=privacy
        )


@contextmanager
def global_model(kind: type[GlobalModel]) -> Iterator[None]:
    """The simulator makes its versions so."""
    experiment.GlobalModel = kind
    try:
        yield
    finally:
        experiment.GlobalModel = GlobalModel


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The ratio of the means, with the 95 % interval of the paired bootstrap over seeds."""
    a, b = np.asarray(ours), np.asarray(theirs)
    drawn = np.random.default_rng(0).integers(len(a), size=(SAMPLES, len(a)))
    low, high = np.quantile(a[drawn].mean(1) / b[drawn].mean(1), [0.025, 0.975])
    return f"{a.mean() / b.mean():.3f} ({low:.3f} to {high:.3f})"


def interval(values: Sequence[float]) -> str:
    """The mean, with Student's 95 % interval where there are several values."""
    if len(values) == 1:
        return f"{values[0]:.1f}"
    half = student_t(len(values) - 1) * stdev(values) / sqrt(len(values))
    return f"{mean(values):.1f} ± {half:.1f}"


def times(target: float, seeds: int) -> Rows:
    """Virtual seconds to an accuracy of each algorithm and way."""
    plain: list[float] = []
    for case in TIMED:
        runs = [timed_run(case, target, seed) for seed in range(seeds)]
        short = [run.stop_reason for run in runs if "accuracy" not in run.stop_reason]
        assert not short, f"{case.title}: {short}"
        seconds = [run.summary.seconds for run in runs]
        plain = seconds if case.how == "plain" else plain
        yield {
            f"digits, accuracy {target:g}": case.title,
            "virtual seconds": interval(seconds),
            "ratio to plain": "1" if case.how == "plain" else ratio(seconds, plain),
            "versions": round(mean(run.summary.versions for run in runs)),
        }
        if case.how == "sums" and find_spec("cryptography") is not None:
            masked = timed_run(case, target, 0, masks=True)
            same = masked.model.values.numpy().tobytes() == runs[0].model.values.numpy().tobytes()
            assert same, f"{case.title}: masks changed the model"
            assert masked.journal == runs[0].journal, f"{case.title}: masks changed the journal"


def private_learning(
    data: Literal["digits", "heart_disease"] = "digits", seeds: int = 3, versions: int = 300,
    target: float | None = None,
) -> Rows:  # fmt: skip
    """Accuracy against ε, or time to an accuracy.

    target: time to this accuracy, on digits
    """
    if target is not None:
        yield from times(target, seeds)
        return
    for case in cases():
        runs = [accuracy(case, data, seed, versions) for seed in range(seeds)]
        found, spent = [a for a, _ in runs], [run.summary.privacy or {} for _, run in runs]
        yield {
            f"FedBuff on {data}, {versions} releases": case[0],
            "accuracy": f"{mean(found):.3f} ± {pstdev(found):.3f}",
            f"ε (δ = {DELTA:g})": f"{mean(s['epsilon'] for s in spent):.1f}" if spent[0] else None,
            "releases": max(s["releases"] for s in spent) if spent[0] else None,
        }


if __name__ == "__main__":
    main(private_learning)
