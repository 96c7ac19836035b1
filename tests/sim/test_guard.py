"""One absurd update does not end a simulated run, and the guard changes nothing in an honest one."""

from functools import cache
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

import offbeat as ob
from offbeat.core.learner import LocalResult, LocalTask
from offbeat.sim.replay import replay
from offbeat.testing import check_journal
from tests.sampling import thorough
from tests.sim.sim_worlds import CALM, digits, make, outcome

ATTACKER = 0


class Attacked(ob.TorchLearner):
    """From the twelfth task on, one client sends its update many times as large."""

    times, interrupted = 1e30, -1

    def train(self, base, task: LocalTask, *rest) -> LocalResult:  # type: ignore[no-untyped-def]
        if task.task == self.interrupted:
            raise KeyboardInterrupt
        result = super().train(base, task, *rest)
        if task.client != ATTACKER or task.task < 12:
            return result
        return replace(result, delta=result.delta * self.times)


def learner(times: float | None = None) -> ob.TorchLearner:
    plain = digits()
    if times is None:
        return plain
    attacked = Attacked(plain.module, plain.data, plain.training)
    attacked.times = times
    return attacked


def refused(run: ob.Run) -> list[dict[str, object]]:
    return [e for e in run.entries("lost") if str(e["reason"]).startswith("rejected: the norm of its")]


@cache
def honest_run(name: str, until: ob.Until) -> ob.Run:
    """The run without an attacker, which several tests compare with."""
    return ob.simulate(make(name), CALM, learner(), until=until, evaluate=ob.Every(versions=1000))


@pytest.mark.parametrize("times", [100.0, float("nan"), *thorough(1e3, 1e6, 1e30)])
@pytest.mark.parametrize(
    "name", ["fedbuff", *thorough("fedasync", "fedavg", "fedcompass", "fedfa", "scaffold")]
)
def test_one_absurd_client_is_refused_and_the_others_learn(name: str, times: float) -> None:
    until = ob.Until(tasks=150)
    honest = honest_run(name, until)
    run = ob.simulate(make(name), CALM, learner(times), until=until, evaluate=ob.Every(versions=1000))
    assert {entry["client"] for entry in refused(run)} == {ATTACKER}
    assert not refused(honest)
    assert run.summary.accuracy is not None
    assert honest.summary.accuracy is not None
    assert run.summary.accuracy > honest.summary.accuracy - 0.1
    assert ruined(name, times, until, honest.summary.accuracy - 0.2)


def ruined(name: str, times: float, until: ob.Until, accuracy: float) -> bool:
    """Whether the same run without a guard fails, or ends below an accuracy."""
    try:
        run = ob.simulate(
            make(name), CALM, learner(times), until=until, evaluate=ob.Every(versions=1000), guard=None
        )
    except ob.RunError as error:
        return "diverged" in str(error) or "not finite" in str(error)
    return (run.summary.accuracy or 0.0) < accuracy


def test_a_run_with_refused_updates_is_resumed_and_replayed(tmp_path: Path) -> None:
    until, interrupted = ob.Until(tasks=60), learner(1e6)
    whole = ob.simulate(make("fedbuff"), CALM, learner(1e6), until=until, out=tmp_path / "whole")
    assert refused(whole)
    interrupted.interrupted = 40  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        ob.simulate(
            make("fedbuff"), CALM, interrupted, until=until, out=tmp_path / "part", checkpoint_seconds=0
        )
    checkpoint = ob.read_run(tmp_path / "part").checkpoint()
    assert checkpoint is not None
    assert checkpoint.guard is not None
    assert checkpoint.guard["norms"]["parameters"]["accepted"]
    again = ob.resume(tmp_path / "part", make("fedbuff"), CALM, learner(1e6), until=until)
    assert outcome(again) == outcome(whole)
    assert replay(ob.read_run(tmp_path / "whole"), make("fedbuff")).difference is None


class Poisons(ob.TorchLearner):
    """One client, which is faster than the others, sends 95 times the model's norm from its first task on."""

    interrupted = -1

    def train(self, base, task: LocalTask, *rest) -> LocalResult:  # type: ignore[no-untyped-def]
        if task.task == self.interrupted:
            raise KeyboardInterrupt
        result = super().train(base, task, *rest)
        if task.client != ATTACKER:
            return result
        size = 95 * (1 + float(base.values.norm())) * task.steps**0.5 / float(result.delta.norm())
        return replace(result, delta=result.delta * -size)


def poisoning() -> Poisons:
    plain = digits()
    return Poisons(plain.module, plain.data, plain.training)


FAST_ATTACKER = ob.World(seconds_per_step=[0.1, 1.5, 2.0, 2.5, 3.0], channel=CALM.channel)


def slow_enough(name: str) -> ob.Algorithm:
    """An algorithm with options by which four of the clients learn; a window of whole steps overshoots."""
    return ob.fedfa(3, steps=4, concurrency=4, server_lr=0.5) if name == "fedfa" else make(name)


@pytest.mark.parametrize(
    "name", ["fedasmu", *thorough("fedasync", "fedbuff", "fedcompass", "fedfa", "scaffold", "fedavgm")]
)
def test_poison_before_the_others_have_delivered_is_withdrawn(name: str) -> None:
    """The run goes back to the initial model once most clients have delivered, and learns."""
    until = ob.Until(tasks=250)
    algorithm = slow_enough(name)
    run = ob.simulate(algorithm, FAST_ATTACKER, poisoning(), until=until, evaluate=ob.Every(versions=1000))
    back = run.entries("rolled_back")
    assert len(back) <= 1
    assert {row["to"] for row in back} <= {0}
    assert name != "fedasync" or "is poisoned: the norm of the parameters of" in str(back[0]["reason"])
    check_journal(list(run.rows()))
    assert run.summary.accuracy is not None
    assert run.summary.accuracy > 0.6


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> tuple[ob.Run, Path]:
    """A poisoned run that nobody interrupts, and its directory."""
    place = tmp_path_factory.mktemp("poisoned") / "whole"
    run = ob.simulate(make("fedasync"), FAST_ATTACKER, poisoning(), until=ob.Until(tasks=80), out=place)
    return run, place


@pytest.mark.parametrize("moment", ["after", *thorough("before")])
def test_a_poisoned_run_is_resumed_and_replayed(
    moment: str, poisoned: tuple[ob.Run, Path], tmp_path: Path
) -> None:
    until, (whole, place) = ob.Until(tasks=80), poisoned
    rows = list(ob.read_run(place).rows())
    (back,) = [row.seq for row in rows if row.name == "rolled_back"]
    trained = [row.task for row in rows if row.name == "arrived" and row.client != ATTACKER]
    ended = [row.task for row in rows if row.name == "arrived" and row.seq < back]
    interrupted = poisoning()
    interrupted.interrupted = ended[-3] if moment == "before" else trained[-2]  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        ob.simulate(
            make("fedasync"),
            FAST_ATTACKER,
            interrupted,
            until=until,
            out=tmp_path / "part",
            checkpoint_seconds=0,
        )
    again = ob.resume(tmp_path / "part", make("fedasync"), FAST_ATTACKER, poisoning(), until=until)
    assert outcome(again) == outcome(whole)
    assert replay(ob.read_run(place), make("fedasync")).difference is None


def test_the_guard_changes_nothing_in_an_honest_run() -> None:
    until = ob.Until(tasks=40)
    with_it = ob.simulate(make("fedasync"), CALM, learner(), until=until)
    assert outcome(with_it) == outcome(
        ob.simulate(make("fedasync"), CALM, learner(), until=until, guard=None)
    )


def test_a_run_all_of_whose_updates_are_refused_ends() -> None:
    class Wild(ob.TorchLearner):
        def train(self, base, task: LocalTask, *rest) -> LocalResult:  # type: ignore[no-untyped-def]
            result = super().train(base, task, *rest)
            return replace(result, delta=result.delta * float("nan"))

    plain = digits()
    wild = Wild(plain.module, plain.data, plain.training)
    run = ob.simulate(make("fedbuff"), CALM, wild, until=ob.Until(versions=50), evaluate=None)
    assert run.stop_reason == "the last 10 updates were refused for their size: the training has diverged"
    assert bool(torch.isfinite(run.model.values).all())
