"""What holds for every algorithm in every world, checked on the journal alone."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from msgspec.structs import astuple

import offbeat as ob
from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.wireless import AgeWeighted, RadioIterations
from offbeat.algorithms.wireless.over_radio import OverRadio, UploadSlots
from offbeat.algorithms.wireless.policies import AgeBased, BestChannel, Random
from offbeat.core.engine import Engine
from offbeat.core.journal import Row, event_of
from offbeat.core.programme import Programme
from offbeat.core.recorded import RecordedJournal
from offbeat.local.objectives import Plain
from offbeat.world.channel import Channel, Rayleigh, Rician
from tests.options import algorithms
from tests.sampling import examples

SECONDS, TASKS = 400.0, 80

# ---- worlds ----

dyadic = st.sampled_from([0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0])  # ties, and exact sums
speed = dyadic | st.floats(0.05, 20.0)
law = st.sampled_from(
    [
        ob.laws.Constant(1.0),
        ob.laws.Normal(1.0),
        ob.laws.Exponential(1.0),
        ob.laws.Uniform(0.5, 2.0),
        ob.laws.Ratio(0.25, 20.0),
        ob.laws.Pareto(0.5),
        ob.laws.LogNormal(1.0),
        ob.laws.Zipf(0.5),
    ]
)


@st.composite
def worlds(draw: st.DrawFn) -> ob.World:
    clients = draw(st.integers(1, 5))
    by_law = draw(st.booleans())
    speeds: Any
    if by_law:
        speeds = draw(law)
    elif draw(st.booleans()):
        speeds = draw(st.lists(speed, min_size=clients, max_size=clients))
    else:
        own = st.lists(speed, min_size=1, max_size=4)
        speeds = draw(st.lists(own, min_size=clients, max_size=clients))
    some = st.none() | st.floats(10.0, 1e4)
    network = draw(
        st.just(ob.Network())
        | st.builds(
            ob.Network,
            latency=st.sampled_from([0.0, 0.5]) | law,
            up=some,
            down=some,
            delay=st.none() | law,
        )
    )
    moments = st.lists(st.sampled_from([10.0, 25.0, 40.0, 100.0, 150.0]), min_size=clients, max_size=clients)
    availability = draw(
        st.just(ob.Availability())
        | st.builds(
            ob.Availability,
            dropout=st.sampled_from([0.0, 0.1, 0.5]),
            join=st.none() | moments | st.just(0.0),
            leave=st.none() | moments.map(lambda m: [2 * t for t in m]),
        )
        | st.builds(
            ob.Availability,
            dropout=st.sampled_from([0.0, 0.1, 0.5]),
            join=st.none() | moments | st.just(0.0),
            leave=st.none() | moments.map(lambda m: [2 * t for t in m]),
            period=st.sampled_from([30.0, 100.0]) | st.floats(20.0, 300.0),
            present=st.floats(0.1, 1.0),
        )
    )
    return ob.World(
        speeds,
        clients=clients,
        jitter=draw(st.sampled_from([0.0, 0.05, 0.5])),
        change=draw(st.sampled_from([0.0, 0.1, 1.0])) if by_law else 0.0,
        per_task=draw(st.booleans()) if by_law else False,
        network=network,
        availability=availability,
        channel=ob.Channel(draw(st.sampled_from([1, 500]))),
    )


EVERY = pytest.mark.parametrize("name", ALGORITHMS)
SLOW = {"suppress_health_check": [HealthCheck.too_slow]}


def make(name: str, data: st.DataObject, world: ob.World) -> ob.Algorithm:
    return data.draw(algorithms(name, world.clients), label="algorithm")


def play(algorithm: ob.Algorithm, world: ob.World, seed: int, **options: Any) -> tuple[list[Row], ob.Run]:
    learner = ob.NoTraining(world.clients, parameters=3, samples_per_client=8, batches=4)
    until = ob.Until(seconds=SECONDS, tasks=TASKS)
    run = ob.simulate(algorithm, world=world, learner=learner, seed=seed, until=until, **options)
    return list(run.rows()), run


def moments(rows: list[Row]) -> list[tuple[Row, list[Row]]]:
    """Each event with the commands it led to."""
    found: list[tuple[Row, list[Row]]] = []
    for row in rows:
        if row.kind == "event":
            found.append((row, []))
        else:
            found[-1][1].append(row)
    return found


# ---- books kept by the test itself ----


class Books:
    """Goes through a journal and checks it line by line; knows nothing of `Server`."""

    def __init__(self) -> None:
        self.time = 0.0
        self.version = 0
        self.begun = False
        self.present: set[int] = set()
        self.busy: dict[int, int] = {}  # client -> task
        self.base: dict[int, int] = {}
        self.held: set[int] = set()
        self.ended: Counter[str] = Counter()
        self.dispatched = 0
        self.timers: dict[str, float] = {}
        self.steps: dict[int, int] = {}
        self.recalled: set[int] = set()
        self.asked: int | None = None  # the task whose request for a model was the last event
        self.staleness: list[int] = []
        self.waiting: set[int] = set()  # tasks that are done and held by their clients
        self.measuring: list[int] | None = None
        self.group: dict[int, int] = {}  # FedCompass: the group a client trains or waits in

    def event(self, row: Row) -> None:
        assert row.kind == "event"
        assert row.t >= self.time
        self.time = row.t
        assert row.version == self.version
        self.asked = None
        match row.name:
            case "joined":
                assert row.client not in self.present
                self.present.add(row.client)
            case "begin":
                self.begun = True
            case "arrived":
                self.end(row)
                assert row.task not in self.waiting  # it was told to upload, or was not held
                assert row.base == self.base[row.task]
                assert row.staleness == self.version - row.base
                assert row.staleness >= 0
                self.staleness.append(row.staleness)
                if row.task in self.recalled:
                    assert 1 <= row.steps <= self.steps[row.task]
                else:
                    assert row.steps == self.steps[row.task]
                self.held.add(row.task)
            case "wants_model":
                assert self.busy[row.client] == row.task
                assert row.base == self.base[row.task]
                assert 0 < row.steps < self.steps[row.task]
                self.asked = row.task
            case "ready":
                assert self.busy[row.client] == row.task
                assert row.steps == self.steps[row.task]
                self.waiting.add(row.task)
            case "measured":
                assert [client for client, _ in row.data["capacities"]] == self.measuring
                self.measuring = None
            case "lost":
                self.end(row)
                assert row.task not in self.waiting
                self.ended["lost"] += 1
                self.group.pop(row.client, None)
            case "left":
                assert (row.task is None) == (row.client not in self.busy)
                if row.task is not None:
                    self.end(row)
                    self.waiting.discard(row.task)
                    self.ended["lost"] += 1
                self.present.remove(row.client)
                self.group.pop(row.client, None)
            case "timer":
                assert self.timers.pop(row.data["timer"]) == row.t
            case other:
                raise AssertionError(other)

    def end(self, row: Row) -> None:
        assert self.busy.pop(row.client) == row.task  # each task ends once, at its own client

    def command(self, row: Row) -> None:
        assert row.kind == "command"
        assert row.t == self.time
        match row.name:
            case "train":
                assert row.client in self.present
                assert row.client not in self.busy
                assert row.task == self.dispatched
                assert row.base == self.version
                assert row.steps >= 1
                self.dispatched += 1
                self.busy[row.client] = row.task
                self.base[row.task] = row.base
                self.steps[row.task] = row.steps
                self.group.pop(row.client, None)
                if row.data and "group" in row.data:
                    self.group[row.client] = row.data["group"]
            case "send":
                assert self.asked == row.task == self.busy[row.client]
                assert row.version == self.version
                self.asked = None
            case "recall":
                assert self.busy[row.client] == row.task
                assert row.task not in self.recalled
                self.recalled.add(row.task)
            case "aggregate":
                assert row.data["tasks"]
                for task in row.data["tasks"]:
                    self.held.remove(task)  # arrived, and not used before
                    self.ended["aggregated"] += 1
                assert row.version == self.version + 1
                self.version += 1
            case "measure":
                assert self.measuring is None
                self.measuring = row.data["clients"]
                assert {self.busy[client] for client in self.measuring} <= self.waiting
            case "upload":
                assert self.busy[row.client] == row.task
                self.waiting.remove(row.task)
            case "discard":
                assert row.data["reason"]
                self.waiting.remove(row.task)
                self.end(row)
                self.ended["dropped"] += 1
            case "drop":
                assert row.data["reason"]
                self.held.remove(row.task)
                self.ended["dropped"] += 1
            case "timer_set":
                assert row.data["at"] >= row.t
                self.timers[row.data["timer"]] = row.data["at"]
            case "timer_cancelled":
                del self.timers[row.data["timer"]]
            case other:
                raise AssertionError(other)

    def check(self, algorithm: ob.Algorithm) -> None:
        """Between two events: conservation, and work or hope of it for every client."""
        assert self.dispatched == sum(self.ended.values()) + len(self.held) + len(self.busy)
        if not self.begun:
            assert self.dispatched == 0
            return
        if self.present:
            assert self.busy or self.timers
        inner = getattr(algorithm.schedule, "inner", algorithm.schedule)  # of one around another
        schedule = type(inner).__name__
        if schedule == "Buffered":
            limit = inner.concurrency or len(self.present)
            assert len(self.busy) == min(limit, len(self.present))
            assert len(self.held) < inner.size
        elif schedule == "Rounds":
            assert bool(self.busy) == bool(self.present)
            assert len(self.busy) <= (algorithm.schedule.concurrency or len(self.present))
        elif schedule == "CompassSchedule":
            for client in self.present - set(self.busy):
                assert f"group {self.group[client]}" in self.timers
        elif schedule == "RadioIterations":
            assert len(self.waiting) < len(self.busy) or self.timers or self.measuring or not self.present
        elif schedule == "Bounded":
            self.check_bounded(algorithm.schedule)

    def check_bounded(self, schedule: Any) -> None:
        """PORT: nobody gets too stale, and nothing waits without a reason."""
        assert bool(self.busy) == bool(self.present)
        assert len(self.busy) <= (schedule.concurrency or len(self.present) or 1)
        assert max(self.staleness, default=0) <= schedule.tau_max
        overdue = {t for t in self.busy.values() if self.version - self.base[t] >= schedule.tau_max}
        assert len(self.held) < schedule.size or overdue
        if schedule.urgent and len(self.held) >= schedule.size:
            assert overdue <= self.recalled
        else:
            assert schedule.urgent or not self.recalled


@EVERY
@examples(100, **SLOW)
@given(st.data(), worlds(), st.integers(0, 2**63 - 1))
def test_books_balance_and_nobody_is_stranded(name, data, world, seed):
    audit(make(name, data, world), world, seed)


def audit(algorithm: ob.Algorithm, world: ob.World, seed: int) -> None:
    """Play it, and go through its journal with books of the test's own."""
    rows, run = play(algorithm, world, seed)
    assert [row.seq for row in rows] == list(range(len(rows)))
    books = Books()
    for event, commands in moments(rows):
        books.event(event)
        for command in commands:
            books.command(command)
        books.check(algorithm)
    if books.present:
        assert run.stop_reason.startswith("reached")
    assert run.stop_reason.startswith(("reached", "nothing is left to happen"))
    s = run.summary
    assert (s.versions, s.dispatched, s.held, s.running) == (
        books.version, books.dispatched, len(books.held), len(books.busy),
    )  # fmt: skip
    assert (s.aggregated, s.dropped, s.lost) == tuple(
        books.ended[how] for how in ("aggregated", "dropped", "lost")
    )
    arrived = [row for row in rows if row.name == "arrived"]
    assert s.tasks == len(arrived) <= TASKS
    assert s.mean_staleness == pytest.approx(sum(r.staleness for r in arrived) / max(1, len(arrived)))
    assert books.time <= s.seconds <= SECONDS


@EVERY
@examples(20, **SLOW)
@given(st.data(), worlds(), st.integers(0, 1000))
def test_the_same_seed_gives_the_same_journal_however_often_it_is_evaluated(name, data, world, seed):
    algorithm = make(name, data, world)
    rows, run = play(algorithm, world, seed)
    for every in (None, ob.Every(versions=1), ob.Every(seconds=7.0), ob.Every(seconds=31.7, versions=3)):
        again, other = play(algorithm, world, seed, evaluate=every)
        assert again == rows
        assert (other.summary, other.stop_reason) == (run.summary, run.stop_reason)


@EVERY
@examples(20, **SLOW)
@given(st.data(), worlds(), st.integers(0, 1000))
def test_a_replay_of_the_events_gives_the_recorded_commands(name, data, world, seed):
    algorithm = make(name, data, world)
    rows, _ = play(algorithm, world, seed)
    stored = [Row(*json.loads(json.dumps(astuple(row)))) for row in rows]
    assert stored == rows
    recorded = RecordedJournal(stored)
    engine = Engine(algorithm.schedule, seed, recorded.check)
    for event, _ in moments(stored):
        engine.apply(event.t, event_of(event))
    recorded.finish()
    assert engine.rows == len(stored)


on_radio = st.one_of(
    st.builds(
        lambda steps, scheduled, policy, period: ob.Algorithm(
            RadioIterations(Programme(steps=steps), scheduled, policy, period), AgeWeighted(0.7), Plain()
        ),
        st.integers(1, 20), st.integers(1, 5), st.sampled_from([Random(), BestChannel(), AgeBased()]),
        st.none() | st.sampled_from([1.0, 7.5, 40.0]),
    ),
    st.sampled_from([ob.fedasync(3), ob.fedbuff(2, steps=5), ob.fedcompass(2, 8), ob.fedavg(4)]).map(
        lambda a: replace(a, schedule=OverRadio(a.schedule, UploadSlots(0.5)))
    ),
)  # fmt: skip
channels = st.builds(
    Channel, symbols=st.integers(1, 10**6), fading=st.sampled_from([Rayleigh(), Rician(3.0)])
)


@examples(100, **SLOW)
@given(on_radio, channels, worlds(), st.integers(0, 2**63 - 1))
def test_books_balance_over_a_radio_too(algorithm, channel, world, seed):
    audit(algorithm, replace(world, channel=channel), seed)


def test_different_seeds_differ():
    world = ob.World(ob.laws.Uniform(1.0, 2.0), clients=4)
    journals = [play(ob.fedcompass(2, 8), world, seed)[0] for seed in range(3)]
    assert journals[0] != journals[1] != journals[2] != journals[0]
