"""How versions follow from updates: commands that wait for a sum, and runs in which nothing waits."""

import pytest
import torch

import offbeat as ob
from offbeat.core.aggregator import Update
from offbeat.core.commands import Aggregate, Command, Drop, Stop
from offbeat.core.errors import AlgorithmError
from offbeat.core.events import Arrived, Joined, Left, Lost, Released, Skipped, Timer
from offbeat.core.learner import LocalResult
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.core.privacy.privacy_options import Noise, Privacy, Secure
from offbeat.core.privacy.releases import AwaitedSums, ReleaseSeeds, SummedUpdates, release_of
from offbeat.core.release import EachUpdate, MadeAtOnce, Release
from offbeat.core.schedule import Task

SEEDS = ReleaseSeeds(lambda release: bytes(32), lambda task, release: bytes(32))
FIRST, SECOND = Aggregate((0,), version=1), Aggregate((1,), version=2)
DROP, STOP = Drop(7, "old"), Stop("over")


def plan(**options: object) -> ReleasePlan:
    return ReleasePlan(Privacy(clip=1.0, weight_bits=0, least=3, most=3, **options), 4, 5)  # type: ignore[arg-type]


def release(**options: object) -> Release:
    return release_of(plan(**options) if options else None, SEEDS)


def awaited() -> AwaitedSums:
    made = release(secure=Secure(("a", "b")))
    assert isinstance(made, AwaitedSums)
    return made


def test_a_run_has_the_release_that_its_plan_asks_for():
    assert type(release()) is EachUpdate
    assert type(release(noise=Noise(multiplier=1.0))) is SummedUpdates
    assert type(awaited()) is AwaitedSums
    assert (release().fewest, awaited().fewest) == (1, 3)


@pytest.mark.parametrize("made", [release(), release(noise=Noise(multiplier=1.0))])
def test_nothing_waits_where_a_version_is_made_at_once(made: MadeAtOnce):
    commands: list[Command] = [DROP, FIRST, STOP, SECOND]
    made.admit(Joined(0, 1, 1))
    assert made.due(commands) == commands
    assert made.waiting == ()
    with pytest.raises(AlgorithmError, match="no release waits for its sum"):
        made.resume(Released(1))


def test_an_aggregation_and_all_after_it_wait_for_its_sum():
    made = awaited()
    assert made.due([DROP, FIRST, STOP, SECOND, DROP]) == [DROP]
    assert made.waiting == [FIRST, STOP, SECOND, DROP]
    assert made.due([]) == []
    assert made.waiting == [FIRST, STOP, SECOND, DROP]
    assert made.resume(Released(1)) is FIRST
    assert made.due([]) == [STOP]
    assert made.waiting == [SECOND, DROP]
    assert made.resume(Released(2)) is SECOND
    assert made.due([]) == [DROP]
    assert made.waiting == []
    with pytest.raises(AlgorithmError, match="no release waits"):
        made.resume(Released(3))


@pytest.mark.parametrize("event", [Joined(0, 1, 1), Left(0), Arrived(0, 0, 1), Lost(0, 0), Timer("t")])
def test_no_event_that_a_schedule_sees_comes_before_the_sum(event: Joined | Left | Arrived | Lost | Timer):
    made = awaited()
    made.admit(event)
    assert made.due([FIRST]) == []
    with pytest.raises(AlgorithmError, match="a release waits for its sum"):
        made.admit(event)
    made.admit(Skipped(1, "absurd"))
    made.admit(Released(1))


def test_each_update_by_itself_is_the_aggregators_own_step():
    algorithm, model = ob.fedbuff(size=1, steps=1), ob.Model.empty(ob.Layout.flat(2))
    update = Update(Task(0, 0, 0, 1, 0.0, staleness=0), model, torch.tensor([1.0, 2.0]), model.integers, {})
    step = release().step([update], algorithm.aggregator, model, {}, FIRST)
    assert step.tolist() == algorithm.aggregator.step([update], model, {}).tolist() == [1.0, 2.0]


def test_single_updates_are_judged_without_privacy_alone():
    update = LocalResult(torch.zeros(2), torch.zeros(0, dtype=torch.int64), {})

    def check(client: int, task: int, steps: int, result: LocalResult) -> str:
        assert (client, task, steps, result) == (4, 3, 7, update)
        return "absurd"

    assert release().judge(check, 4, 3, 7, update) == "absurd"
    assert awaited().judge(check, 4, 3, 7, update) is None
    release().excuse(3, ValueError("torn"), "here")
    with pytest.raises(ob.RunError, match=r"the stored update of task 3 is damaged .* and with privacy"):
        awaited().excuse(3, ValueError("torn"), "here")
