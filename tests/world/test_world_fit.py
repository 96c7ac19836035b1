"""A world is simulated, fitted from the journal alone, and compared with what it was.

With jitter j, a mean over n tasks has a standard error of j p / √n: 5 of them are allowed.
"""

from math import sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import offbeat as ob
from offbeat.algorithms.fedasmu.requests import FixedTiming
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import UsageError
from offbeat.core.journal import Row
from offbeat.core.learner import NoTraining
from offbeat.world.fit import Fit, Sizes, fit_world
from tests.sampling import examples

SPEEDS = [0.5, 1.0, 2.0, 4.0]
BITS = 8_000


def rows(world: ob.World, algorithm: Algorithm | None = None, **until: Any) -> list[Row]:
    learner = NoTraining(len(SPEEDS), parameters=BITS // 32)
    run = ob.simulate(algorithm or ob.fedcompass(4, 20), world, learner, seed=3, until=ob.Until(**until))
    return list(run.rows())


def fitted(world: ob.World, algorithm: Algorithm | None = None, **options: Any) -> Fit:
    tasks = options.pop("tasks", 400)
    return fit_world(rows(world, algorithm, tasks=tasks), len(SPEEDS), **options)


def test_speeds_and_their_jitter():
    fit = fitted(ob.World(SPEEDS, jitter=0.1))
    for speed, own in zip(SPEEDS, fit.clients, strict=True):
        assert own.seconds_per_step == pytest.approx(speed, rel=5 * 0.1 / sqrt(own.arrived))
        assert own.jitter == pytest.approx(0.1, rel=5 / sqrt(2 * own.arrived))
        assert own.latency == own.dropout == 0
        assert own.down is own.up is None
    assert fit.world.network.free
    assert fit.world.availability == ob.Availability()


def test_without_jitter_a_world_is_found_exactly():
    world = ob.World(SPEEDS, network=ob.Network(latency=[0.5, 0.0, 1.0, 3.0]))
    fit = fitted(world)
    assert fit.world.seconds_per_step == pytest.approx(SPEEDS, rel=1e-5)
    assert fit.world.network.latency == pytest.approx([0.5, 0.0, 1.0, 3.0], rel=1e-5, abs=1e-5)
    assert fit.world.jitter == 0.0


LINKS = ob.Network(
    latency=[0.25, 0.0, 1.0, 3.0],
    up=[BITS / 3, BITS, None, 2 * BITS],
    down=[None, BITS / 7, BITS, 5 * BITS],
)
ALGORITHMS = {
    "the same steps": ob.fedbuff(2, steps=10),
    "requests": ob.fedasmu(steps=10, ask=FixedTiming(), ask_every=2, size=2, period=5, threshold=2),
    "groups": ob.fedcompass(4, 20),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_simulated_run_gives_its_own_links_back(name: str) -> None:
    fit = fitted(ob.World(SPEEDS, network=LINKS), ALGORITHMS[name], sizes=Sizes(BITS, BITS), tasks=200)
    network = fit.world.network
    assert network.latency == LINKS.latency
    assert network.up == pytest.approx([BITS / 3, BITS, 1e18, 2 * BITS], rel=1e-5)
    assert network.down == pytest.approx([1e18, BITS / 7, BITS, 5 * BITS], rel=1e-5)
    assert fit.world.seconds_per_step == pytest.approx(SPEEDS, rel=1e-5)
    assert fit.world.jitter == 0.0


def test_one_transfer_that_took_long_changes_no_link():
    found = rows(ob.World(SPEEDS, network=LINKS), ob.fedbuff(2, steps=10), tasks=100)
    late = next(n for n, row in enumerate(found) if row.name == "arrived" and row.client == 1)
    data = {**(found[late].data or {}), "line.received": 1e4, "line.sent": 1e4}
    found[late] = replace(found[late], data=data)
    network = fit_world(found, 4, sizes=Sizes(BITS, BITS)).world.network
    assert network.up is not None
    assert network.down is not None
    assert (network.up[1], network.down[1]) == pytest.approx((BITS, BITS / 7), rel=1e-5)


def held(latency: float, transfer: float) -> list[Row]:
    """The journal of a client that holds its updates, written by hand: one second a step."""
    written, t = [Row(0, 0.0, "event", "joined", 0), Row(1, 0.0, "event", "begin")], 0.0
    for task, steps in enumerate((3, 5, 8, 2, 9)):
        ready = t + 2 * latency + transfer + steps
        upload = ready + 7.0
        arrived = upload + latency + transfer
        times = latency + transfer, float(steps), 2 * latency + transfer, latency
        line = dict(zip(("line.received", "line.trained", "line.sent", "line.latency"), times, strict=True))
        written += [
            Row(0, t, "command", "train", 0, task, steps=steps),
            Row(0, ready, "event", "ready", 0, task, steps=steps),
            Row(0, upload, "command", "upload", 0, task),
            Row(0, arrived, "event", "arrived", 0, task, steps=steps, data=line if latency else None),
        ]
        t = arrived
    return written


def test_who_holds_its_update_sends_one_message_more():
    fit = fit_world(held(0.5, 2.0), 1, sizes=Sizes(BITS, BITS))
    assert fit.world.seconds_per_step == pytest.approx([1.0])
    assert fit.world.network.latency == pytest.approx([0.5])
    assert fit.world.network.up == fit.world.network.down == pytest.approx([BITS / 2.0])


def test_a_link_is_not_made_up_from_few_tasks_or_from_chance():
    """With three seeds, four clients and jitter a link would be wrong each time."""
    for seed in range(3):
        for tasks in (20, 400):
            run = ob.simulate(
                ob.fedcompass(4, 20), ob.World(SPEEDS, jitter=0.2), seed=seed, until=ob.Until(tasks=tasks)
            )
            assert fit_world(run.rows(), 4, sizes=Sizes(BITS, BITS)).world.network.free


def test_each_clients_dropout():
    chances = [0.0, 0.3, 0.6, 0.1]
    world = ob.World(SPEEDS, availability=ob.Availability(dropout=chances))
    fit = fitted(world, ob.fedasync(steps=5), tasks=800)
    for chance, own in zip(chances, fit.clients, strict=True):
        error = sqrt(chance * (1 - chance) / (own.arrived + own.lost))
        assert own.dropout == pytest.approx(chance, abs=5 * error)
    assert isinstance(fit.world.availability.dropout, list)


def test_who_was_there_when():
    intervals = [[(0.0, None)], [(0.0, 30.0), (50.0, None)], [(10.0, 100.0)], [(0.0, None)]]
    world = ob.World(SPEEDS, availability=ob.Availability(intervals=intervals))
    fit = fit_world(rows(world, ob.fedasync(steps=5), seconds=300), 4)
    assert fit.world.availability.intervals == intervals


def test_time_starts_when_the_run_begins():
    late = [replace(row, t=row.t + 100.0) for row in rows(ob.World(SPEEDS), tasks=50)]
    joined = [replace(row, t=60.0) if row.name == "joined" else row for row in late]
    fit = fit_world(joined, 4)
    assert fit.world.availability.intervals is None
    assert fit.world.seconds_per_step == pytest.approx(SPEEDS)
    gone = fit_world([*joined, Row(0, 500.0, "event", "left", 2)], 4)
    assert gone.clients[2].intervals == ((0.0, 400.0),)


def test_the_time_of_a_task_that_spans_an_absence_is_not_taken_for_speed():
    written = held(0.0, 0.0)
    t = written[-1].t
    written += [
        Row(0, t, "command", "train", 0, 9, steps=2),
        Row(0, t + 1, "event", "left", 0, 9),
        Row(0, t + 900, "event", "joined", 0, 9),
        Row(0, t + 950, "event", "arrived", 0, 9, steps=2),
    ]
    fit = fit_world(written, 1)
    assert fit.world.seconds_per_step == pytest.approx([1.0])
    assert fit.clients[0].arrived == 6


def test_whoever_brought_nothing_gets_the_median_and_it_is_said():
    fit = fit_world(held(0.0, 0.0), 3)
    assert fit.world.seconds_per_step == pytest.approx([1.0, 1.0, 1.0])
    assert fit.world.availability.intervals == [[(0.0, None)], [], []]
    assert [note.split(" was ")[0] for note in fit.notes] == ["client 1", "client 2"]


def test_whoever_was_away_in_each_of_its_tasks_gets_the_median_and_it_is_said():
    written = held(0.0, 0.0)
    t = written[-1].t
    away = [
        Row(0, 0.0, "event", "joined", 1),
        Row(0, t, "command", "train", 1, 9, steps=2),
        Row(0, t + 1, "event", "left", 1, 9),
        Row(0, t + 900, "event", "joined", 1, 9),
        Row(0, t + 950, "event", "arrived", 1, 9, steps=2),
    ]
    fit = fit_world([*written, *away], 2)
    assert fit.world.seconds_per_step == pytest.approx([1.0, 1.0])
    assert fit.clients[1].arrived == 1
    assert any(note.startswith("client 1 was away during each task") for note in fit.notes)
    with pytest.raises(UsageError, match="away in between"):
        fit_world(away, 2)


def test_tasks_can_be_repeated_one_by_one():
    fit = fitted(ob.World(SPEEDS, jitter=0.3), ob.fedasync(steps=5), speeds="tasks")
    again = fit_world(rows(fit.world, ob.fedasync(steps=5), tasks=400), 4, speeds="tasks")
    for a, b in zip(fit.clients, again.clients, strict=True):
        assert b.tasks[: a.arrived] == pytest.approx(a.tasks[: b.arrived], rel=1e-4)


def test_a_journal_without_an_update_is_refused():
    with pytest.raises(UsageError, match="no update has arrived"):
        fit_world([Row(0, 0.0, "event", "joined", 0)], 1)


@examples(25)
@given(
    speeds=st.lists(st.floats(0.01, 50), min_size=1, max_size=5),
    latency=st.floats(0, 20),
    dropout=st.floats(0, 0.8),
    leave=st.none() | st.floats(1, 500),
    seconds=st.floats(20, 500),
)
def test_whatever_the_world_its_fit_is_a_world(
    speeds: list[float], latency: float, dropout: float, leave: float | None, seconds: float
) -> None:
    availability = ob.Availability(dropout=dropout, leave=leave)
    world = ob.World(speeds, jitter=0.2, network=ob.Network(latency=latency), availability=availability)
    run = ob.simulate(ob.fedasync(steps=3), world, seed=1, until=ob.Until(seconds=seconds, tasks=100))
    if run.entries("arrived"):
        fit = fit_world(run.rows(), len(speeds))
        assert fit.world.population(None) == len(speeds)
        ob.simulate(ob.fedasync(steps=3), fit.world, seed=2, until=ob.Until(seconds=seconds, tasks=100))
