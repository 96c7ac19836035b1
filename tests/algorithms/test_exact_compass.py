"""FedCompass against a simulation in exact rational numbers, event by event, in worlds full of ties."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.core.journal import Row
from offbeat.core.learner import LocalResult, NoTraining
from offbeat.core.model import Model
from offbeat.world.population import Population
from tests.algorithms.deployed_compass import DeployedCompass
from tests.algorithms.exact_compass import ExactCompass, ExactWorld
from tests.sampling import thorough

ARRIVALS = 120
PER_CASE = 20


@dataclass(frozen=True)
class Slopes(NoTraining):
    """Clients with these numbers of samples; an update is the client's slope times its steps."""

    own_samples: Sequence[int] = ()
    slopes: Sequence[int] = ()

    def samples(self, client: int) -> int:
        return self.own_samples[client]

    def train(self, base: Any, task: Any, *_: Any, **__: Any) -> LocalResult:
        return LocalResult(torch.tensor([float(self.slopes[task.client] * task.steps)]), base.integers)


def decimal(rng: Random, low: int, high: int, per: int) -> Fraction:
    return Fraction(rng.randint(low, high), per)


def speeds(rng: Random, clients: int, latest: Fraction) -> list[list[Fraction]]:
    """Equal ones, ones in small ratios, decimals, binary fractions, thirds or any; constant or by task."""
    kind, one = rng.randrange(6), decimal(rng, 1, 300, 100)

    def speed() -> Fraction:
        if kind == 0:
            return one
        if kind == 1:
            return one * rng.choice([1, 2, 3, 4, 5, 6, Fraction(1, 2), Fraction(3, 2)])
        if kind in (2, 3, 4):
            return decimal(rng, 1, 60, {2: 10, 3: 16, 4: 3}[kind])
        return Fraction(rng.uniform(0.05, 5.0))

    own, change = [speed() for _ in range(clients)], rng.randrange(4)
    if change == 0:  # a slowdown of exactly λ every now and then
        return [[s * rng.choice([1, 1, latest]) for _ in range(12)] for s in own]
    if change == 1:
        return [
            [s, *(s * rng.choice([1, 1, Fraction(3, 2), 2, Fraction(1, 2)]) for _ in range(9))] for s in own
        ]
    return [[s] for s in own]


def presence(rng: Random, clients: int, unit: Fraction) -> list[list[tuple[Fraction, Fraction | None]]]:
    """All the time, or from and until multiples of a unit, on which tasks end too."""
    if rng.random() < 0.5:
        return [[(Fraction(0), None)]] * clients
    found: list[list[tuple[Fraction, Fraction | None]]] = []
    for _ in range(clients):
        times = sorted({unit * rng.randint(0, 60) for _ in range(rng.randint(1, 4))})
        begins, ends = times[::2], [*times[1::2], None]
        found.append(list(zip(begins, ends, strict=False)))
    return found


def exact_world(rng: Random) -> ExactWorld:
    """A random world; without losses, which the run's seed draws.

    A mean of old and new speeds comes near to a constant one without end, so that times differ by any small
    number, which no clock tells apart: ρ > 0 has constant speeds and free transfers.
    """
    clients, q_min = rng.randint(1, 6), rng.choice([1, 2, 5, 10, 20])
    latest = rng.choice([Fraction(1), Fraction(1), Fraction(6, 5), Fraction(3, 2), Fraction(2)])
    seconds = speeds(rng, clients, latest)
    latency = [rng.choice([Fraction(0), decimal(rng, 1, 20, 10)]) for _ in range(clients)]
    if rng.random() < 0.7:
        latency = [Fraction(0)] * clients
    settles = any(latency) or any(len(set(own)) > 1 for own in seconds)
    memory = rng.choice([Fraction(0), Fraction(1, 10), Fraction(1, 2)])
    return ExactWorld(
        q_min,
        q_min * rng.choice([1, 2, 5, 10]),
        latest,
        memory=Fraction(0) if settles else memory,
        seconds=seconds,
        latency=latency,
        lost=[],
        present=presence(rng, clients, q_min * seconds[0][0]),
        samples=[rng.choice([1, 1, 50, 500]) for _ in range(clients)],
        slopes=[rng.randint(-3, 3) for _ in range(clients)],
    )


def fedcompass(exact: ExactWorld) -> ob.Algorithm:
    """The algorithm of a world."""
    latest, memory = float(exact.latest), float(exact.memory)
    return ob.fedcompass(exact.q_min, exact.q_max, latest=latest, speed_memory=memory)


def simulated(
    exact: ExactWorld, seed: int, dropout: float, arrivals: int = ARRIVALS
) -> tuple[ob.Run, ExactWorld]:
    """Our run of a world, and the world with the losses that the run's seed draws."""
    clients = len(exact.seconds)
    world = ob.World(
        [[float(s) for s in own] for own in exact.seconds],
        network=ob.Network(latency=[float(seconds) for seconds in exact.latency]),
        availability=ob.Availability(
            dropout=dropout,
            intervals=[
                [(float(begin), None if end is None else float(end)) for begin, end in own]
                for own in exact.present
            ],
        ),
    )
    draws = Population(world, seed)
    lost = [[Fraction(draws.task(c, 0).lost) for _ in range(2 * arrivals)] for c in range(clients)]
    learner = Slopes(clients, 1, own_samples=exact.samples, slopes=exact.slopes)
    run = ob.simulate(
        fedcompass(exact), world, learner,
        until=ob.Until(tasks=arrivals), evaluate=None, seed=seed, guard=None,
    )  # fmt: skip
    return run, replace(exact, lost=lost)


def told(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    """The rows of a journal as an exact log."""
    found: list[tuple[Any, ...]] = []
    begun = False
    for entry in (row.flat() for row in rows):
        name, t = entry["name"], entry["t"]
        begun |= name == "begin"
        if name in ("arrived", "lost", "left") or (name == "joined" and begun):
            found.append((name, t, entry["client"]))
        elif name == "timer":
            found.append((name, t, int(entry["timer"].removeprefix("group "))))
        elif name == "aggregate":
            found.append((name, t, entry.get("group"), list(entry["clients"])))
        elif name == "train":
            found.append((name, t, entry["client"], entry["steps"], entry.get("group")))
    return found


def difference(rows: Iterable[Row], model: Model, exact: ExactCompass) -> str | None:
    """The first difference from an exact run; None means that there is none."""
    ours = told(rows)
    for mine, theirs in zip(ours, exact.log, strict=False):
        if (mine[0], *mine[2:]) != (theirs[0], *theirs[2:]) or mine[1] != pytest.approx(
            float(theirs[1]), rel=1e-9
        ):
            return f"{mine} is {(theirs[0], float(theirs[1]), *theirs[2:])}"
    if len(ours) != len(exact.log):
        return f"{len(ours)} entries are {len(exact.log)}"
    w = float(model.values[0])
    return None if w == pytest.approx(exact.w, rel=1e-4, abs=1e-3) else f"w = {w} is {exact.w}"


@pytest.mark.parametrize("case", [0, 1, *thorough(*range(2, 52))])
def test_simulated_runs_agree_with_a_simulation_in_exact_numbers(case):
    at_latest = 0
    for number in range(PER_CASE * case, PER_CASE * (case + 1)):
        rng = Random(number)
        run, world = simulated(exact_world(rng), number, rng.choice([0.0, 0.0, 0.1, 0.3]))
        exact = ExactCompass(world, ARRIVALS)
        found = difference(run.rows(), run.model, exact)
        assert found is None, f"world {number}: {found}"
        at_latest += exact.arrivals_at_latest
    assert at_latest > 50  # of 2,400: times that mean T_max are what is tried here


@pytest.mark.parametrize("case", [0, *thorough(*range(1, 52))])
def test_deployed_runs_agree_with_a_simulation_in_exact_numbers(case):
    at_latest = 0
    for number in range(PER_CASE * case, PER_CASE * (case + 1)):
        world = always_there(exact_world(Random(number)))
        run, exact = DeployedCompass(world, fedcompass(world), ARRIVALS), ExactCompass(world, ARRIVALS)
        found = difference(run.rows, run.model, exact)
        assert found is None, f"world {number}: {found}"
        at_latest += exact.arrivals_at_latest
    assert at_latest > 50


def always_there(world: ExactWorld) -> ExactWorld:
    """The world, whose clients are there all the time and lose no task."""
    clients = len(world.seconds)
    return replace(world, present=[[(Fraction(0), None)]] * clients, lost=[[Fraction(1)] * 999] * clients)


STEADY = [["0.07", "0.11"], ["0.1", "0.3", "0.7"], ["0.013", "0.077", "0.39", "1.1"]]


@pytest.mark.parametrize(
    ("speeds", "offset", "arrivals"),
    [(STEADY[1], 10**7, 200), (STEADY[2], 0, 300), *thorough(*((own, 10**5, 20_000) for own in STEADY))],
)
def test_long_runs_agree_too(speeds, offset, arrivals):
    """Rounding adds up over many tasks, and is coarser late in a run."""
    clients = len(speeds)
    world = ExactWorld(
        10, 50, Fraction(1), Fraction(0), [[Fraction(s)] for s in speeds], [Fraction(0)] * clients, [],
        [[(Fraction(offset), None)]] * clients, [1] * clients, [1] * clients,
    )  # fmt: skip
    run, world = simulated(world, 0, 0.0, arrivals=arrivals)
    exact = ExactCompass(world, arrivals)
    assert [(e[0], *e[2:]) for e in told(run.rows())] == [(e[0], *e[2:]) for e in exact.log]
    assert exact.arrivals_at_latest > arrivals / clients / 4
    assert not run.entries("timer")
