"""What holds for every algorithm in every world, checked on the journal alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import offbeat as ob
from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.wireless import AgeWeighted, RadioIterations
from offbeat.algorithms.wireless.over_radio import OverRadio, UploadSlots
from offbeat.algorithms.wireless.policies import AgeBased, BestChannel, Random
from offbeat.core.programme import Programme
from offbeat.local.objectives import Plain
from offbeat.testing import JournalAudit, check_determinism, check_replay, check_run
from offbeat.testing.strategies import worlds
from offbeat.world.channel import Channel, Rayleigh, Rician
from tests.options import algorithms
from tests.sampling import examples

EVERY = pytest.mark.parametrize("name", ALGORITHMS)
SLOW = {"suppress_health_check": [HealthCheck.too_slow]}


def make(name: str, data: st.DataObject, world: ob.World) -> ob.Algorithm:
    return data.draw(algorithms(name, world.clients), label="algorithm")


# ---- what the schedules of the package keep, beyond the rules for every algorithm ----


def invariant(algorithm: ob.Algorithm) -> Callable[[JournalAudit], None]:
    """The rule of an algorithm's schedule, also of one around which another is."""
    schedule: Any = getattr(algorithm.schedule, "inner", algorithm.schedule)
    rule = RULES.get(type(schedule).__name__)
    return lambda audit: rule(audit, schedule) if rule is not None and audit.begun else None


def limit(audit: JournalAudit, schedule: Any) -> int:
    """How many clients the schedule lets train at the same time."""
    return min(schedule.concurrency or len(audit.present), len(audit.present))


def buffered(audit: JournalAudit, schedule: Any) -> None:
    audit.check(len(audit.running) == limit(audit, schedule), "buffer", "as many train as may")
    audit.check(len(audit.held) < schedule.size, "buffer", "a full buffer is aggregated")


def rounds(audit: JournalAudit, schedule: Any) -> None:
    audit.check(bool(audit.running) == bool(audit.present), "rounds", "somebody trains")
    at_most = schedule.concurrency or len(audit.present)
    audit.check(len(audit.running) <= at_most, "rounds", "no more train than may")


def full_first_rounds(audit: JournalAudit, schedule: Any) -> None:
    """Rounds whose first one takes all: no more train than may, once there is a version."""
    audit.check(bool(audit.running) == bool(audit.present), "rounds", "somebody trains")
    begun = [task for task in audit.running.values() if task.base > 0]
    at_most = schedule.concurrency or len(audit.present)
    audit.check(len(begun) <= at_most, "rounds", "no more train than may")


def first_rounds(audit: JournalAudit, schedule: Any) -> None:
    """The first k of n: somebody trains, and a round that has what closes it is closed."""
    audit.check(bool(audit.running) == bool(audit.present), "first of", "somebody trains")
    audit.check(schedule.window is not None or not audit.timers, "first of", "no window, no timer")
    if schedule.late == "drop":
        audit.check(not schedule.k or len(audit.held) < schedule.k, "first of", "the k-th update closes")
        late = bool(schedule.window and audit.held and not audit.timers)
        audit.check(not late or len(audit.held) < schedule.least, "first of", "the window's end closes")


def compass(audit: JournalAudit, schedule: Any) -> None:
    last = {task.client: task for task in audit.tasks}
    for client, event in audit.idle.items():
        audit.check(event.name == "arrived", "groups", f"client {client} is idle after {event.name}")
        timer = f"group {last[client].note['group']}"
        audit.check(timer in audit.timers, "groups", f"client {client} waits in a group without a timer")


def radio(audit: JournalAudit, schedule: Any) -> None:
    waiting = sum(task.ready for task in audit.running.values())
    goes_on = waiting < len(audit.running) or audit.timers or audit.measuring or not audit.present
    audit.check(bool(goes_on), "radio", "nothing waits without a reason")


def bounded(audit: JournalAudit, schedule: Any) -> None:
    """PORT: nobody gets too stale, and nothing waits without a reason."""
    audit.check(bool(audit.running) == bool(audit.present), "port", "somebody trains")
    at_most = schedule.concurrency or len(audit.present) or 1
    audit.check(len(audit.running) <= at_most, "port", "no more train than may")
    audit.check(max(audit.staleness, default=0) <= schedule.tau_max, "port", "staleness is bounded")
    tasks = audit.running.values()
    overdue = [task for task in tasks if audit.version - task.base >= schedule.tau_max]
    full = len(audit.held) >= schedule.size
    audit.check(not full or bool(overdue), "port", "a full buffer waits for overdue tasks only")
    recalled = [task.id for task in audit.tasks if task.recalled]
    if schedule.urgent and full:
        audit.check(all(task.recalled for task in overdue), "port", "overdue tasks are recalled")
    else:
        audit.check(schedule.urgent or not recalled, "port", "nobody is recalled unless it is urgent")


RULES = {
    "Buffered": buffered, "Rounds": rounds, "FullFirstRounds": full_first_rounds, "FirstRounds": first_rounds,
    "CompassSchedule": compass, "RadioIterations": radio, "Bounded": bounded,
}  # fmt: skip


@EVERY
@examples(100, **SLOW)
@given(st.data(), worlds(), st.integers(0, 2**63 - 1))
def test_every_task_ends_once_and_the_run_goes_on(name, data, world, seed):
    algorithm = make(name, data, world)
    check_run(algorithm, world, seed, invariant=invariant(algorithm))


@EVERY
@examples(20, **SLOW)
@given(st.data(), worlds(), st.integers(0, 1000))
def test_the_same_seed_gives_the_same_journal_and_so_does_a_replay(name, data, world, seed):
    algorithm = make(name, data, world)
    check_determinism(algorithm, world, seed)
    check_replay(algorithm, world, seed)


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
def test_every_task_ends_once_over_a_radio_too(algorithm, channel, world, seed):
    check_run(algorithm, replace(world, channel=channel), seed, invariant=invariant(algorithm))


def test_different_seeds_differ():
    world = ob.World(ob.laws.Uniform(1.0, 2.0), clients=4)
    until = ob.Until(tasks=80)
    journals = [ob.simulate(ob.fedcompass(2, 8), world, seed=seed, until=until).journal for seed in range(3)]
    assert journals[0] != journals[1] != journals[2] != journals[0]
