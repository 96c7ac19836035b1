"""Pooling: what a schedule aggregates is released in sums of enough clients, around every schedule."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.privacy.pooled import NEWER, Pooled, PooledUpdate, Pools
from offbeat.algorithms.privacy.private import complete_privacy, sum_only, with_privacy
from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Aggregate, Command
from offbeat.core.errors import UsageError
from offbeat.core.limits import Until
from offbeat.core.privacy.privacy_options import Noise, Privacy, Secure
from offbeat.core.schedule import View
from offbeat.sim.result import Run
from offbeat.sim.simulate import simulate
from offbeat.testing.algorithm import check_algorithm
from offbeat.testing.journal import check_journal
from offbeat.testing.strategies import worlds
from offbeat.testing.worlds import CALM
from offbeat.world.availability import Availability
from offbeat.world.world import World
from tests.options import options_of

ALL = ("clients_per_round", "concurrency")  # without a bound
MARKS = {"fedbuff": (), "fedat": (), "fedcompass": ()}  # the others are the same schedules, and thorough


def pooled(name: str, privacy: Privacy, clients: int = 5) -> Algorithm:
    options = {key: value for key, value in options_of(name).items() if key not in (*ALL, "against")}
    algorithm = ALGORITHMS[name](**options, **({"beta": 0.0} if name == "port" else {}))
    return with_privacy(algorithm, complete_privacy(privacy, algorithm, clients))


class Watched(Pooled):
    """Checks what waits in the pools after each aggregation of the schedule inside."""

    def _pool(self, command: Aggregate, state: Pools, view: View) -> Iterator[Command]:
        released = False
        for own in super()._pool(command, state, view):
            released |= isinstance(own, Aggregate)
            yield own
        for pool in state.waiting.values():
            clients = [own.client for own in pool]
            assert len(set(clients)) == len(clients), "two updates of a client wait"
            assert all(view.task(own.task).client == own.client for own in pool), "what is not held waits"
            assert released or not self._choose(pool), "a release waits that may be made"


def watched(algorithm: Algorithm) -> Algorithm:
    pooling = algorithm.schedule
    assert isinstance(pooling, Pooled)
    return replace(algorithm, schedule=Watched(pooling.inner, pooling.sums, pooling.privacy))


def check_release(release: dict, privacy: Privacy) -> None:
    """The rules of a release, recounted from its journal row."""
    clients, weights, tasks = release["clients"], release["weights"], release["tasks"]
    assert len(set(clients)) == len(clients) >= privacy.fewest
    assert privacy.most is None or len(clients) <= privacy.most
    assert tasks == sorted(tasks)
    assert min(weights) >= 1
    assert max(weights) <= min(15, privacy.dominance * sum(weights))
    assert "tier" not in release or release["tier"] in release["order"]


def check_dropped(run: Run, dropped: dict) -> None:
    """An update is dropped for a newer one of its client, which has arrived before that."""
    assert dropped["reason"] == NEWER
    arrivals = {e["task"]: (e["seq"], e["client"]) for e in run.entries("arrived")}
    seq, client = arrivals[dropped["task"]]
    assert any(seq < later < dropped["seq"] for later, own in arrivals.values() if own == client)


@given(world=worlds((3, 5)), seed=st.integers(0, 99), most=st.sampled_from([None, 10]))
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, pytest.mark.thorough)) for name in sum_only()]
)
def test_releases_keep_the_rules_in_any_world(name: str, world: World, seed: int, most: int | None):
    privacy = Privacy(clip=1.0, most=most, secure=Secure())
    until = Until(seconds=60)
    try:
        algorithm = watched(pooled(name, privacy))
        run = simulate(algorithm, world, seed=seed, until=until, evaluate=None)
    except UsageError:
        assume(False)  # it begins with fewer than 3 clients
    audit = check_journal(list(run.rows()))  # conservation and liveness among its rules
    assert run.stop_reason.startswith("reached") or not audit.present
    for release in run.entries("aggregate"):
        check_release(release, privacy)
    for dropped in run.entries("drop"):
        check_dropped(run, dropped)


@pytest.mark.parametrize("name", [*sum_only(), "port"])
def test_a_pooled_schedule_keeps_every_rule_that_schedules_keep(name: str):
    privacy = Privacy(clip=1.0, secure=Secure())
    check_algorithm(watched(pooled(name, privacy)), [CALM], until=Until(seconds=120))


@pytest.mark.parametrize("name", ["asofed", "fedbuff", "fedcompass"])
def test_of_a_fast_client_one_update_waits_and_it_does_not_get_old(name: str):
    """However long the run: 8 clients of speed 1 and one of speed 50."""
    world = World(seconds_per_step=[1.0] * 8 + [0.02], clients=9)
    privacy = Privacy(clip=1.0, secure=Secure(), least=3, most=9)
    algorithm = watched(pooled(name, privacy, 9))
    run = simulate(algorithm, world, until=Until(tasks=1200), evaluate=None)
    audit = check_journal(list(run.rows()))
    assert audit.ended["dropped"] > 300
    assert run.summary.held <= 9 + 3  # one each in the pool, and those of a buffer
    base = {e["task"]: e["base"] for e in run.entries("train")}
    releases = run.entries("aggregate")
    assert len(releases) > 20
    own = [e["version"] - 1 - base[task] for e in releases for task in e["tasks"]]
    assert max(own) <= 3  # in a queue 50


def test_single_arrivals_become_a_buffer_of_the_least_number_of_clients():
    privacy = Privacy(clip=1.0, secure=Secure(), least=4, most=4)
    run = simulate(pooled("asofed", privacy), CALM, until=Until(tasks=40), evaluate=None)
    sizes = [len(entry["tasks"]) for entry in run.entries("aggregate")]
    assert set(sizes) == {4}
    assert len(sizes) > 5


def test_the_schedule_inside_goes_on_as_if_its_updates_were_aggregated():
    algorithm = pooled("fedcompass", Privacy(clip=1.0, secure=Secure()))
    run = simulate(algorithm, CALM, until=Until(tasks=30), evaluate=None)
    plain = simulate(ALGORITHMS["fedcompass"](2, 9), CALM, until=Until(tasks=30), evaluate=None)

    def tasks(run):
        return [(e["t"], e["client"], e["steps"], e["task"]) for e in run.entries("train")]

    assert tasks(run) == tasks(plain)


def schedule(least: int, most: int, dominance: float = 0.5) -> Pooled:
    privacy = Privacy(clip=1.0, weight_bits=4, least=least, most=most, dominance=dominance, secure=Secure())
    algorithm = ALGORITHMS["fedbuff"]()
    return Pooled(algorithm.schedule, algorithm.aggregator, privacy)


def pool(*given: tuple[int, int]) -> list[PooledUpdate]:
    """Updates of these clients with these weights, tasks in order."""
    return [PooledUpdate(task, client, weight, {}, True) for task, (client, weight) in enumerate(given)]


CHOICES = {
    "too few clients": (schedule(3, 4), pool((0, 5), (1, 5), (0, 5)), []),
    "a client's later update waits": (schedule(3, 4), pool((0, 5), (0, 5), (1, 5), (2, 5)), [0, 2, 3]),
    "the oldest": (schedule(3, 3), pool((0, 5), (1, 5), (2, 5), (3, 5)), [0, 1, 2]),
    "one that has more than half waits for one more": (schedule(3, 4), pool((0, 15), (1, 2), (2, 2)), []),
    "exactly half is not more than half": (schedule(3, 4), pool((0, 4), (1, 2), (2, 2)), [0, 1, 2]),
    "among the most, the heaviest waits": (
        schedule(3, 4),
        pool((0, 15), (1, 2), (2, 2), (3, 2), (4, 2)),
        [1, 2, 3, 4],
    ),
    "without the heaviest fewer are enough": (
        schedule(3, 4),
        pool((0, 15), (1, 2), (2, 2), (3, 2)),
        [1, 2, 3],
    ),
}


@pytest.mark.parametrize("case", CHOICES)
def test_which_updates_are_released(case: str):
    pooling, waiting, expected = CHOICES[case]
    assert [own.task for own in pooling._choose(waiting)] == expected


def test_what_is_left_of_an_aggregation_waits_for_the_next():
    """A release of one would have as much noise as one of three."""
    world = World(seconds_per_step=[1.0, 1.0, 1.0, 9.0], clients=4)
    privacy = Privacy(clip=1.0, noise=Noise(multiplier=1.0))
    run = simulate(pooled("fedbuff", privacy, 4), world, until=Until(tasks=60), evaluate=None)
    sizes = [len(entry["tasks"]) for entry in run.entries("aggregate")]
    assert len(sizes) >= 18
    assert min(sizes) >= 2
    assert run.summary.held <= 6


def test_a_run_that_begins_with_too_few_clients_is_refused():
    privacy = Privacy(clip=1.0, noise=Noise(multiplier=1), least=4)
    with pytest.raises(UsageError, match="least = 4 needs 4 clients, the run begins with 2"):
        simulate(pooled("fedbuff", privacy), World(clients=2), until=Until(versions=3))


def test_a_client_that_leaves_leaves_its_pooled_updates():
    world = World(
        seconds_per_step=[1.0, 2.0, 40.0], clients=3, availability=Availability(leave=[1e9, 50.0, 1e9])
    )
    privacy = Privacy(clip=1.0, secure=Secure())
    run = simulate(pooled("asofed", privacy), world, until=Until(versions=1), evaluate=None)
    (left,), (release,) = run.entries("left"), run.entries("aggregate")
    assert left["t"] < release["t"]
    assert sorted(release["clients"]) == [0, 1, 2]
