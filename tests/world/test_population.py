"""What a world draws for its clients: times of tasks, transfers, losses, presence.

Statistical tests allow 5 standard errors (see test_laws.py).
"""

from itertools import islice, pairwise
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.world.population import Population

laws = ob.laws


def people(speed: Any = 1.0, seed: int = 0, **options: Any) -> Population:
    return Population(ob.World(speed, **options), seed)


def times(population: Population, client: int, count: int, steps: int = 1, bits: int = 0) -> list[float]:
    return [population.task(client, bits).seconds(steps) for _ in range(count)]


# ---- speeds ----


def test_a_number_is_everybodys_speed():
    population = people(0.5)
    assert times(population, 0, 3, steps=10) == [5.0] * 3
    assert times(population, 9, 1, steps=4) == [2.0]
    assert times(people(2), 0, 1, steps=3) == [6.0]


def test_a_list_has_one_speed_per_client():
    population = people([1.0, 0.25])
    assert (times(population, 0, 2, 8), times(population, 1, 2, 8)) == ([8.0, 8.0], [2.0, 2.0])


def test_a_list_of_lists_has_one_speed_per_task_and_repeats_the_last():
    population = people([[1.0, 2.0, 4.0], [3.0]])
    assert times(population, 0, 5, 10) == [10.0, 20.0, 40.0, 40.0, 40.0]
    assert times(population, 1, 2, 10) == [30.0, 30.0]


def test_a_function_is_asked_for_client_and_task_number():
    asked = []

    def speed(client: int, task: int) -> float:
        asked.append((client, task))
        return 1.0 + client + 10 * task

    population = people(speed)
    assert times(population, 2, 3) == [3.0, 13.0, 23.0]
    assert times(population, 0, 1) == [1.0]
    assert asked == [(2, 0), (2, 1), (2, 2), (0, 0)]


@pytest.mark.parametrize("wrong", [0.0, -1.0, inf, float("nan")])
def test_a_function_must_give_a_positive_number(wrong):
    with pytest.raises(
        UsageError, match=r"seconds_per_step\(3, 0\) = .* is not allowed: return a number above 0"
    ):
        people(lambda client, task: wrong).task(3, 0)


def test_a_law_is_drawn_from_once_per_client():
    population = people(laws.Uniform(1.0, 2.0))
    speeds = [times(population, c, 1)[0] for c in range(2000)]
    assert abs(np.mean(speeds) - 1.5) < 5 / sqrt(12 * 2000)
    assert len(set(speeds)) == 2000
    assert [times(population, c, 2) for c in range(20)] == [[s, s] for s in speeds[:20]]


def test_per_task_draws_anew():
    values = times(people(laws.Uniform(1.0, 2.0), per_task=True), 0, 2000)
    assert len(set(values)) == 2000
    assert abs(np.mean(values) - 1.5) < 5 / sqrt(12 * 2000)


def test_change_redraws_for_good_with_its_probability():
    values = times(people(laws.Uniform(1.0, 2.0), change=0.1), 0, 4000)
    changes = sum(a != b for a, b in pairwise(values))
    assert abs(changes / 3999 - 0.1) < 5 * sqrt(0.1 * 0.9 / 3999)
    assert len(set(values)) in (changes + 1, changes + 2)  # never back to an old one
    assert abs(np.mean(sorted(set(values))) - 1.5) < 5 / sqrt(12 * changes)


def test_jitter_is_relative_and_does_not_move_the_speed():
    values = np.array(times(people(4.0, jitter=0.05), 0, 4000, steps=10))
    assert abs(values.mean() - 40.0) < 5 * 2.0 / sqrt(4000)
    assert values.std() == pytest.approx(2.0, rel=0.07)
    wild = np.array(times(people(4.0, jitter=1.0), 0, 4000))
    assert wild.min() == pytest.approx(0.2)  # 5 % of the speed
    listed = np.array(times(people([[1.0, 8.0]], jitter=0.01), 0, 100))
    assert listed[0] == pytest.approx(1.0, abs=0.06)
    assert listed[1:].mean() == pytest.approx(8.0, abs=0.06)


@pytest.mark.parametrize("speed", [1.0, [1.0], [[1.0]], lambda client, task: 1.0])
def test_only_a_law_can_be_drawn_from_again(speed):
    for options in ({"change": 0.1}, {"per_task": True}):
        with pytest.raises(ValueError, match="give seconds_per_step as a law"):
            ob.World(speed, **options)


def test_with_equal_epochs_an_epoch_takes_as_long_whatever_data_a_client_has():
    epochs = [2, 30, 4]  # 12 in the mean
    population = Population(ob.World(0.5, equal_epochs=True), 0, epochs)
    for client, steps in enumerate(epochs):
        assert times(population, client, 2, steps=3 * steps) == pytest.approx([18.0, 18.0])  # three epochs
    law = laws.MeanRatio(6.0, 5)
    equal = Population(ob.World(law, jitter=0.1, equal_epochs=True), 3, epochs)
    alone = people(law, 3, jitter=0.1)
    for client, steps in enumerate(epochs):
        assert times(equal, client, 5, steps) == pytest.approx(times(alone, client, 5, 12))


# ---- transfers, by hand ----


@pytest.mark.parametrize(
    ("network", "seconds"),
    [
        (ob.Network(), [0.0, 0.0]),
        (ob.Network(latency=0.5), [1.0, 1.0]),  # both ways
        (ob.Network(latency=[0.5, 2.0]), [1.0, 4.0]),
        (ob.Network(up=1000.0), [8.0, 8.0]),  # 8000 bits
        (ob.Network(down=2000.0), [4.0, 4.0]),
        (ob.Network(latency=0.25, up=[1000.0, 500.0], down=4000.0), [10.5, 18.5]),
        (ob.Network(delay=laws.Constant(3.0)), [3.0, 3.0]),
        (ob.Network(latency=laws.Constant(1.0), up=laws.Constant(8000.0)), [3.0, 3.0]),
    ],
    ids=str,
)
def test_transfer_times(network, seconds):
    population = people(2.0, network=network)
    for client in (0, 1):
        assert times(population, client, 2, steps=10, bits=8000) == [20.0 + seconds[client]] * 2


def test_delays_are_drawn_per_task_and_links_once():
    population = people(1.0, network=ob.Network(delay=laws.Exponential(2.0)))
    values = np.array(times(population, 0, 3000)) - 1
    assert len(set(values)) > 2990
    assert abs(values.mean() - 2.0) < 5 * 2.0 / sqrt(3000)
    population = people(1.0, network=ob.Network(up=laws.Uniform(1.0, 2.0), latency=laws.Uniform(1.0, 2.0)))
    assert len(set(times(population, 0, 10, bits=8))) == 1
    assert times(population, 1, 1, bits=8) != times(population, 0, 1, bits=8)


def test_a_simulation_transfers_the_model_both_ways():
    world = ob.World(1.0, clients=1, network=ob.Network(up=320.0, down=160.0))
    learner = ob.NoTraining(1, parameters=10)  # 320 bits: 1 s up, 2 s down
    run = ob.simulate(ob.fedavg(5), world=world, learner=learner, until=ob.Until(versions=2))
    assert [e["t"] for e in run.entries("arrived")] == [8.0, 16.0]
    assert (run.summary.bytes_down, run.summary.bytes_up) == (120, 80)  # the third task has been sent


# ---- dropout ----


def test_dropout_loses_its_share_of_the_tasks_at_a_uniform_moment():
    population = people(10.0, availability=ob.Availability(dropout=0.3))
    outcomes = [population.task(0, 0) for _ in range(4000)]
    lost = np.array([o.lost * o.seconds(1) for o in outcomes if o.lost < 1])
    assert abs(len(lost) / 4000 - 0.3) < 5 * sqrt(0.3 * 0.7 / 4000)
    assert {o.seconds(1) for o in outcomes if o.lost == 1} == {10.0}
    assert 0 < lost.min() < lost.max() <= 10.0
    assert abs(lost.mean() - 5.0) < 5 * 10 / sqrt(12 * len(lost))
    assert all(people(10.0).task(0, 0).lost == 1 for _ in range(100))


# ---- presence ----


def presence(client: int = 0, count: int = 6, seed: int = 0, **options: Any) -> list[tuple[float, float]]:
    population = people(1.0, seed, availability=ob.Availability(**options))
    return list(islice(population.presence(client), count))


def test_who_is_always_there():
    assert presence() == [(0.0, inf)]
    assert people().always_there
    for options in ({"join": 0.0}, {"leave": 5.0}, {"period": 5.0, "present": 0.5}):
        assert not people(availability=ob.Availability(**options)).always_there
    assert people(availability=ob.Availability(period=5.0)).always_there  # present all of each period
    assert people(availability=ob.Availability(dropout=0.5)).always_there


def test_presence_can_be_listed():
    intervals = [[(0.0, 2.0), (3.0, None)], [], [(4.0, 5.0)]]
    population = people([1.0] * 3, availability=ob.Availability(intervals=intervals))
    assert not population.always_there
    assert [list(population.presence(client)) for client in range(3)] == [
        [(0.0, 2.0), (3.0, inf)], [], [(4.0, 5.0)]
    ]  # fmt: skip


@pytest.mark.parametrize(
    "own",
    [
        [(2.0, 1.0)],
        [(1.0, 1.0)],
        [(0.0, 2.0), (1.0, 3.0)],
        [(0.0, None), (3.0, 4.0)],
        [(0.0, 1.0), (1.0, 2.0)],
    ],
)
def test_listed_presence_is_apart_and_in_order(own):
    with pytest.raises(ValueError, match=r"intervals\[1\].*in order"):
        ob.Availability(intervals=[[], own])


def test_listed_presence_stands_alone():
    for other in ({"join": 1.0}, {"leave": 1.0}, {"period": 1.0}):
        with pytest.raises(ValueError, match="leave out join, leave and period"):
            ob.Availability(intervals=[[(0.0, None)]], **other)


def test_each_client_may_have_its_own_dropout_and_jitter():
    population = people([1.0, 1.0], jitter=[0.0, 0.3], availability=ob.Availability(dropout=[0.5, 0.0]))
    calm, shaky = ([population.task(client, 0) for _ in range(400)] for client in (0, 1))
    assert {o.per_step for o in calm} == {1.0}
    assert len({o.per_step for o in shaky}) == 400
    assert abs(sum(o.lost < 1 for o in calm) / 400 - 0.5) < 5 * 0.5 / 20
    assert all(o.lost == 1 for o in shaky)


def test_late_joiners_and_leavers():
    assert presence(join=5.0) == [(5.0, inf)]
    assert presence(leave=7.0) == [(0.0, 7.0)]
    assert presence(1, join=[0.0, 5.0], leave=[9.0, 8.0]) == [(5.0, 8.0)]
    assert presence(join=8.0, leave=8.0) == []
    assert presence(join=9.0, leave=8.0) == []
    assert presence(join=laws.Constant(3.0), leave=laws.Constant(4.0)) == [(3.0, 4.0)]


@pytest.mark.parametrize("client", range(5))
def test_periodic_presence(client):
    found = presence(client, period=10.0, present=0.3)
    for begin, end in found[1:]:
        assert end - begin == pytest.approx(3.0)
    for (a, _), (b, _) in pairwise(found[1:]):
        assert b - a == pytest.approx(10.0)
    first_begin, first_end = found[0]
    assert first_begin >= 0
    assert found[1][0] - first_end == pytest.approx(7.0)
    if first_begin > 0:  # it was away at the start
        assert first_end - first_begin == pytest.approx(3.0)
    else:
        assert 0 < first_end <= 3.0 + 1e-9


def test_phases_are_uniform():
    away = np.mean([presence(c, 1, period=10.0, present=0.3)[0][0] > 0 for c in range(2000)])
    assert abs(away - 0.7) < 5 * sqrt(0.7 * 0.3 / 2000)


def test_periodic_presence_within_joining_and_leaving():
    found = presence(0, 100, period=10.0, present=0.5, join=12.0, leave=58.0)
    whole = presence(0, 100, period=10.0, present=0.5)
    assert found == [(max(a, 12.0), min(b, 58.0)) for a, b in whole if max(a, 12.0) < min(b, 58.0)]
    assert 4 <= len(found) <= 6


# ---- streams ----

EVERYTHING = ob.World(
    laws.Normal(1.0),
    jitter=0.1,
    change=0.2,
    network=ob.Network(latency=laws.Exponential(0.1), up=laws.Uniform(10.0, 20.0), delay=laws.Pareto(0.1)),
    availability=ob.Availability(dropout=0.2, period=50.0, present=0.5),
)


def test_draws_of_one_client_do_not_depend_on_others():
    alone = Population(EVERYTHING, 3)
    expected = [alone.task(4, 100) for _ in range(10)]
    crowd = Population(EVERYTHING, 3)
    found = []
    for task in range(10):
        for client in (7, 1, 4, 0):
            outcome = crowd.task(client, 100)
            if client == 4:
                found.append(outcome)
        list(islice(crowd.presence(task), 3))
    assert found == expected
    assert list(islice(crowd.presence(4), 5)) == list(islice(alone.presence(4), 5))
    assert [crowd.task(5, 100) for _ in range(10)] != expected


def test_chance_at_one_thing_does_not_move_another():
    """The speed of a client is the same whatever else is random in the world."""
    plain = times(people(laws.Normal(1.0)), 3, 1)[0]
    lossy = people(
        laws.Normal(1.0),
        network=ob.Network(delay=laws.Constant(2.0)),
        availability=ob.Availability(dropout=0.01),
    )
    assert times(lossy, 3, 1)[0] == pytest.approx(plain + 2.0)


def test_the_seed_decides():
    def draw(seed: int) -> list[Any]:
        return [Population(EVERYTHING, seed).task(0, 10) for _ in range(3)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


# ---- how many clients there are ----


def test_the_number_of_clients():
    assert ob.World(clients=4).population(None) == 4
    assert ob.World([1.0, 2.0]).population(None) == 2
    assert ob.World().population(7) == 7
    assert ob.World([1.0, 2.0], clients=2).population(2) == 2
    with pytest.raises(UsageError, match=r"world\.clients is missing"):
        ob.World().population(None)
    with pytest.raises(UsageError, match=r"ambiguous: the learner has 3, world\.seconds_per_step has 2"):
        ob.World([1.0, 2.0]).population(3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("network.latency", {"network": ob.Network(latency=[1.0])}),
        ("network.up", {"network": ob.Network(up=[1.0])}),
        ("network.down", {"network": ob.Network(down=[1.0])}),
        ("availability.join", {"availability": ob.Availability(join=[1.0])}),
        ("availability.leave", {"availability": ob.Availability(leave=[1.0])}),
        ("availability.dropout", {"availability": ob.Availability(dropout=[0.5])}),
        ("availability.intervals", {"availability": ob.Availability(intervals=[[(0.0, None)]])}),
        ("jitter", {"jitter": [0.1]}),
    ],
)
def test_lists_must_be_as_long_as_there_are_clients(name, options):
    with pytest.raises(UsageError, match=rf"world\.{name} lists 1 values for 3 clients"):
        ob.World(clients=3, **options).population(None)
