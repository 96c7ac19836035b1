"""FADAS and the time-optimal methods: what they are at their ends; who is stopped, dropped, waited for."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.algorithms.aggregators import SumOfDeltas
from offbeat.algorithms.fadas import AMSGrad, DelayAdaptive
from offbeat.algorithms.rennala import MeanByClient
from offbeat.core.commands import Aggregate, Command, Discard, Drop, Train
from offbeat.core.events import Joined, Left, Lost
from offbeat.core.server import Server
from tests.algorithms.pull import SPEEDS, Pull, play, same_model
from tests.algorithms.server_by_hand import arrive, begin

PLAIN = SumOfDeltas(weights="equal")


def short(commands: list[Command]) -> list[Any]:
    """Aggregations as tuples of clients, and ("train" | "stop" | "drop", client)."""
    told = {
        Aggregate: lambda c: c.clients, Train: lambda c: ("train", c.client),
        Discard: lambda c: ("stop", c.client), Drop: lambda c: ("drop", c.client),
    }  # fmt: skip
    return [told[type(c)](c) for c in commands]


# ---- what they are at their ends ----


def test_fadas_that_does_not_follow_the_delay_is_fedbuff_with_amsgrad_bit_for_bit():
    plain = replace(ob.fedbuff(2, 3, staleness=ob.constant()), server_steps=(AMSGrad(0.1),))
    plain = replace(plain, buffers="mean")
    one, other = play(ob.fadas(2, 3, server_lr=0.1, threshold=None)), play(plain)
    assert one.journal == other.journal
    assert same_model(one, other)
    assert same_model(play(ob.fadas(2, 3, server_lr=0.1, threshold=10**6)), other)
    assert not same_model(play(ob.fadas(2, 3, server_lr=0.1, threshold=1)), other)


def test_fadas_at_the_largest_staleness_divides_the_rate():
    assert [DelayAdaptive(2).rate(0.5, tau) for tau in (0, 2, 3, 10)] == [0.5, 0.5, 0.5 / 3, 0.05]
    assert [DelayAdaptive(2, "minimum").rate(0.5, tau) for tau in (2, 3, 10)] == [0.5, 1 / 3, 0.1]
    assert DelayAdaptive(2, "minimum").rate(0.01, 10) == 0.01


def test_a_rate_that_follows_the_delay_is_fedasyncs_hinge():
    weight = ob.delay_adaptive(threshold=4).aggregator.staleness
    assert [weight(tau) for tau in (0, 3, 4)] == [1.0, 1.0, 1.0]
    assert [weight(tau) for tau in (5, 8, 100)] == pytest.approx([4 / 5, 4 / 8, 4 / 100])


def test_delay_adaptive_without_a_delay_beyond_its_threshold_is_fedbuff_of_one_bit_for_bit():
    one, other = play(ob.delay_adaptive(10**6, 3)), play(ob.fedbuff(1, 3, staleness=ob.constant()))
    assert one.journal == other.journal
    assert same_model(one, other)
    assert not same_model(play(ob.delay_adaptive(1, 3)), other)


@pytest.mark.parametrize("stop", [True, False])
def test_ringmaster_of_any_delay_is_fedbuff_of_one_bit_for_bit(stop):
    one = play(ob.ringmaster(10**6, 3, stop=stop, server_lr=0.7))
    other = play(ob.fedbuff(1, 3, server_lr=0.7, staleness=ob.constant()))
    assert one.journal == other.journal
    assert same_model(one, other)


@pytest.mark.parametrize("steps", [1, 3])
def test_ringmaster_of_one_is_rennala_of_one(steps):
    """The first to come makes the version, and all start again."""
    one, other = play(ob.ringmaster(1, steps)), play(ob.rennala(1, steps))
    assert [e["clients"] for e in one.entries("aggregate")] == [
        e["clients"] for e in other.entries("aggregate")
    ]
    assert same_model(one, other)
    assert {e["client"] for e in one.entries("arrived")} == {0}, "the fastest is always first"


@pytest.mark.parametrize("make", [ob.rennala, lambda size, steps: ob.malenia(size - 1, steps)])
def test_at_equal_speeds_one_update_of_each_is_fedavg_of_equal_weights_bit_for_bit(make):
    equal = [1.0] * 4
    fedavg = replace(ob.fedavg(3), aggregator=PLAIN, buffers="mean")
    one, other = play(make(4, 3), equal), play(fedavg, equal)
    assert same_model(one, other)
    assert [e["t"] for e in one.entries("aggregate")] == [e["t"] for e in other.entries("aggregate")]


def test_the_mean_by_client_of_one_update_each_is_the_plain_mean_bit_for_bit():
    schedule = ob.fedavg(3).schedule
    made = [
        play(replace(ob.fedavg(3), schedule=schedule, aggregator=aggregator, buffers="mean"))
        for aggregator in (MeanByClient(0.3), SumOfDeltas(weights="equal", scale=0.3))
    ]
    assert same_model(*made)


@pytest.mark.parametrize(
    "algorithm", [ob.ringleader(3, server_lr=0.5), ob.malenia(1, 3, server_lr=0.5)], ids=lambda a: a.name
)
def test_of_one_client_each_update_makes_a_version(algorithm):
    learner = Pull(sizes=(3,))
    plain = ob.fedbuff(1, 3, server_lr=0.5, staleness=ob.constant())
    one, other = (play(a, [1.0], learner=learner) for a in (algorithm, plain))
    assert torch.allclose(one.model.values, other.model.values)


def test_ringleader_at_equal_speeds_has_the_second_phase_right_after_the_first():
    run = play(ob.ringleader(3), [1.0] * 4)
    times = [e["t"] for e in run.entries("aggregate")]
    # The table is full at 3 s; the three others' versions are made as their next updates come.
    assert times[:4] == [3.0, 6.0, 6.0, 6.0]


# ---- sums ----

SUMS = ob.Privacy(clip=1.0, least=3, secure=ob.Secure())


@pytest.mark.parametrize(
    "algorithm",
    [ob.fadas(3, 2), ob.delay_adaptive(2, 2), ob.ringmaster(2, 2), ob.rennala(4, 2)],
    ids=lambda a: a.name,
)
def test_sums_are_enough_of_these(algorithm):
    run = play(algorithm, privacy=SUMS, until=ob.Until(versions=8))
    assert run.summary.versions == 8
    assert all(len(set(e["clients"])) >= 3 for e in run.entries("aggregate"))


@pytest.mark.parametrize("algorithm", [ob.malenia(4, 2), ob.ringleader(2)], ids=lambda a: a.name)
def test_these_need_each_update_by_itself(algorithm):
    with pytest.raises(ob.UsageError, match=f"{algorithm.name} needs each update by itself") as caught:
        play(algorithm, privacy=SUMS)
    assert "\n" not in str(caught.value)


# ---- Ringmaster ----


def test_ringmaster_restarts_the_same_clients_oldest_first():
    server = begin(ob.ringmaster(2, 1), [1] * 4)
    assert short(arrive(server, 1, 3)) == [(3,), ("train", 3)]
    assert short(arrive(server, 2, 1)) == [
        (1,), ("stop", 0), ("train", 0), ("stop", 2), ("train", 2), ("train", 1),
    ]  # fmt: skip
    assert {task.client: task.base for task in server.tasks.values()} == {0: 2, 1: 2, 2: 2, 3: 1}


def test_with_stops_only_a_task_that_is_brought_back_comes_too_late():
    server = begin(ob.ringmaster(1, 1), [1] * 2)
    server.feed(1, Left(0))
    arrive(server, 2, 1)
    server.feed(3, Joined(0, 10, 1, holds=0))
    assert short(arrive(server, 4, 0)) == [("drop", 0), ("train", 0)]


def test_without_a_threshold_it_is_the_number_that_trains():
    server = begin(ob.ringmaster(None, 1, concurrency=2, stop=False), [1] * 5)
    _, second = sorted(server.tasks)
    for t in (1, 2):
        arrive(server, t, next(client for client in server.tasks if client != second))
    assert short(arrive(server, 3, second))[0] == ("drop", second)


# ---- Rennala and Malenia ----


def test_rennala_drops_what_starts_from_an_older_version():
    server = begin(ob.rennala(2, 1, stop=False), [1] * 3)
    assert short(arrive(server, 1, 0)) == [("train", 0)]
    assert short(arrive(server, 2, 0)) == [(0, 0), ("train", 0)]
    assert short(arrive(server, 3, 1)) == [("drop", 1), ("train", 1)]
    assert short(arrive(server, 4, 0)) == [("train", 0)]


def test_malenia_does_not_wait_for_a_client_that_leaves_and_counts_what_it_sent():
    server = begin(ob.malenia(1, 1), [1] * 3)
    arrive(server, 1, 0)
    arrive(server, 2, 1)
    assert server.feed(3, Left(1)) == []
    assert short(server.feed(4, Left(2)))[0] == (0, 1)
    # A client that joins is waited for.
    server.feed(5, Joined(2, 10, 1))
    assert short(arrive(server, 6, 0)) == [("train", 0)]
    assert short(arrive(server, 7, 2))[0] == (0, 2)


def test_malenia_weighs_clients_alike_and_rennala_updates():
    by_client = play(ob.malenia(4, 1), until=ob.Until(versions=1))
    assert sorted(by_client.entries("aggregate")[0]["clients"]) != [0, 1, 2, 3]
    by_update = play(replace(ob.malenia(4, 1), aggregator=PLAIN), until=ob.Until(versions=1))
    assert by_client.journal == by_update.journal
    assert not same_model(by_client, by_update)


# ---- Ringleader ----


def led(clients: int = 3, **options: Any) -> Server:
    return begin(ob.ringleader(1, **options), [1] * clients)


def in_second_phase() -> Server:
    """Of clients 0, 1, 2 the last has ended the first phase; client 0 has sent two updates."""
    server = led()
    for t, client in enumerate([0, 0, 1], 1):
        assert short(arrive(server, t, client)) == [("train", client)]
    assert short(arrive(server, 4, 2)) == [(0, 0, 1, 2), ("train", 2)]
    return server


def test_each_other_clients_next_update_makes_a_version_and_the_others_wait_for_the_next_round():
    server = in_second_phase()
    assert short(arrive(server, 5, 2)) == [("train", 2)]
    assert short(arrive(server, 6, 1)) == [(1,), ("train", 1)]
    assert short(arrive(server, 7, 1)) == [("train", 1)]
    assert short(arrive(server, 8, 0)) == [(0,), ("train", 0)]
    # The next round has the updates of clients 2 and 1 already.
    assert short(arrive(server, 9, 0)) == [(2, 1, 0), ("train", 0)]
    assert server.version == 4


def test_a_lost_task_is_trained_again_and_its_client_still_needed():
    server = in_second_phase()
    assert short(server.feed(5, Lost(0, server.tasks[0].id))) == [("train", 0)]
    arrive(server, 6, 1)
    assert short(arrive(server, 7, 0)) == [(0,), ("train", 0)]


def test_a_client_that_leaves_is_not_waited_for_in_either_phase():
    server = in_second_phase()
    server.feed(5, Left(0))
    assert short(arrive(server, 6, 1)) == [(1,), ("train", 1)]
    assert server.state.need is None, "the round is over"
    server = led()
    arrive(server, 1, 0)
    arrive(server, 2, 1)
    # Nobody's update has come: clients 0 and 1 still have versions to make.
    assert short(server.feed(3, Left(2))) == [(0, 1)]
    assert server.state.need == {0, 1}


def test_a_client_that_joins_in_the_second_phase_is_in_the_next_round():
    server = in_second_phase()
    server.feed(5, Joined(3, 10, 1))
    assert short(arrive(server, 6, 3)) == [("train", 3)]
    arrive(server, 7, 0)
    arrive(server, 8, 1)
    assert list(server.state.table) == [3]


def test_a_full_table_of_a_round_waits_for_the_next_update():
    server = in_second_phase()
    arrive(server, 5, 2)
    arrive(server, 6, 1)
    arrive(server, 7, 1)
    server.feed(8, Left(0))
    assert server.state.need is None
    assert sorted(server.state.table) == [1, 2]
    assert short(arrive(server, 9, 2)) == [(2, 2, 1), ("train", 2)]


def test_every_client_counts_alike_in_every_version_of_ringleader():
    """The fixed point of clients of different speeds is that of FedAvg with equal weights."""
    fedavg = replace(ob.fedavg(1), aggregator=PLAIN, buffers="mean")
    many = ob.Until(versions=400)
    expected = play(fedavg, until=many).model.values
    assert torch.allclose(play(ob.ringleader(1, server_lr=0.5), until=many).model.values, expected, atol=1e-3)
    other = play(ob.fedbuff(1, 1, server_lr=0.5, staleness=ob.constant()), SPEEDS, until=many).model.values
    assert not torch.allclose(other, expected, atol=0.05), "who is fast counts more"


def test_a_table_takes_two_updates_of_a_client_in_one_version():
    """No schedule of ours brings them, but one that is composed with the table does."""
    algorithm = ob.compose(ob.fedbuff(3, steps=1), aggregator=ob.ringleader(1))
    run = play(algorithm, [0.1, 9.0, 9.0, 9.0], until=ob.Until(tasks=12))
    assert run.summary.versions == 4
    assert torch.isfinite(run.model.values).all()
