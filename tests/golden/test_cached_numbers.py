"""Cached updates, worked out by hand: four clients, one value; an independent script agrees."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.algorithms.aggregators import SumOfDeltas
from offbeat.algorithms.cached import Cached
from offbeat.core.aggregator import Update
from offbeat.core.client_cache import ClientCache
from offbeat.core.layout import Layout
from offbeat.core.model import Model, Tensors
from offbeat.core.schedule import Task
from tests.golden.hand_driven import HandDriven
from tests.golden.near import near

MODEL = Model(Layout.flat(1), torch.zeros(1), torch.zeros(0, dtype=torch.int64))
BATCHES = [[(0, 1.0), (1, 2.0)], [(0, 3.0), (2, -1.0)], [(0, 2.0), (3, 4.0)]]
ONE_BY_ONE = [[each] for batch in BATCHES for each in batch]


class Cache:
    """A cache with the memory of its aggregator, from batch to batch."""

    def __init__(self, clients: int = 4) -> None:
        self.memory: Tensors = {}
        self.entries = ClientCache()
        self.clients, self.tasks = clients, 0

    def update(self, client: int, delta: float, lr: float = 0.0, base: int = 0, age: int = 0) -> Update:
        self.tasks += 1
        task = Task(self.tasks, client, base, 1, 0.0, staleness=age, population=self.clients)
        return Update(task, MODEL, torch.tensor([delta]), torch.zeros(0), lr=lr)

    def step(self, aggregator: Cached, updates: Sequence[Update]) -> float:
        step = aggregator.cached_step(updates, MODEL, self.memory, self.entries)
        self.entries.commit()
        return float(step)

    @property
    def vectors(self) -> dict[int, float]:
        return {client: float(self.entries.peek(client)) for client in self.entries.entries()}


def steps(batches: Sequence[Sequence[tuple[Any, ...]]], **options: Any) -> list[float]:
    cache = Cache()
    return [cache.step(Cached(**options), [cache.update(*each) for each in batch]) for batch in batches]


@pytest.mark.parametrize(
    ("options", "batches", "expected"),
    [
        # ½ (1 + 2); (1 + 2)/4 + ½ (3 − 1 − 1); (3 + 2 − 1)/4 + ½ (2 − 3 + 4)
        ({}, BATCHES, [1.5, 1.25, 2.5]),
        ({"first": "seen"}, BATCHES, [1.5, 2.0, 4 / 3 + 1.5]),
        ({"beta": 0.0}, BATCHES, [1.5, 1.0, 3.0]),
        ({"beta": 0.5}, BATCHES, [1.5, 1.125, 2.75]),
        ({"scale": 2.0}, BATCHES, [3.0, 2.5, 5.0]),
        # H/4 with the new H: 3, 4 and 7
        ({"divide": "clients"}, BATCHES, [0.75, 1.0, 1.75]),
        ({"divide": "clients", "first": "seen"}, BATCHES, [1.5, 4 / 3, 1.75]),
        # All four have an update before the fourth batch only.
        ({"divide": "clients", "first": "full"}, [*BATCHES, *BATCHES], [0.0, 0.0, 0.0, 1.5, 2.0, 1.75]),
        ({"divide": "clients"}, ONE_BY_ONE, [0.25, 0.75, 1.25, 1.0, 0.75, 1.75]),
        ({"divide": "clients", "first": "seen"}, ONE_BY_ONE, [1.0, 1.5, 2.5, 4 / 3, 1.0, 1.75]),
        # The same client twice, both against h_0 = 0.5: 0.5/4 + ½ (1 − 0.5 + 3 − 0.5)
        ({}, [[(0, 0.5)], [(0, 1.0), (0, 3.0)]], [0.5, 1.625]),
    ],
)
def test_the_steps_are_those_of_the_formula(options, batches, expected):
    assert steps(batches, **options) == near(*expected)


def test_the_cache_has_each_clients_last_update_and_their_sum_in_float64():
    cache = Cache()
    for batch in BATCHES:
        cache.step(Cached(), [cache.update(*each) for each in batch])
    assert cache.vectors == {0: 2.0, 1: 2.0, 2: -1.0, 3: 4.0}
    assert (cache.memory["sum"].dtype, float(cache.memory["sum"])) == (torch.float64, 7.0)
    cache = Cache()
    cache.step(Cached(), [cache.update(0, 1.0), cache.update(0, 3.0)])
    assert cache.vectors == {0: 3.0}


def test_updates_that_are_too_old_are_forgotten():
    """ACED: client, version of its base, and update; two versions are the most."""
    arrivals = [(0, 0, 1.0), (1, 0, 2.0), (0, 1, 3.0), (0, 3, 2.0), (0, 4, 2.5), (1, 2, 4.0)]
    cache, found = Cache(clients=2), []
    aced = Cached(divide="clients", first="seen", max_age=2)
    for version, (client, base, delta) in enumerate(arrivals):
        update = cache.update(client, delta, base=base, age=version - base)
        found.append((cache.step(aced, [update]), list(cache.vectors)))
    assert found == [(1, [0]), (1.5, [0, 1]), (2.5, [0, 1]), (2, [0]), (2.5, [0]), (2.5, [0])]
    # Nothing is left, and what has come is too old as well.
    assert cache.step(aced, [cache.update(1, 4.0, base=3, age=97)]) == 0.0
    assert cache.vectors == {}
    assert float(cache.memory["sum"]) == 0.0


def test_what_is_forgotten_leaves_the_sum_of_the_others():
    cache, found = Cache(clients=3), []
    aced = Cached(divide="clients", first="seen", max_age=2)
    for version, (client, delta) in enumerate([(0, 1.0), (1, 2.0), (2, 4.0), (2, 6.0)]):
        found.append(cache.step(aced, [cache.update(client, delta, base=version)]))
    # At version 3 the update of client 0 is three versions old: (2 + 6)/2
    assert found == near(1.0, 1.5, 7 / 3, 4.0)
    assert cache.vectors == {1: 2.0, 2: 6.0}


def test_mifa_keeps_updates_by_their_rate():
    cache, mifa = Cache(clients=2), Cached(divide="clients", per_rate=True)
    # 0.1 (1/0.1 + 2/0.1) / 2
    assert cache.step(mifa, [cache.update(0, 1.0, 0.1), cache.update(1, 2.0, 0.1)]) == pytest.approx(1.5)
    # 0.05 (0.5/0.05 + 2/0.1) / 2: client 1 counts with the present rate
    assert cache.step(mifa, [cache.update(0, 0.5, 0.05)]) == pytest.approx(0.75)
    # 0.03, the mean of 0.02 and 0.04, times (0.2/0.02 + 0.4/0.04) / 2
    both = [cache.update(0, 0.2, 0.02), cache.update(1, 0.4, 0.04)]
    assert cache.step(mifa, both) == pytest.approx(0.3)
    # A loop that tells no rate counts with 1.
    cache = Cache(clients=2)
    assert cache.step(mifa, [cache.update(0, 1.0), cache.update(1, 2.0)]) == pytest.approx(1.5)


def test_ca2fl_through_server_and_global_model():
    run = HandDriven(ob.ca2fl(2, 1), [1, 1, 1, 1], [0.0])
    for number, (client, delta) in enumerate(each for batch in BATCHES for each in batch):
        run.delta(number + 1.0, client, delta)
    assert run.w == near(1.5 + 1.25 + 2.5)
    assert run.tensors.nbytes == 4 * 4 + 8


def test_mifa_takes_all_clients_first_and_steps_in_the_second_round():
    run = HandDriven(ob.mifa(1, clients_per_round=1), [1, 1, 1], [0.0])
    assert set(run.server.tasks) == {0, 1, 2}
    for client, delta in enumerate((1.0, 2.0, 6.0)):
        run.delta(1.0 + client, client, delta)
    assert run.w == [0.0]
    (client,) = run.server.tasks
    run.delta(5.0, client, 3.0)
    kept = {0: 1.0, 1: 2.0, 2: 6.0, client: 3.0}
    assert run.w == near(sum(kept.values()) / 3)


def test_mifa_with_everybody_is_the_equal_mean_one_round_later():
    rounds = [(0.3, -1.7, 0.9), (0.1, 0.2, 0.30000001), (-5.0, 1e-8, 7.7)]
    equal = ob.Algorithm(ob.mifa(1).schedule, SumOfDeltas(weights="equal"), ob.fedavg().objective)
    found = {}
    for name, algorithm in {"mean": equal, "zero": ob.mifa(1, first="zero"), "full": ob.mifa(1)}.items():
        run = HandDriven(algorithm, [1, 1, 1], [0.0])
        # MIFA's first round fills the table from the initial model, in which it stays.
        for number, deltas in enumerate(rounds[:1] * (name == "full") + rounds):
            for client, delta in enumerate(deltas):
                run.delta(1.0 + 3 * number + client, client, delta)
        found[name] = run.w
    assert found["zero"] == found["mean"] == found["full"]
