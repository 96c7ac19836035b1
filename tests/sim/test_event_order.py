"""The queue's order, the limits of a run, when it is evaluated, and what its summary counts."""

from itertools import permutations
from typing import Any

import pytest

import offbeat as ob
from offbeat.core.events import Arrived, Event, Joined, Left, Lost, Timer
from offbeat.sim.queue import EventQueue
from tests.sim.sim_worlds import HARD, digits, make, normed

EVENTS: list[Event] = [Joined(1, 10, 1), Arrived(2, 5, 3), Lost(3, 6), Left(4), Timer("a")]


@pytest.mark.parametrize("order", list(permutations(range(5))))
def test_order_at_equal_times(order: tuple[int, ...]) -> None:
    queue = EventQueue()
    for i in order:
        queue.push(7.0, EVENTS[i])
    popped = [queue.pop()[1] for _ in order]
    assert len(queue) == 0
    assert popped[0] == EVENTS[0]
    assert popped[1:3] == [EVENTS[i] for i in order if i in (1, 2)]  # equals: as they were scheduled
    assert popped[3:] == [EVENTS[3], EVENTS[4]]


def test_time_comes_before_priority_and_sequence_last() -> None:
    queue = EventQueue()
    queue.push(2.0, Joined(0, 1, 1))
    queue.push(1.0, Timer("late"))
    for client in (9, 3, 6):
        queue.push(1.0, Arrived(client, client, 1))
    assert queue.time == 1.0
    assert [getattr(queue.pop()[1], "client", None) for _ in range(5)] == [9, 3, 6, None, 0]


def all_of(queue: EventQueue) -> list[tuple[float, Event]]:
    found = []
    while (popped := queue.pop()) is not None:
        found.append(popped)
    return found


@pytest.mark.parametrize("order", list(permutations(range(5))))
def test_events_of_an_instant_have_one_time_and_the_order_of_equal_times(order: tuple[int, ...]) -> None:
    queue = EventQueue(resolution=1e-11)
    for i in order:
        queue.push(700.0 * (1 + (4 - i) * 1e-12), EVENTS[i])  # the timer's time is the earliest
    queue.push(700.0 * (1 + 2e-11), Joined(9, 1, 1))
    found = all_of(queue)
    assert [type(event) for _, event in found] == [
        Joined, *(type(EVENTS[i]) for i in order if i in (1, 2)), Left, Timer, Joined
    ]  # fmt: skip
    assert [time for time, _ in found] == [700.0] * 5 + [700.0 * (1 + 2e-11)]


def test_a_timer_keeps_its_time_and_what_its_instant_leads_to_comes_before_it() -> None:
    queue = EventQueue(resolution=1e-11)
    latest = 700.0 * (1 + 1e-12)
    queue.push(latest, Timer("a"))
    queue.push(700.0, Arrived(1, 1, 1))
    assert queue.pop() == (700.0, Arrived(1, 1, 1))
    queue.push(700.0 * (1 + 2e-12), Arrived(2, 2, 1))
    assert all_of(queue) == [(latest, Arrived(2, 2, 1)), (latest, Timer("a"))]


def test_what_is_no_longer_to_happen_begins_no_instant() -> None:
    queue = EventQueue(resolution=1e-11)
    queue.push(700.0, Timer("cancelled"))
    queue.push(700.0 * (1 + 1e-12), Arrived(1, 1, 1))
    arrived = queue.pop(lambda time, event: event != Timer("cancelled"))
    assert arrived == (700.0 * (1 + 1e-12), Arrived(1, 1, 1))
    assert queue.pop() is None


def clockwork(algorithm: ob.Algorithm | None = None, **options: Any) -> ob.Run:
    """Two clients whose updates arrive at 2, 4, 6, … and 3, 6, 9, … seconds; each makes a version."""
    world = ob.World(seconds_per_step=[2.0, 3.0])
    learner = ob.NoTraining(2, parameters=10)
    return ob.simulate(algorithm or ob.fedasync(steps=1), world, learner, **options)


def times(run: ob.Run) -> list[float]:
    return [e["t"] for e in run.entries("arrived")]


def test_events_exactly_at_the_last_second_happen() -> None:
    run = clockwork(until=ob.Until(seconds=6))
    assert times(run) == [2, 3, 4, 6, 6]
    assert run.summary.seconds == 6
    assert run.stop_reason == "reached 6 seconds"
    assert [e["client"] for e in run.entries("arrived")][-2:] == [1, 0]  # scheduled at 3 and at 4


def test_the_end_is_the_limit_even_when_nothing_happens_then() -> None:
    run = clockwork(until=ob.Until(seconds=7.5))
    assert times(run) == [2, 3, 4, 6, 6]
    assert run.summary.seconds == 7.5
    assert run.metrics[-1]["t"] == 7.5


@pytest.mark.parametrize(
    ("until", "arrived", "reason"),
    [
        (ob.Until(versions=4), 4, "reached 4 versions"),
        (ob.Until(tasks=3), 3, "reached 3 client tasks"),
        (ob.Until(seconds=4, tasks=99, versions=99), 3, "reached 4 seconds"),
        (ob.Until(seconds=99, tasks=2, versions=99), 2, "reached 2 client tasks"),
    ],
)
def test_the_nearest_limit_ends_the_run(until: ob.Until, arrived: int, reason: str) -> None:
    run = clockwork(until=until)
    assert (run.summary.tasks, run.stop_reason) == (arrived, reason)


def test_versions_and_tasks_are_different_limits() -> None:
    run = clockwork(ob.fedbuff(size=3, steps=1), until=ob.Until(versions=2))
    assert (run.summary.versions, run.summary.tasks) == (2, 6)
    run = clockwork(ob.fedbuff(size=3, steps=1), until=ob.Until(tasks=5))
    assert (run.summary.versions, run.summary.tasks, run.summary.held) == (1, 5, 2)


def test_an_accuracy_ends_the_run_at_the_evaluation_that_finds_it() -> None:
    learner = digits()
    limit = ob.Until(seconds=500, accuracy=0.6)
    run = ob.simulate(make("fedavg"), ob.World(clients=5), learner, until=limit, evaluate=ob.Every(seconds=7))
    assert run.stop_reason == "reached accuracy 0.6"
    assert run.metrics[-1]["accuracy"] >= 0.6
    assert all(m["accuracy"] < 0.6 for m in run.metrics[:-1])
    assert run.summary.seconds == run.metrics[-1]["t"]
    assert run.summary.seconds % 7 == 0


def test_a_run_without_an_end_is_refused() -> None:
    with pytest.raises(ob.UsageError, match="the run would never end"):
        clockwork(until=ob.Until())
    with pytest.raises(ob.UsageError, match="needs evaluations"):
        clockwork(until=ob.Until(accuracy=0.5), evaluate=None)


def test_when_nothing_is_left_to_happen() -> None:
    world = ob.World(clients=2, availability=ob.Availability(leave=[5.0, 8.0]))
    run = ob.simulate(ob.fedasync(steps=2), world, until=ob.Until(seconds=100))
    assert run.stop_reason == "nothing is left to happen: no client trains, no timer is set"
    assert run.summary.seconds == 8.0


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (ob.Every(seconds=2), [(0, 0), (2, 1), (4, 3), (6, 5), (7, 5)]),
        (ob.Every(seconds=2.5), [(0, 0), (2.5, 1), (5, 3), (7, 5)]),
        (ob.Every(seconds=100), [(0, 0), (7, 5)]),
        (ob.Every(versions=1), [(0, 0), (2, 1), (3, 2), (4, 3), (6, 4), (6, 5), (7, 5)]),
        (ob.Every(versions=2), [(0, 0), (3, 2), (6, 4), (7, 5)]),
        (ob.Every(seconds=3, versions=3), [(0, 0), (3, 2), (4, 3), (6, 5), (7, 5)]),
        (None, []),
        (ob.Every(), []),
    ],
)
def test_when_the_model_is_looked_at(every: ob.Every | None, expected: list[tuple[float, int]]) -> None:
    """At the start and at the end too; at equal times after the events."""
    run = clockwork(until=ob.Until(seconds=7), evaluate=every)
    assert [(m["t"], m["version"]) for m in run.metrics] == expected


def test_the_end_is_not_evaluated_twice() -> None:
    run = clockwork(until=ob.Until(seconds=6), evaluate=ob.Every(seconds=2))
    assert [m["t"] for m in run.metrics] == [0, 2, 4, 6]
    run = clockwork(until=ob.Until(versions=3), evaluate=ob.Every(versions=1))
    assert [m["version"] for m in run.metrics] == [0, 1, 2, 3]


def test_many_evaluations_do_not_drift() -> None:
    run = clockwork(until=ob.Until(seconds=30), evaluate=ob.Every(seconds=0.1))
    assert len(run.metrics) == 301
    assert [m["t"] for m in run.metrics] == pytest.approx([i / 10 for i in range(301)])


@pytest.mark.parametrize("name", ob.ALGORITHMS)
def test_the_summary_counts_what_the_journal_says(name: str) -> None:
    learner = ob.NoTraining(5, parameters=7, samples_per_client=40, batches=4)
    run = ob.simulate(make(name), HARD, learner, seed=5, until=ob.Until(tasks=150))
    s, entries = run.summary, run.entries
    aggregated = [t for e in entries("aggregate") for t in e["tasks"]]
    lost = [e for e in run.journal if e["name"] in ("lost", "left") and e["task"] is not None]
    assert s.dispatched == len(entries("train"))
    assert s.tasks == len(entries("arrived")) == 150
    assert s.aggregated == len(aggregated) == len(set(aggregated))
    assert s.dropped == len(entries("drop")) + len(entries("discard"))
    assert s.lost == len(lost) > 0
    assert s.versions == len(entries("aggregate"))
    assert s.dispatched == s.aggregated + s.dropped + s.lost + s.held + s.running
    assert s.tasks == s.aggregated + len(entries("drop")) + s.held  # a discarded one never arrived
    assert s.mean_staleness == pytest.approx(sum(e["staleness"] for e in entries("arrived")) / 150)
    assert s.seconds == run.journal[-1]["t"]
    vectors = 1 + make(name).objective.shared_vectors  # SCAFFOLD's control variates travel too
    if make(name).codec is None:
        assert s.bytes_up == 4 * 7 * vectors * s.tasks
    assert s.bytes_down == 4 * 7 * vectors * (s.dispatched + len(entries("send")))
    assert [e["seq"] for e in run.journal] == list(range(len(run.journal)))


def test_bytes_count_integer_buffers_and_grow_with_the_evaluations() -> None:
    learner = digits(normed)
    run = ob.simulate(make("fedavg"), ob.World(clients=5), learner, until=ob.Until(versions=3))
    floats = 64 * 12 + 12 + 4 * 12 + 12 * 10 + 10  # BatchNorm: weight, bias, mean, variance
    assert run.summary.bytes_up == (4 * floats + 8) * run.summary.tasks
    for metric in run.metrics:
        assert metric["bytes_up"] == (4 * floats + 8) * metric["tasks"]
    assert [m["tasks"] for m in run.metrics] == [0, 3, 6, 9]
