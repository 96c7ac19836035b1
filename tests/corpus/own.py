"""Functions of a user's own, which runs of the corpus name as "tests.corpus.own:FUNCTION"."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.commands import Command, Stop
from offbeat.core.events import Arrived, Event
from offbeat.core.schedule import Schedule, View
from offbeat.core.wrapper import Wrapper

MODULE = "tests.corpus.own"
FEATURES = 4


# ---- data ----


def points(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two classes of points in four dimensions that a line divides."""
    x = np.random.default_rng(seed).standard_normal((samples, FEATURES)).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy((x.sum(axis=1) > 0).astype(np.int64))


def cohort() -> Any:
    """A train and a test set, which a recipe divides."""
    return points(60, 1), points(20, 2)


def hospitals(sizes: list[int], scales: list[float] | None = None, validation: float = 0.0) -> Any:
    """A client of each size, whose features are on a scale of their own."""
    factors = scales or [1.0] * len(sizes)
    clients = [points(size, 10 + i) for i, size in enumerate(sizes)]
    train = [(factor * x, y) for (x, y), factor in zip(clients, factors, strict=True)]
    return ob.federate(train, points(20, 2), validation=validation)


def test_points() -> Any:
    """The test data of a server."""
    return points(20, 2)


test_points.__test__ = False  # type: ignore[attr-defined]  # for pytest, which would take it for a test


def site_0() -> Any:
    """The data of a site; the functions after it are those of other sites."""
    return points(16, 10)


def site_1() -> Any:
    return points(24, 11)


def site_2() -> Any:
    return points(32, 12)


def spoilt() -> Any:
    """The data of a site that no model gets better by."""
    x, y = points(16, 13)
    return 1e4 * x, 1 - y


# ---- models ----


def linear(zero: bool = False) -> nn.Module:
    """A linear layer, from zero if asked."""
    layer = nn.Linear(FEATURES, 2)
    if zero:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return layer


def normalised() -> nn.Module:
    """A model with BatchNorm: floating buffers and a counter."""
    return nn.Sequential(nn.Linear(FEATURES, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


def two_parts() -> nn.Module:
    """A body and a head, which can stay at its client."""
    body = nn.Sequential(nn.Linear(FEATURES, 3), nn.ReLU())
    return nn.Sequential(*[body, nn.Linear(3, 2)])


# ---- training and metrics ----


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy with smoothed labels."""
    return nn.functional.cross_entropy(output, target, label_smoothing=0.1)


def step(module: nn.Module, batch: Any) -> Tensor:
    """The loss of a batch, in place of `loss`."""
    x, y = batch
    return nn.functional.cross_entropy(module(x), y)


def evaluate(module: nn.Module, batch: Any) -> dict[str, float]:
    """Means of a batch by name."""
    x, y = batch
    scores = module(x)
    return {
        "loss": float(nn.functional.cross_entropy(scores, y)),
        "agreement": float((scores.argmax(1) == y).float().mean()),
    }


def positives(scores: Tensor, target: Tensor) -> float:
    """Share of the samples that the model takes for the second class."""
    return float((scores.argmax(1) == 1).float().mean())


# ---- algorithms ----


@dataclass(frozen=True)
class StopAfter(Wrapper, Schedule):
    """A schedule around another one, which ends the run after so many arrivals."""

    inner: Schedule
    arrivals: int

    def initial(self) -> list[Any]:
        """The inner schedule's state, and the arrivals so far."""
        return [self.inner.initial(), 0]

    def on(self, event: Event, state: list[Any], view: View) -> Iterator[Command]:
        """What the inner schedule commands, and then the end."""
        yield from self.inner.on(event, state[0], view)
        state[1] += isinstance(event, Arrived)
        if state[1] == self.arrivals:
            yield Stop(f"{self.arrivals} updates are enough")


def stopping(steps: int, arrivals: int) -> ob.Algorithm:
    """FedBuff that ends its run itself."""
    base = ob.fedbuff(2, steps=steps)
    return replace(base, schedule=StopAfter(base.schedule, arrivals))


@dataclass(frozen=True)
class Jumping(Wrapper, Aggregator):
    """An aggregator around another one, whose step is absurd at some aggregations."""

    inner: Aggregator
    every: int
    factor: float

    def step(self, updates: Sequence[Update], model: ob.Model, memory: dict[str, Tensor]) -> Tensor:
        """The inner step, times `factor` every so many steps."""
        count = memory.get("steps", torch.zeros(1, dtype=torch.int64)) + 1
        memory["steps"] = count
        step = self.inner.step(updates, model, memory)
        return step * self.factor if int(count) % self.every == 0 else step


def jumping(steps: int, every: int, factor: float) -> ob.Algorithm:
    """FedAsync with an aggregator that gives an absurd step now and then."""
    base = ob.fedasync(steps=steps)
    return replace(base, aggregator=Jumping(base.aggregator, every, factor))


# ---- callbacks ----


class Counter(ob.Callback):
    """Counts the evaluations that it is told of."""

    def __init__(self) -> None:
        self.evaluations = 0

    def on_evaluation(self, run: Any, metrics: Any, model: ob.Model) -> None:
        """One more."""
        self.evaluations += 1
