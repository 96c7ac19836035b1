"""Worlds to test algorithms in: two fixed ones, and random ones with every feature a world has."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from offbeat.world import laws
from offbeat.world.availability import Availability
from offbeat.world.channel import Channel
from offbeat.world.network import Network
from offbeat.world.world import World

T = TypeVar("T")

# Too few symbols for whole updates of a small model.
_FEW_SYMBOLS = Channel(3000)

CALM = World(seconds_per_step=[1.0, 1.5, 2.0, 3.0, 7.0], channel=_FEW_SYMBOLS)
"""Five clients that are always there; their speeds are constant, differ, and give ties."""

HARD = World(
    seconds_per_step=laws.Exponential(1.0, minimum=0.1),
    clients=5,
    jitter=0.2,
    change=0.1,
    network=Network(latency=0.1, up=1e6, delay=laws.Uniform(0.05, 0.5)),
    availability=Availability(dropout=0.1, leave=[50, 1e6, 80, 1e6, 1e6], period=60, present=0.8),
    channel=_FEW_SYMBOLS,
)
"""Five clients with random speeds, transfers, dropout and absences; two leave for good."""

# Sums of these dyadic numbers are exact.
_TIES = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0]
_LAWS = [
    laws.Constant(1.0), laws.Normal(1.0), laws.Exponential(1.0), laws.Uniform(0.5, 2.0),
    laws.Ratio(0.25, 20.0), laws.MeanRatio(2.0, 20.0), laws.Pareto(0.5), laws.LogNormal(1.0), laws.Zipf(0.5),
]  # fmt: skip
_MOMENTS = [10.0, 25.0, 40.0, 100.0, 150.0]


class Choices(Protocol):
    """Where the choices of a random world come from: a random generator, or Hypothesis."""

    def one_of(self, options: Sequence[T]) -> T:
        """One of the options."""

    def integer(self, low: int, high: int) -> int:
        """An integer in [low, high]."""

    def number(self, low: float, high: float) -> float:
        """A number in [low, high]."""


class _UniformChoices:
    """Choices drawn uniformly from a generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def one_of(self, options: Sequence[T]) -> T:
        return options[int(self._rng.integers(len(options)))]

    def integer(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high + 1))

    def number(self, low: float, high: float) -> float:
        return float(self._rng.uniform(low, high))


def random_worlds(count: int, seed: int = 0, clients: tuple[int, int] = (1, 5)) -> Iterator[World]:
    """Random worlds, the same for the same seed.

    Args:
        count: Number of worlds.
        seed: Seed of the choices, ≥ 0.
        clients: Smallest and largest number of clients.
    """
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield make_world(_UniformChoices(rng), clients)


def make_world(choose: Choices, clients: tuple[int, int] = (1, 5)) -> World:
    """A world with choices of `choose`: speeds with ties or by a law, a network, dropout, absences."""
    count = choose.integer(*clients)
    kind = choose.one_of(["law", "number", "list"])
    return World(
        _speeds(choose, kind, count),
        clients=count,
        jitter=choose.one_of([0.0, 0.05, 0.5]),
        change=choose.one_of([0.0, 0.1, 1.0]) if kind == "law" else 0.0,
        per_task=choose.one_of([False, True]) if kind == "law" else False,
        network=_network(choose),
        availability=_availability(choose, count),
        channel=Channel(choose.one_of([1, 500])),
    )


def _speed(choose: Choices) -> float:
    return choose.one_of(_TIES) if choose.one_of([True, False]) else choose.number(0.05, 20.0)


def _speeds(choose: Choices, kind: str, count: int) -> Any:
    """A law, a number for each client, or numbers that a client's tasks go through in turn."""
    if kind == "law":
        return choose.one_of(_LAWS)
    if kind == "number":
        return [_speed(choose) for _ in range(count)]
    return [[_speed(choose) for _ in range(choose.integer(1, 4))] for _ in range(count)]


def _network(choose: Choices) -> Network:
    if choose.one_of([True, False]):
        return Network()
    up, down = (choose.number(10.0, 1e4) if choose.one_of([True, False]) else None for _ in ("up", "down"))
    latency: Any = choose.one_of([0.0, 0.5, *_LAWS])
    delay: Any = choose.one_of([None, *_LAWS])
    return Network(latency=latency, up=up, down=down, delay=delay)


def _availability(choose: Choices, count: int) -> Availability:
    kind = choose.one_of(["always", "joins and leaves", "periods"])
    if kind == "always":
        return Availability()
    join = [choose.one_of([0.0, *_MOMENTS]) for _ in range(count)]
    leave = [2 * choose.one_of(_MOMENTS) for _ in range(count)]
    return Availability(
        dropout=choose.one_of([0.0, 0.1, 0.5]),
        join=choose.one_of([None, join]),
        leave=choose.one_of([None, leave]),
        period=None if kind != "periods" else choose.one_of([30.0, 100.0, choose.number(20.0, 300.0)]),
        present=1.0 if kind != "periods" else choose.number(0.1, 1.0),
    )
