"""PORT's schedule: who is waited for, who is recalled, and when; by hand and at exact times in a world."""

from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.core.commands import Aggregate, Command, Recall, Train
from offbeat.core.events import Joined, Left, Lost
from offbeat.core.features import Feature
from offbeat.core.server import Server
from tests.algorithms.pull import Pull, play
from tests.algorithms.server_by_hand import arrive, begin


def begun(clients: int, **options: Any) -> Server:
    return begin(ob.port(**{"size": 2, "tau_max": 1, "steps": 1, **options}), [1] * clients)


def short(commands: list[Command]) -> list[Any]:
    """Aggregations as tuples of clients, trainings as numbers of clients, recalls in words."""
    words = {
        Aggregate: lambda c: c.clients,
        Train: lambda c: c.client,
        Recall: lambda c: f"recall {c.client}",
    }
    return [words[type(c)](c) for c in commands]


def at_the_bound(urgent: bool, clients: int = 3) -> tuple[Server, list[Command]]:
    """Clients 0 and 1 have made version 1 and come back; the others are on their first tasks."""
    server = begun(clients, urgent=urgent)
    assert short(arrive(server, 1, 0)) == []
    assert short(arrive(server, 2, 1)) == [(0, 1), 0, 1]  # the others' updates will be 1 version old
    assert short(arrive(server, 3, 0)) == []
    return server, arrive(server, 4, 1)  # and would be 2


def test_nobody_starts_before_the_aggregation():
    server = begun(3)
    assert arrive(server, 1, 2) == []
    assert sorted(server.tasks) == [0, 1]


def test_the_bound_is_waited_for():
    server, commands = at_the_bound(urgent=False)
    assert commands == []
    assert short(arrive(server, 9, 2)) == [(0, 1, 2), 0, 1, 2]
    assert server.version == 2


def test_the_bound_recalls_each_client_once():
    server, commands = at_the_bound(urgent=True, clients=4)
    assert short(commands) == ["recall 2", "recall 3"]
    assert server.feed(5, Joined(9, 10, 1)) == []
    assert short(arrive(server, 6, 3)) == []
    assert short(arrive(server, 7, 2)) == [(0, 1, 3, 2), 0, 1, 2, 3, 9]


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize("gone", [False, True])
def test_a_client_that_is_lost_or_gone_blocks_nobody(urgent: bool, gone: bool):
    server, _ = at_the_bound(urgent)
    event = Left(2) if gone else Lost(2, server.tasks[2].id)
    assert short(server.feed(5, event)) == [(0, 1), 0, 1, *([] if gone else [2])]


def test_an_arrival_that_is_more_than_enough():
    server, _ = at_the_bound(urgent=False, clients=4)
    assert arrive(server, 5, 2) == []  # client 3 is still at the bound
    assert short(arrive(server, 6, 3)) == [(0, 1, 2, 3), 0, 1, 2, 3]


def test_when_nobody_trains_what_is_here_is_aggregated():
    server = begun(2, size=5)
    assert arrive(server, 1, 0) == []
    assert short(arrive(server, 2, 1)) == [(0, 1), 0, 1]
    server.feed(3, Lost(0, server.tasks[0].id))
    assert short(server.feed(4, Lost(1, server.tasks[1].id))) == [0, 1]  # nothing here: start again


def test_who_joins_waits_unless_nobody_trains():
    server = begun(1)
    assert server.feed(1, Joined(5, 10, 1)) == []
    assert short(arrive(server, 2, 0)) == [(0,), 0, 5]
    assert short(server.feed(3, Left(0))) == []
    assert short(server.feed(4, Left(5))) == []
    assert short(server.feed(5, Joined(6, 10, 1))) == [6]


def test_places_are_given_up_to_the_concurrency():
    server = begun(6, size=2, concurrency=3, tau_max=9)
    assert server.running == 3
    first, second, _ = sorted(server.tasks)
    assert arrive(server, 1, first) == []
    assert len(short(arrive(server, 2, second))) == 3  # one aggregation, two places
    assert server.running == 3


def test_only_the_urgent_need_clients_that_can_be_recalled():
    assert ob.port(2, 2, 1, urgent=True).requires == {Feature.SINGLE_UPDATES, Feature.RECALL}
    assert ob.port(2, 2, 1).requires == {Feature.SINGLE_UPDATES}


# ---- in a world: an epoch is 2 steps, a task 5 epochs; clients 0 and 1 take 1 s a step, client 2 takes 10 s

WIRED = ob.Network(latency=1.0, down=400.0, up=800.0)  # 800 bits: 1 + 2 s down, 1 + 1 s up


def happened(urgent: bool, network: ob.Network) -> list[tuple[Any, ...]]:
    algorithm = ob.port(2, 2, epochs=5, urgent=urgent)
    learner = ob.NoTraining(3, parameters=25, samples_per_client=20, batches=2)
    world = ob.World(seconds_per_step=[1.0, 1.0, 10.0], network=network)
    run = ob.simulate(algorithm, world, learner, until=ob.Until(versions=4))
    assert max(e["staleness"] for e in run.entries("arrived")) == 2
    return [
        (e["t"], e["name"], *((e["client"], e["steps"]) if e["name"] == "arrived" else ()))
        for e in run.journal
        if e["name"] in ("recall", "aggregate") or (e["name"] == "arrived" and e["client"] == 2)
    ]


@pytest.mark.parametrize(
    ("urgent", "network", "expected"),
    [
        (False, ob.Network(), [
            (10, "aggregate"), (20, "aggregate"),
            (100, "arrived", 2, 10), (100, "aggregate"), (110, "aggregate"),
        ]),
        (True, ob.Network(), [
            (10, "aggregate"), (20, "aggregate"), (30, "recall"),  # its epochs end at 20, 40, …
            (40, "arrived", 2, 4), (40, "aggregate"), (50, "aggregate"),
        ]),
        (False, WIRED, [
            (15, "aggregate"), (30, "aggregate"),  # 3 s down, 10 s of steps, 2 s up
            (105, "arrived", 2, 10), (105, "aggregate"), (120, "aggregate"),
        ]),
        (True, WIRED, [
            (15, "aggregate"), (30, "aggregate"), (45, "recall"),  # heard at 46; epochs end at 23, 43, 63
            (65, "arrived", 2, 6), (65, "aggregate"), (80, "aggregate"),
        ]),
    ],
)  # fmt: skip
def test_exact_times(urgent: bool, network: ob.Network, expected: list[Any]) -> None:
    assert happened(urgent, network) == expected


# ---- reductions ----


def test_all_at_once_is_fedavg():
    """K and the concurrency are all clients: rounds, and the sum of deltas from one model is its mean."""
    port, fedavg = play(ob.port(4, 1, 3)), play(ob.fedavg(3))
    assert port.journal == fedavg.journal
    assert torch.allclose(port.model.values, fedavg.model.values, atol=1e-5)


def test_by_freshness_alone_its_first_version_is_fedbuffs():
    """Equal samples; later versions differ, since FedBuff gives places out at each arrival."""
    options = {"speeds": [1.0, 1.1, 1.2, 4.0], "learner": Pull((2, 2, 2, 2)), "until": ob.Until(versions=1)}
    port = play(ob.port(3, 10**9, 3, beta=0.0), **options)
    fedbuff = play(ob.fedbuff(3, 3, staleness=ob.constant()), **options)
    assert torch.allclose(port.model.values, fedbuff.model.values, atol=1e-6)
