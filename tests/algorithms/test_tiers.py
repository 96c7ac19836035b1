"""FedAT's tiers: how they are found, their rounds, and who moves."""

from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.algorithms.fedat import Tiering
from offbeat.core.commands import Aggregate, Command, Train
from offbeat.core.events import Joined, Left, Lost, Timer
from offbeat.core.journal import event_of
from offbeat.core.server import Server
from tests.algorithms.pull import SPEEDS, play
from tests.algorithms.server_by_hand import arrive, begin


def begun(clients: int, **options: Any) -> Server:
    return begin(ob.fedat(1, **options), [1] * clients)


def short(commands: list[Command]) -> list[Any]:
    """Aggregations as (tier, clients, order), trainings as numbers of clients."""
    words = {
        Aggregate: lambda c: (c.note["tier"], c.clients, c.note["order"]),
        Train: lambda c: c.client,
    }
    return [words[type(c)](c) for c in commands if type(c) in words]


def ranges(server: Server) -> list[tuple[int, float, float, list[int]]]:
    return [(t.id, t.low, t.high, sorted(t.members)) for t in server.state.tiers]


def fast_and_slow(**options: Any) -> Server:
    """Tier 1: clients 0 (1 s) and 1 (1.5 s). Tier 2: client 2 (4 s)."""
    server = begun(3, **options)
    assert short(arrive(server, 1, 0)) == []
    assert short(arrive(server, 1.5, 1)) == []
    assert short(server.feed(2, Timer("tier 1"))) == [(1, (0, 1), [1]), 0, 1]
    assert short(arrive(server, 4, 2)) == [(2, (2,), [1, 2]), 2]
    assert ranges(server) == [(1, 1, 2, [0, 1]), (2, 4, 8, [2])]
    return server


def test_a_tier_is_closed_when_whom_it_covers_must_have_answered():
    server = fast_and_slow()
    assert short(arrive(server, 5, 0)) == []
    assert short(arrive(server, 5.5, 1)) == [(1, (0, 1), [1, 2]), 0, 1]
    assert short(arrive(server, 6, 2)) == [(2, (2,), [1, 2]), 2]
    assert server.timers == {}


def test_a_tier_is_closed_when_everybody_has_answered():
    server = begun(2)
    assert short(arrive(server, 3, 1)) == []
    assert server.timers == {"tier 1": 6}
    assert short(arrive(server, 5, 0)) == [(1, (1, 0), [1]), 0, 1]
    assert server.timers == {}


@pytest.mark.parametrize("gone", [False, True])
def test_nobody_waits_for_a_first_task_that_came_to_nothing(gone: bool):
    server = begun(2)
    arrive(server, 3, 1)
    event = Left(0) if gone else Lost(0, server.tasks[0].id)
    assert short(server.feed(4, event)) == [*([] if gone else [0]), (1, (1,), [1]), 1]


def test_exactly_twice_as_slow_is_the_next_tier():
    server = begun(2)
    arrive(server, 1, 0)
    assert short(arrive(server, 2, 1)) == [(1, (0,), [1]), (2, (1,), [1, 2]), 0, 1]
    assert ranges(server) == [(1, 1, 2, [0]), (2, 2, 4, [1])]


def test_a_round_goes_on_without_the_lost_and_the_gone():
    server = fast_and_slow()
    arrive(server, 5, 0)
    assert short(server.feed(6, Lost(1, server.tasks[1].id))) == [(1, (0,), [1, 2]), 0, 1]
    server.feed(7, Left(2))  # tier 2 has nobody left: it does not count
    arrive(server, 8, 0)
    assert short(server.feed(9, Left(1))) == [(1, (0,), [1]), 0]
    assert short(server.feed(10, Joined(2, 10, 1))) == [2]  # it knows its tier
    assert short(arrive(server, 11, 2)) == [(2, (2,), [1, 2]), 2]


def test_who_joins_is_measured_and_takes_part_from_the_next_round_on():
    server = fast_and_slow()
    assert short(server.feed(5, Joined(9, 10, 1))) == [9]
    assert short(arrive(server, 6.5, 9)) == []  # 1.5 s: tier 1, whose round goes on
    arrive(server, 7, 0)
    assert short(arrive(server, 7.5, 1)) == [(1, (9, 0, 1), [1, 2]), 0, 1, 9]


def test_a_tier_between_the_tiers_and_one_below():
    server = fast_and_slow()
    for client in (7, 8):
        server.feed(5, Joined(client, 10, 1))
    assert short(arrive(server, 8, 7)) == [(3, (7,), [1, 3, 2]), 7]  # 3 s: [2, 4) is all that is free
    assert short(arrive(server, 5 + 3.5, 8)) == []  # its round is at hand
    assert short(server.feed(9, Joined(6, 10, 1))) == [6]
    assert short(arrive(server, 9.75, 6)) == [(4, (6,), [4, 1, 3, 2]), 6]  # 0.75 s: ends where tier 1 begins
    assert ranges(server) == [(4, 0.5, 1, [6]), (1, 1, 2, [0, 1]), (3, 2, 4, [7, 8]), (2, 4, 8, [2])]


def test_clients_that_change_move_after_their_round():
    server = fast_and_slow(retier=True)
    arrive(server, 5, 0)  # (1 + 3)/2 = 2 s: not in [1, 2) any more
    assert short(arrive(server, 5, 1)) == [(1, (0, 1), [1, 2]), 0, 1]
    # client 1: (1.5 + 3)/2 = 2.25 s; both are in the new tier [2, 4), which has no model yet
    assert ranges(server) == [(1, 1, 2, []), (3, 2, 4, [0, 1]), (2, 4, 8, [2])]
    arrive(server, 7, 0)
    assert short(arrive(server, 8, 1)) == [(3, (0, 1), [3, 2]), 0, 1]


def test_one_slow_task_does_not_move_a_client_whose_mean_stays_in_its_tier():
    server = fast_and_slow(retier=True)
    arrive(server, 4.2, 1)  # (1.5 + 2.2)/2 = 1.85 s
    assert short(arrive(server, 4.5, 0)) == [(1, (1, 0), [1, 2]), 0, 1]  # (1 + 2.5)/2 = 1.75 s
    assert ranges(server) == [(1, 1, 2, [0, 1]), (2, 4, 8, [2])]


def test_without_retier_nobody_moves():
    server = fast_and_slow()
    arrive(server, 50, 0)
    arrive(server, 51, 1)
    assert ranges(server) == [(1, 1, 2, [0, 1]), (2, 4, 8, [2])]


def test_so_many_of_a_tier_at_random():
    server = begun(6, clients_per_tier=2)
    seen: set[int] = set()
    for client in range(6):
        arrive(server, 1, client)
    for t in range(2, 60):
        assert len(server.tasks) == 2
        seen |= set(server.tasks)
        for client in sorted(server.tasks):
            arrive(server, t, client)
        assert server.version == t
    assert seen == set(range(6))


def test_exact_times_nobody_waits_for_the_slowest():
    world = ob.World(seconds_per_step=[1.0, 1.5, 4.0, 5.0, 50.0])
    run = ob.simulate(ob.fedat(1), world, until=ob.Until(seconds=50))
    closed = [(e["t"], e["tier"], e["clients"]) for e in run.entries("aggregate")]
    assert [c for c in closed if c[1] == 1][:3] == [(2, 1, [0, 1]), (3.5, 1, [0, 1]), (5, 1, [0, 1])]
    assert [c for c in closed if c[1] == 2][:3] == [(8, 2, [2, 3]), (13, 2, [2, 3]), (18, 2, [2, 3])]
    assert [c for c in closed if c[1] == 3] == [(50, 3, [4])]
    assert [e["order"] for e in run.entries("aggregate") if e["tier"] == 3] == [[1, 2, 3]]


HARD = ob.World(
    ob.laws.Exponential(1.0, minimum=0.1),
    clients=12,
    jitter=0.3,
    change=0.2,
    availability=ob.Availability(dropout=0.2, join=[3.0 * c for c in range(12)], period=60, present=0.7),
)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("retier", [False, True])
def test_every_client_has_one_tier_and_every_tier_goes_on(retier: bool, seed: int) -> None:
    algorithm = ob.fedat(2, ratio=1.5, retier=retier, clients_per_tier=3)
    run = ob.simulate(algorithm, HARD, seed=seed, until=ob.Until(tasks=600))
    server = Server(algorithm.schedule, seed)
    for row in run.rows("event"):
        server.feed(row.t, event_of(row))
        check(server, server.state)
    assert len(server.state.tiers) > 2


def check(server: Server, state: Tiering) -> None:
    edges = [edge for tier in state.tiers for edge in (tier.low, tier.high)]
    assert edges == sorted(edges)
    assert all(tier.low < tier.high <= 1.5 * tier.low * (1 + 1e-9) for tier in state.tiers)
    members = [client for tier in state.tiers for client in tier.members]
    assert sorted(members) == sorted(client for client in server.fleet if client in state.tier_of)
    for tier in state.tiers:
        assert all(state.tier_of[client] == tier.id for client in tier.members)
        assert tier.expected <= tier.members & set(server.tasks)
        assert tier.expected or tier.timer in server.timers or not tier.members
        assert tier.forming == (tier.timer in server.timers)
    if server.begun:
        assert all(client in server.tasks for client in server.fleet if client not in state.tier_of)


# ---- reductions ----


@pytest.mark.parametrize(("speeds", "ratio"), [([1.0] * 4, 2.0), (SPEEDS, 1e9)])
def test_one_tier_without_a_proximal_term_is_fedavg(speeds: list[float], ratio: float) -> None:
    fedat, fedavg = play(ob.fedat(3, mu=0.0, ratio=ratio), speeds), play(ob.fedavg(3), speeds)
    assert torch.allclose(fedat.model.values, fedavg.model.values, atol=1e-5)
    both = [[(e["t"], e["clients"]) for e in run.entries("aggregate")] for run in (fedat, fedavg)]
    assert both[0] == both[1]


def test_the_proximal_term_is_there():
    fedat, fedavg = play(ob.fedat(3), [1.0] * 4), play(ob.fedavg(3), [1.0] * 4)
    assert not torch.allclose(fedat.model.values, fedavg.model.values, atol=1e-3)
