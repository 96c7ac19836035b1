"""`check_algorithm` passes what is right and finds what is wrong with an algorithm."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import offbeat as ob
from offbeat.algorithms.schedules import Buffered
from offbeat.core.commands import Aggregate, Command, Train
from offbeat.core.events import Arrived, Event
from offbeat.core.programme import Programme
from offbeat.core.schedule import View
from offbeat.testing import CALM, HARD, JournalError, algorithm, check_algorithm, random_worlds
from offbeat.testing.algorithm import _check_summary, check_run

GOOD = ob.fedbuff(2, steps=3)


def with_schedule(kind: type[Buffered]) -> ob.Algorithm:
    return replace(GOOD, schedule=kind(Programme(steps=3), 2), name="faulty")


class Stops(Buffered):
    """Nobody is given anything after ten versions, and nothing says that the run ends."""

    def on(self, event: Event, state: Any, view: View) -> Iterator[Command]:
        for command in super().on(event, state, view):
            if view.version < 10 or not isinstance(command, Train):
                yield command


class Random(Buffered):
    """Draws from a generator that the seed does not determine."""

    def on(self, event: Event, state: Any, view: View) -> Iterator[Command]:
        for command in super().on(event, state, view):
            if isinstance(command, Train):
                yield Train(command.client, random.SystemRandom().randint(1, 10**6))
            else:
                yield command


COUNTED: list[Event] = []


class Remembers(Buffered):
    """Decides by what it has seen in all runs, not by its state."""

    def on(self, event: Event, state: Any, view: View) -> Iterator[Command]:
        COUNTED.append(event)
        for command in super().on(event, state, view):
            if isinstance(command, Train):
                yield Train(command.client, len(COUNTED))
            else:
                yield command


class Shares(Buffered):
    """Two parts of its state are one object, which is two after it was restored."""

    snapshots = True

    def initial(self) -> list[list[int]]:  # type: ignore[override]
        shared: list[int] = []
        return [shared, shared]

    def on(self, event: Event, state: Any, view: View) -> Iterator[Command]:
        if isinstance(event, Arrived):
            state[0].append(event.task)
        for command in super().on(event, [], view):
            yield Train(command.client, 1 + len(state[1])) if isinstance(command, Train) else command


class Hides(Buffered):
    """Its state has something that is no plain data."""

    snapshots = True

    def initial(self) -> Any:
        return [object()]

    def on(self, event: Event, state: Any, view: View) -> Iterator[Command]:
        return super().on(event, [], view)


class Twice(Buffered):
    """Aggregates an update that was aggregated before."""

    def on(self, event: Event, state: Any, view: View) -> Iterator[Command]:
        yield from super().on(event, state, view)
        if isinstance(event, Arrived) and view.version:
            yield Aggregate((event.task,))


DRIVEN: list[str] = []


class Looks(Buffered):
    """Gives other work where it is simulated than where it is replayed."""

    def on(self, event: Event, state: Any, view: View) -> Iterator[Command]:
        for command in super().on(event, state, view):
            yield Train(command.client, 3 + 2 * len(DRIVEN)) if isinstance(command, Train) else command


@pytest.mark.parametrize("world", [CALM, HARD], ids=["calm", "hard"])
def test_what_is_right_passes(world):
    check_algorithm(GOOD, [world])
    check_algorithm(GOOD, 5, seed=1)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Stops, r"faulty in world 0 with seed 0: .* s: liveness: 5 clients are there, no task runs"),
        (Random, r"faulty in world 0 with seed 0: task 0 at 0 s: determinism: "),
        (Remembers, r"faulty in world 0 with seed 0: task 0 at 0 s: determinism: "),
        (Shares, r"faulty in world 0 with seed 0: task \d+ at [\d.]+ s: snapshot: "),
        (Hides, r"faulty in world 0 with seed 0: the run at [\d.]+ s: snapshot: a object cannot be saved"),
        (Twice, r"faulty in world 0 with seed 0: the run at [\d.]+ s: refused: task \d+ is not held"),
    ],
)
def test_what_is_wrong_is_found(kind, says):
    with pytest.raises(JournalError, match=says) as caught:
        check_algorithm(with_schedule(kind), [CALM])
    assert "\n" not in str(caught.value)


def test_a_replay_that_differs_is_found(monkeypatch):
    """A schedule that looks at who drives it."""

    def simulated(*arguments, **options):
        DRIVEN.append("simulator")
        try:
            return ob.simulate(*arguments, **options)
        finally:
            DRIVEN.clear()

    monkeypatch.setattr(algorithm, "simulate", simulated)
    with pytest.raises(JournalError, match=r"task 0 at 0 s: replay: .* steps=5.*, then .* steps=3"):
        check_algorithm(with_schedule(Looks), [CALM])


def test_counters_that_differ_from_the_journal_are_found():
    until = ob.Until(tasks=20)
    audit = check_run(GOOD, CALM, until=until)
    run = ob.simulate(
        GOOD, CALM, ob.NoTraining(5, parameters=3, samples_per_client=8, batches=4), until=until
    )
    _check_summary(audit, run, until)
    for name in ("versions", "dispatched", "held", "running", "tasks", "aggregated", "dropped", "lost"):
        wrong = replace(run, summary=replace(run.summary, **{name: getattr(run.summary, name) + 1}))
        with pytest.raises(JournalError, match=f"summary: {name} is"):
            _check_summary(audit, wrong, until)


def test_an_invariant_of_ones_own_is_checked():
    def few(audit):
        audit.check(len(audit.held) < 1, "few", f"{len(audit.held)} updates wait")

    with pytest.raises(JournalError, match="few: 1 updates wait"):
        check_algorithm(GOOD, [CALM], invariant=few)


def test_random_worlds_are_the_same_for_the_same_seed_and_differ_among_themselves():
    first, again, other = (list(random_worlds(20, seed)) for seed in (0, 0, 1))
    assert first == again != other
    assert len({repr(world) for world in first}) > 15
    assert {world.clients for world in random_worlds(60, clients=(2, 4))} == {2, 3, 4}
    assert any(world.availability != ob.Availability() for world in first)
    assert any(world.network != ob.Network() for world in first)
