"""Accuracy under attack: robust rules under FedBuff, FedCompass and FedFa, as rows of a CSV.

    python benchmarks/robust.py --out runs/robust.csv
    python benchmarks/robust.py --out runs/robust.csv --algorithms fedbuff --shares 0 20 --seeds 2
    python benchmarks/robust.py --out runs/robust.csv --dataset fashion_mnist --shares 0 20

100 clients with skewed labels and speeds, without the guard against absurd updates; logistic regression on
digits, an MLP on Fashion-MNIST. What is in --out already is kept, so an interrupted call goes on. At the end
it prints the tables of the mean over the seeds; the number is the mean accuracy over the last five
evaluations. A run whose losses are not finite any more counts as 0.1, a guess.

`rare` is no attack: only the slowest quarter of the clients has the last class, and the number is the share
of its test samples that the last model recognises.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import mean
from typing import Any, Literal

import numpy as np
import torch
from harness import Row, Rows, main, markdown
from msgspec.structs import replace as changed
from torch import Tensor, nn

import offbeat as ob
from offbeat import robust as r
from offbeat.core.learner import NO_INPUTS, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective

CLIENTS, TASKS, STEPS, CONCURRENCY, ROOT = 100, 2000, 5, 30, 100
NO_CLIP = 1e30
ATTACKS = ("none", "sign flip", "scaled", "noise", "norm", "label flip", "ALIE")
FIELDS = ("dataset", "algorithm", "rule", "attack", "share", "seed")


# ---- the data, the attackers ----


def logistic() -> nn.Module:
    """Logistic regression for 8x8 images, from zeros."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    return net


def mlp() -> nn.Module:
    """One hidden layer for 28x28 images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


@dataclass(frozen=True)
class Setting:
    """A model, the clients' learning rate, and the norm that updates are clipped to: about their median."""

    module: Callable[[], nn.Module]
    lr: float
    clip: float


SETTINGS = {"digits": Setting(logistic, 0.5, 0.5), "fashion_mnist": Setting(mlp, 0.1, 0.5)}


def divided(dataset: str, seed: int, slowest: Sequence[int], rare: bool) -> ob.FederatedData:
    """Skewed labels, 100 samples the server's; `rare` gives the last class to the slowest clients only."""
    source = ob.load(dataset)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(source.train.y))
    root, own = order[:ROOT], order[ROOT:]
    labels = source.train.y.numpy()
    own = own[np.argsort(labels[own] + 6 * rng.random(len(own)))]
    if not rare:
        parts = np.array_split(own, CLIENTS)
    else:
        nines, others = own[labels[own] == 9], own[labels[own] != 9]
        parts = np.array_split(others, CLIENTS)
        for client, share in zip(slowest, np.array_split(nines, len(slowest)), strict=True):
            parts[client] = share
    return ob.federate(source, None, parts, root=source.train.subset(np.sort(root)))


@dataclass
class Attacked:
    """A learner, some of whose clients send something else than what they have trained.

    Attributes:
        honest: Trains.
        flipped: Trains on labels 9 − y.
        liars: The attackers.
        attack: What they do. Who needs the updates of others sees the last ten honest ones.
    """

    honest: ob.TorchLearner
    flipped: ob.TorchLearner
    liars: frozenset[int]
    attack: str

    def __post_init__(self) -> None:
        """Nobody has trained."""
        self.seen: deque[Tensor] = deque(maxlen=10)

    def __getattr__(self, name: str) -> Any:
        """Whatever is not training is the honest learner's."""
        return getattr(self.honest, name)

    def train(
        self, base: Model, task: LocalTask, objective: Objective, inputs: TaskInputs = NO_INPUTS
    ) -> LocalResult:
        """Train, or lie."""
        if task.client not in self.liars:
            result = self.honest.train(base, task, objective, inputs)
            self.seen.append(result.delta)
            return result
        learner = self.flipped if self.attack == "label flip" else self.honest
        result = learner.train(base, task, objective, inputs)
        return changed(result, delta=self._lie(result.delta, task))

    def _lie(self, delta: Tensor, task: LocalTask) -> Tensor:
        others = torch.stack(list(self.seen) or [delta])
        noise = torch.from_numpy(
            np.random.default_rng((task.seed, task.task)).normal(size=len(delta))
        ).float()
        match self.attack:
            case "sign flip":
                return -delta
            case "scaled":
                return -10 * others.mean(0)
            case "noise":
                return noise * (10 * delta.norm() / noise.norm())
            case "norm":
                return noise * (1e6 / noise.norm())
            case "ALIE":
                return others.mean(0) - others.std(0, correction=0)
            case _:
                return delta


# ---- what is compared ----


ALGORITHMS = {
    "fedbuff": ob.fedbuff(10, steps=STEPS, concurrency=CONCURRENCY),
    "fedcompass": ob.fedcompass(3, 12),
    # It applies of each delta what FedBuff does.
    "fedfa": ob.fedfa(10, steps=STEPS, concurrency=CONCURRENCY, server_lr=0.1),
}


def rules_of(algorithm: str, clip: float) -> dict[str, tuple[r.RobustAggregator | None, float | None]]:
    """The aggregators, and the norm that updates are clipped to."""
    more: dict[str, Any] = {
        "fedbuff": {},
        "fedcompass": {"weights": "share"},
        "fedfa": {"scale": 0.1, "staleness": ob.constant()},
    }[algorithm]
    several: dict[str, r.RobustAggregator] = {
        "trimmed mean 0.2": r.TrimmedMean(beta=0.2, **more),
        "median": r.Median(**more),
        "krum f=2": r.MultiKrum(f=2, n=1, **more),
        "multi-krum f=2": r.MultiKrum(f=2, **more),
        "geometric median": r.GeometricMedian(**more),
    }
    alone: dict[str, r.RobustAggregator] = {
        "centered clip": r.CenteredClip(tau=clip, **more),
        "aflguard": r.AFLGuard(steps=STEPS, **more),
        "zeno++": r.ZenoPlus(steps=STEPS, **more),
    }
    buckets = r.Buckets(buckets=10, f=2) if algorithm == "fedfa" else None
    return {
        "mean": (None, None),
        "clip": (None, clip),
        **({} if algorithm == "fedfa" else {k: (rule, clip) for k, rule in several.items()}),
        **({} if algorithm == "fedfa" else {f"{k}, no clip": (rule, NO_CLIP) for k, rule in several.items()}),
        **{k: (rule, None) for k, rule in alone.items()},
        **({} if buckets is None else {"buckets": (buckets, clip)}),
    }


def accuracy(
    dataset: str, algorithm: str, rule: str, attack: str, share: int, seed: int, tasks: int
) -> float:
    """Run one case."""
    setting, rng = SETTINGS[dataset], np.random.default_rng(seed)
    speeds = np.exp(0.8 * rng.standard_normal(CLIENTS))
    liars = frozenset(rng.choice(CLIENTS, CLIENTS * share // 100, replace=False).tolist())
    slowest = np.argsort(speeds)[-CLIENTS // 4 :].tolist()
    data = divided(dataset, seed, slowest, attack == "rare")
    flipped = replace(data, train=replace(data.train, y=9 - data.train.y))
    training = ob.Training(lr=setting.lr, batch_size=16)
    honest, wrong = (ob.TorchLearner(setting.module, d, training) for d in (data, flipped))
    aggregator, clip = rules_of(algorithm, setting.clip)[rule]
    composed = ob.compose(ALGORITHMS[algorithm], aggregator=aggregator, clip=clip)
    world = ob.World([*map(float, speeds)], jitter=0.3)
    every = ob.Every(versions=100 if algorithm == "fedfa" else 10)
    learner = Attacked(honest, wrong, liars, attack)
    try:
        until = ob.Until(tasks=tasks)
        run = ob.simulate(composed, world, learner, seed=seed, until=until, evaluate=every, guard=None)
    except ob.RunError:
        return 0.1
    if attack == "rare":
        nines = np.flatnonzero(data.test.y.numpy() == 9)
        judge = ob.TorchLearner(setting.module, replace(data, test=data.test.subset(nines)))
        return judge.evaluate(run.model)["accuracy"]
    return mean(row.accuracy or 0.0 for row in run.evaluations()[-5:])


# ---- rows and tables ----


def robust(
    dataset: Literal["digits", "fashion_mnist"] = "digits",
    algorithms: tuple[str, ...] = tuple(ALGORITHMS),
    rules: tuple[str, ...] = (),
    attacks: tuple[str, ...] = ATTACKS,
    shares: tuple[int, ...] = (0, 10, 20, 30),
    seeds: int = 3,
    tasks: int = TASKS,
    rare: bool = False,
) -> Rows:
    """Every case; without attackers there is one attack, none.

    rules: all that the algorithm has, by default
    rare: the digit that only slow clients have, too
    """
    chosen = [(share, attack) for share in shares for attack in (attacks if share else ("none",))]
    chosen = [(share, attack) for share, attack in chosen if (attack == "none") == (share == 0)]
    for algorithm, (share, attack) in product(algorithms, [*chosen, *([(0, "rare")] if rare else [])]):
        known = rules_of(algorithm, 1.0)
        for seed, rule in product(range(seeds), [rule for rule in rules or known if rule in known]):
            case = (dataset, algorithm, rule, attack, share, seed)
            yield dict(zip(FIELDS, case, strict=True)), partial(measure, *case, tasks)


def measure(*case: Any) -> Row:
    """The accuracy of a case, and how long it took."""
    started = time.perf_counter()
    found = accuracy(*case)
    return {"accuracy": round(found, 4), "seconds": round(time.perf_counter() - started, 1)}


def tables(rows: Sequence[Row]) -> str:
    """The means over the seeds, as Markdown: a table for each data set, algorithm and share of attackers."""
    found: dict[tuple[str, str, int], dict[str, dict[str, list[float]]]] = {}
    for row in rows:
        table = found.setdefault((row["dataset"], row["algorithm"], int(row["share"])), {})
        table.setdefault(row["rule"], {}).setdefault(row["attack"], []).append(float(row["accuracy"]))
    texts = []
    for (dataset, algorithm, share), table in sorted(found.items()):
        attacks = list(dict.fromkeys(attack for columns in table.values() for attack in columns))
        means = [
            [rule, *(f"{mean(columns[a]):.3f}" if a in columns else "" for a in attacks)]
            for rule, columns in table.items()
        ]
        texts.append(
            f"{dataset}, {algorithm}, {share} % attackers\n\n{markdown([['rule', *attacks], *means])}"
        )
    return "\n".join(texts)


if __name__ == "__main__":
    main(robust, tables)
