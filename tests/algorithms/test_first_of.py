"""The first k of n: how many close a round, who is asked, and that all of n are FedAvg."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import offbeat as ob
from offbeat.algorithms.first_of import FirstRounds
from offbeat.core.commands import Aggregate, CancelTimer, Command, Discard, Drop, SetTimer, Train
from offbeat.core.events import Arrived, Joined, Left, Lost, Timer
from offbeat.core.programme import Programme
from offbeat.core.server import Server
from offbeat.testing.strategies import worlds
from tests.algorithms.pull import SPEEDS, Pull, play, same_model
from tests.algorithms.server_by_hand import arrive, begin
from tests.sampling import examples


def begun(clients: int, **options: Any) -> Server:
    return begin(ob.first_of(1, **options), [1] * clients)


def short(commands: list[Command]) -> list[Any]:
    """Aggregations as tuples of clients, trainings as numbers of clients, drops as negative ones."""
    told = {Aggregate: lambda c: c.clients, Train: lambda c: c.client, Drop: lambda c: -c.client}
    return [told[type(c)](c) for c in commands if type(c) in told]


# ---- how many close a round ----


def closes(share: float, clients: int) -> int:
    return FirstRounds(Programme(1), share=share).closes(clients)


@pytest.mark.parametrize(
    ("share", "clients", "k"),
    [(0.8, 10, 8), (0.7, 10, 7), (0.07, 100, 7), (0.29, 100, 29), (0.1 + 0.2, 10, 3), (1, 7, 7), (0.8, 8, 7),
     (0.8, 6, 5), (0.5, 3, 2), (1e-12, 3, 1), (0.8, 1, 1), (0.8, 0, 0)],
)  # fmt: skip
def test_k_is_the_share_rounded_up(share, clients, k):
    assert closes(share, clients) == k


@given(st.integers(1, 10_000), st.data())
def test_a_share_that_is_so_many_clients_is_closed_by_so_many(clients, data):
    k = data.draw(st.integers(1, clients))
    assert closes(k / clients, clients) == k


def test_with_k_the_share_does_not_count():
    schedule = ob.first_of(share=0.1, k=3).schedule
    assert [schedule.closes(n) for n in (0, 2, 3, 10)] == [0, 2, 3, 3]


@pytest.mark.parametrize(
    ("options", "largest"),
    [({}, None), ({"k": 3}, 3), ({"clients_per_round": 10}, 8), ({"k": 3, "clients_per_round": 5}, 3),
     ({"k": 3, "late": "next"}, None)],
)  # fmt: skip
def test_most_updates_of_a_version(options, largest):
    assert ob.first_of(**options).schedule.largest_aggregation == largest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 9}, "first_of: k = 9 is not allowed with 8 clients: choose at most 8"),
        ({"clients_per_round": 9}, "first_of: 9 clients cannot train at the same time where there are 8: "
                                   "choose at most 8, or have more clients"),
        ({"share": 0.5, "window": 1, "least": 5}, "first_of: least = 5 is not allowed with 8 clients: "
                                                  "4 updates close a round; choose at most 4"),
    ],
)  # fmt: skip
def test_more_than_the_clients_of_the_run_is_refused_at_its_start(options, message):
    with pytest.raises(ob.UsageError) as caught:
        ob.simulate(ob.first_of(1, **options), world=ob.World(clients=8))
    assert str(caught.value) == message


# ---- who is asked, and what closes a round ----


def test_the_kth_update_closes_a_round_and_busy_clients_are_not_asked():
    server = begun(5, share=0.6)
    assert arrive(server, 1, 4) == []
    assert arrive(server, 2, 0) == []
    assert short(arrive(server, 3, 2)) == [(4, 0, 2), 0, 2, 4]
    # Two are late: three of five close the second round too, which asked three.
    assert arrive(server, 4, 0) == []
    assert short(arrive(server, 5, 1)) == [-1]
    assert arrive(server, 6, 2) == []
    assert short(arrive(server, 7, 4)) == [(0, 2, 4), 0, 1, 2, 4]


def test_a_round_that_can_ask_fewer_than_k_waits_for_all_that_it_asked():
    server = begun(5, share=0.8, clients_per_round=3)
    first = sorted(server.tasks)
    for second, client in enumerate(first, 1):
        closed = short(arrive(server, second, client))
    assert closed[0] == tuple(first), "three of three: 2.4 is rounded up"
    server = begun(4, share=0.5)
    arrive(server, 1, 0)
    arrive(server, 2, 1)
    # Clients 2 and 3 are late. Client 1 is lost: the round that asked two closes with the one that is there.
    assert arrive(server, 3, 0) == []
    assert short(server.feed(4, Lost(1, server.tasks[1].id)))[0] == (0,)


def test_a_sample_is_drawn_among_the_free_clients():
    server = begun(6, clients_per_round=3, k=1)
    first = sorted(server.tasks)
    assert len(first) == 3
    closed = short(arrive(server, 1, first[0]))
    assert closed[0] == (first[0],)
    assert len(closed[1:]) == 3
    assert not set(closed[1:]) & set(first[1:])
    assert server.running == 5


def test_a_round_that_too_few_remain_of_closes_with_what_there_is():
    server = begun(4, k=3)
    arrive(server, 1, 0)
    server.feed(2, Lost(1, server.tasks[1].id))
    assert server.feed(3, Left(2)) == []
    assert short(arrive(server, 4, 3)) == [(0, 3), 0, 1, 3]
    server = begun(2, k=2)
    server.feed(1, Left(0))
    assert short(server.feed(2, Lost(1, 1))) == [1]
    assert server.version == 0


@pytest.mark.parametrize("late", ["drop", "next"])
def test_a_late_client_that_nobody_else_is_left_of_begins_the_next_round(late):
    server = begun(2, k=1, late=late)
    assert short(arrive(server, 1, 0)) == [(0,), 0]
    assert server.feed(2, Left(0)) == []
    assert short(arrive(server, 3, 1)) == [-1 if late == "drop" else (1,), 1]


def test_an_update_of_the_round_that_its_client_brings_back_counts():
    server = begun(3, k=2)
    server.feed(1, Left(0))
    assert server.feed(2, Joined(0, 10, 1, holds=0)) == []
    assert arrive(server, 3, 0) == []
    assert short(arrive(server, 4, 1)) == [(0, 1), 0, 1]


def test_late_tasks_are_stopped_and_all_clients_are_asked_again():
    server = begun(4, k=2, late="stop")
    assert arrive(server, 1, 0) == []
    closed = arrive(server, 2, 2)
    stopped = [(c.client, c.task, c.reason) for c in closed if isinstance(c, Discard)]
    assert stopped == [(1, 1, "its round has closed"), (3, 3, "its round has closed")]
    assert short(closed) == [(0, 2), 0, 1, 2, 3]
    assert server.running == 4
    # Only a client that brings its task back can be late.
    server.feed(3, Left(0))
    arrive(server, 4, 1)
    arrive(server, 5, 2)
    server.feed(6, Joined(0, 10, 1, holds=4))
    assert short(arrive(server, 7, 0)) == [0]
    assert server.counts == {"arrived": 5, "aggregated": 4, "dropped": 1, "discarded": 3, "lost": 0}


def test_a_window_is_set_by_the_first_update_of_the_round_and_ends_with_it():
    server = begun(3, k=2, window=5, late="next")
    assert arrive(server, 1, 0) == [SetTimer("window", 6.0)]
    closed = arrive(server, 2, 1)
    assert closed[0] == CancelTimer("window")
    assert short(closed) == [(0, 1), 0, 1]
    # A late update does not set it.
    assert arrive(server, 3, 2) == []
    assert server.timers == {}
    arrive(server, 4, 0)
    assert short(server.feed(9, Timer("window"))) == [(2, 0), 0, 2]


def test_a_round_with_fewer_than_the_least_number_goes_on_after_its_window():
    server = begun(4, k=4, window=5, least=3)
    arrive(server, 1, 0)
    arrive(server, 2, 1)
    assert server.feed(6, Timer("window")) == []
    assert short(arrive(server, 7, 3)) == [(0, 1, 3), 0, 1, 3]
    # The next round has a window of its own.
    assert arrive(server, 8, 0) == [SetTimer("window", 13.0)]


# ---- all of n are FedAvg ----


@examples(40)
@given(worlds(), st.data(), st.integers(0, 1000), st.sampled_from(["drop", "next", "stop"]))
def test_all_of_n_are_fedavg_row_by_row(world, data, seed, late):
    sample = data.draw(st.none() | st.integers(1, world.clients))
    until = ob.Until(seconds=400, tasks=80)
    one, other = (
        list(ob.simulate(algorithm, world, seed=seed, until=until).rows())
        for algorithm in (
            ob.first_of(3, share=1, clients_per_round=sample, late=late),
            ob.fedavg(3, clients_per_round=sample),
        )
    )
    assert one == other


@pytest.mark.parametrize("options", [{}, {"clients_per_round": 2}])
@pytest.mark.parametrize("availability", [ob.Availability(), ob.Availability(0.1, period=9.0, present=0.7)])
def test_all_of_n_are_fedavg_bit_for_bit(options, availability):
    world = ob.World(SPEEDS, availability=availability)
    one, other = (
        ob.simulate(algorithm, world, Pull(), until=ob.Until(versions=25))
        for algorithm in (ob.first_of(3, share=1, **options), ob.fedavg(3, **options))
    )
    assert one.journal == other.journal
    assert same_model(one, other)
    assert bool(one.entries("left")) == (availability.period is not None)


def test_all_of_n_are_fedavg_with_updates_brought_back_after_their_round():
    servers = [begin(a, [1, 1]) for a in (ob.first_of(1, share=1, late="next"), ob.fedavg(1))]
    events = [
        (1, Left(0)), (2, Arrived(1, 1, 1)), (3, Joined(0, 10, 1, holds=0)), (4, Arrived(0, 0, 1)),
        (5, Arrived(1, 2, 1)),
    ]  # fmt: skip
    for t, event in events:
        one, other = (server.feed(t, event) for server in servers)
        assert one == other


def test_fewer_than_n_are_not_fedavg():
    drop, later, all_of_them = (
        play(a) for a in (ob.first_of(3, k=2), ob.first_of(3, k=2, late="next"), ob.fedavg(3))
    )
    assert drop.entries("drop")
    assert not later.entries("drop")
    assert not same_model(drop, later)
    assert drop.entries("aggregate")[-1]["t"] < all_of_them.entries("aggregate")[-1]["t"]
