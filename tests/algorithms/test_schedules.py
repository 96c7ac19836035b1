"""Rounds and buffers, event by event."""

from typing import Any

import pytest

import offbeat as ob
from offbeat.core.commands import Aggregate, Command, Train
from offbeat.core.events import Joined, Left, Lost
from offbeat.core.server import Server
from tests.algorithms.server_by_hand import arrive, begin


def begun(algorithm: ob.Algorithm, clients: int) -> Server:
    return begin(algorithm, range(1, clients + 1))


def short(commands: list[Command]) -> list[Any]:
    """Aggregations as tuples of clients, trainings as numbers of clients."""
    return [
        c.clients if isinstance(c, Aggregate) else c.client
        for c in commands
        if isinstance(c, Aggregate | Train)
    ]


# ---- rounds ----


def test_epochs_are_each_clients_own_steps():
    server = begun(ob.fedavg(epochs=2), 3)
    assert {c: t.steps for c, t in server.tasks.items()} == {0: 2, 1: 4, 2: 6}
    server = begun(ob.fedavg(steps=5), 3)
    assert {t.steps for t in server.tasks.values()} == {5}


def test_a_round_waits_for_everybody():
    server = begun(ob.fedavg(1), 3)
    assert arrive(server, 1, 2) == []
    assert arrive(server, 2, 0) == []
    assert short(arrive(server, 3, 1)) == [(2, 0, 1), 0, 1, 2]


def test_a_round_goes_on_without_the_lost_and_the_gone():
    server = begun(ob.fedavg(1), 3)
    assert arrive(server, 1, 0) == []
    assert server.feed(2, Lost(1, server.tasks[1].id)) == []  # idle until the next round
    assert short(server.feed(3, Left(2))) == [(0,), 0, 1]


def test_a_round_nobody_survives_changes_nothing_and_the_next_one_starts():
    server = begun(ob.fedavg(1), 2)
    server.feed(1, Lost(0, 0))
    assert short(server.feed(2, Lost(1, 1))) == [0, 1]
    assert server.version == 0


def test_a_client_whose_update_is_here_may_leave():
    server = begun(ob.fedavg(1), 2)
    arrive(server, 1, 0)
    assert server.feed(2, Left(0)) == []
    assert short(arrive(server, 3, 1)) == [(0, 1), 1]


def test_who_joins_waits_for_the_next_round():
    server = begun(ob.fedavg(1), 1)
    assert server.feed(1, Joined(7, 1, 1)) == []
    assert short(arrive(server, 2, 0)) == [(0,), 0, 7]


def test_the_first_to_come_starts_the_first_round():
    server = begun(ob.fedavg(1), 0)
    assert short(server.feed(1, Joined(3, 1, 1))) == [3]
    assert short(server.feed(2, Left(3))) == []
    assert short(server.feed(3, Joined(4, 1, 1))) == [4]


def test_a_round_of_so_many():
    server = begun(ob.fedavg(1, clients_per_round=2), 5)
    seen = set()
    for t in range(1, 40):
        round_ = sorted(server.tasks)
        assert len(round_) == 2
        seen |= set(round_)
        arrive(server, t, round_[0])
        arrive(server, t, round_[1])
        assert server.version == t
    assert seen == set(range(5))


def test_clients_that_all_come_back_with_their_updates_end_a_round():
    """Nobody is idle when they come back, so no round starts: their arrivals must start the next one."""
    server = begun(ob.fedavg(1), 1)
    server.feed(1, Left(0))
    assert server.feed(2, Joined(0, 10, 1, holds=0)) == []
    assert short(arrive(server, 3, 0)) == [(0,), 0]


def test_an_update_brought_back_counts_in_the_round_at_hand():
    server = begun(ob.fedavg(1), 2)
    assert server.feed(1, Left(0)) == []
    assert server.feed(2, Joined(0, 10, 1, holds=0)) == []
    assert arrive(server, 3, 0) == []
    assert short(arrive(server, 4, 1)) == [(0, 1), 0, 1]


# ---- buffers ----


def test_a_buffer_is_aggregated_when_it_is_full_and_places_are_given_at_once():
    server = begun(ob.fedbuff(2, 1), 3)
    assert short(arrive(server, 1, 1)) == [1]
    assert short(arrive(server, 2, 1)) == [(1, 1), 1]  # the same client may fill it
    assert [t.base for _, t in sorted(server.tasks.items())] == [0, 1, 0]


@pytest.mark.parametrize("event", ["arrived", "lost", "left"])
def test_a_freed_place_goes_to_an_idle_client(event):
    server = begun(ob.fedbuff(9, 1, concurrency=2), 4)
    client = min(server.tasks)
    task = server.tasks[client].id
    commands = {
        "arrived": lambda: arrive(server, 1, client),
        "lost": lambda: server.feed(1, Lost(client, task)),
        "left": lambda: server.feed(1, Left(client)),
    }[event]()
    assert len(short(commands)) == 1
    assert server.running == 2


def test_who_joins_gets_a_place_if_there_is_one():
    server = begun(ob.fedasync(1, concurrency=2), 1)
    assert short(server.feed(1, Joined(5, 1, 1))) == [5]
    assert short(server.feed(1, Joined(6, 1, 1))) == []
    assert short(server.feed(2, Left(0))) == [6]


def test_the_draw_of_the_next_client_is_uniform():
    """Four idle clients and the one that came: each a fifth (5 deviations: once in a million runs)."""
    server, draws = begun(ob.fedasync(1, concurrency=1), 5), 3000
    counts = dict.fromkeys(range(5), 0)
    for t in range(draws):
        (client,) = server.tasks
        arrive(server, t, client)
        counts[next(iter(server.tasks))] += 1
    assert all(abs(n - draws / 5) < 5 * (draws * 0.2 * 0.8) ** 0.5 for n in counts.values())
