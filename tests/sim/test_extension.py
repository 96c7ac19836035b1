"""A run that has ended, and is given more, ends as if it had had the later limits from the start."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import offbeat as ob
from offbeat.runs.extension import recorded_until
from offbeat.runs.files import read_tensors
from offbeat.runs.verify import verify
from tests.options import FEW
from tests.sampling import mostly_thorough, thorough
from tests.sim.sim_worlds import CALM, WORLDS, Wrapped, digits, make, on_disk, outcome
from tests.sim.test_interruption import Interrupting

FIRST, THEN = ob.Until(tasks=31), ob.Until(tasks=60)


def simulated(
    directory: Path, learner: Any, name: str, until: ob.Until, world: ob.World = CALM, **more: Any
) -> ob.Run:
    return ob.simulate(make(name), world, learner, seed=4, until=until, out=directory, **more)


def noisy(epsilon: float | None) -> ob.Privacy:
    return ob.Privacy(clip=1.0, noise=ob.Noise(multiplier=2.0, budget=ob.Budget(epsilon, 1e-3)))


def journal_mode(directory: Path) -> str:
    database = sqlite3.connect(directory / "run.db")
    try:
        return str(database.execute("PRAGMA journal_mode").fetchone()[0])
    finally:
        database.close()


def resumed(directory: Path, learner: Any, name: str, until: ob.Until | None, **more: Any) -> ob.Run:
    world = more.pop("world", CALM)
    return ob.resume(directory, make(name), world, learner, until=until, **more)


@pytest.mark.parametrize("where", ["hard", *thorough("calm")])
@pytest.mark.parametrize("name", mostly_thorough([*ob.ALGORITHMS], FEW))
def test_extended_twice(name: str, where: str, learner: ob.TorchLearner, tmp_path: Path) -> None:
    world, grown = WORLDS[where], tmp_path / "grown"
    whole = simulated(tmp_path / "whole", learner, name, THEN, world)
    simulated(grown, learner, name, ob.Until(tasks=13), world)
    for until in (FIRST, THEN):
        run = resumed(grown, learner, name, until, world=world)
    assert outcome(run) == outcome(whole)
    assert on_disk(grown) == on_disk(tmp_path / "whole")
    assert not verify(grown).problems
    assert recorded_until(ob.read_run(grown)) == THEN


@pytest.mark.parametrize("every", [ob.Every(seconds=0.7), *thorough(ob.Every(versions=4))])
@pytest.mark.parametrize(
    "first",
    [
        ob.Until(seconds=39.6),
        ob.Until(seconds=39.9),  # at the moment of an evaluation
        ob.Until(versions=15),
        ob.Until(accuracy=0.5),
        ob.Until(early_stopping=ob.EarlyStopping("accuracy", 2, 0.2)),
    ],
    ids=["seconds", "moment", "versions", "accuracy", "stopping"],
)
def test_what_ended_it_leaves_no_trace(
    first: ob.Until, every: ob.Every, learner: ob.TorchLearner, tmp_path: Path
) -> None:
    then = ob.Until(seconds=120.0)
    whole = simulated(tmp_path / "whole", learner, "fedbuff", then, evaluate=every)
    ended = simulated(tmp_path / "grown", learner, "fedbuff", first, evaluate=every)
    assert len(ended.journal) < len(whole.journal)
    run = resumed(tmp_path / "grown", learner, "fedbuff", then, evaluate=every)
    assert outcome(run) == outcome(whole)
    assert on_disk(tmp_path / "grown") == on_disk(tmp_path / "whole")


def test_interrupted_in_what_was_added(learner: ob.TorchLearner, tmp_path: Path) -> None:
    whole = simulated(tmp_path / "whole", learner, "fedcompass", THEN)
    simulated(tmp_path / "grown", learner, "fedcompass", FIRST)
    late = whole.entries("arrived")[50]["task"]
    with pytest.raises(KeyboardInterrupt):
        resumed(tmp_path / "grown", Interrupting(learner, [late]), "fedcompass", THEN)
    record = ob.read_run(tmp_path / "grown")
    assert (record.status, record.stop_reason, record.summary) == ("interrupted", None, None)
    assert not (tmp_path / "grown" / "model.safetensors").exists()
    assert journal_mode(tmp_path / "grown") == "wal"  # whoever reads does not hold up the writer
    run = resumed(tmp_path / "grown", learner, "fedcompass", None)  # the limits that it was last given
    assert outcome(run) == outcome(whole)
    assert on_disk(tmp_path / "grown") == on_disk(tmp_path / "whole")
    assert journal_mode(tmp_path / "grown") == "delete"


def test_another_best_model_is_refused_before_anything_changes(
    learner: ob.TorchLearner, tmp_path: Path
) -> None:
    simulated(
        tmp_path / "run", learner, "fedbuff", FIRST, evaluate=ob.Every(versions=1, keep_best="accuracy")
    )
    by_loss = ob.Every(versions=1, keep_best="loss")
    with pytest.raises(ob.UsageError, match="is the best model by accuracy"):
        resumed(tmp_path / "run", learner, "fedbuff", THEN, evaluate=by_loss)
    assert ob.read_run(tmp_path / "run").status == "finished"


def test_recorded_limits_are_read_back(learner: ob.TorchLearner, tmp_path: Path) -> None:
    until = ob.Until(tasks=5, metric="loss", reaches=0.1, early_stopping=ob.EarlyStopping("accuracy", 3, 0.1))
    simulated(tmp_path / "run", learner, "fedbuff", until)
    assert recorded_until(ob.read_run(tmp_path / "run")) == until


def test_it_stays_as_it_is(learner: ob.TorchLearner, tmp_path: Path) -> None:
    """Without other limits, with limits that it has reached, or with those that it had."""
    ended = simulated(tmp_path / "run", learner, "fedbuff", FIRST)
    before = on_disk(tmp_path / "run")
    for until in (None, FIRST, ob.Until(tasks=10), ob.Until(seconds=ended.summary.seconds, versions=10**6)):
        assert outcome(resumed(tmp_path / "run", learner, "fedbuff", until)) == outcome(ended)
        assert on_disk(tmp_path / "run") == before


def test_no_checkpoint_was_kept(learner: ob.TorchLearner, tmp_path: Path) -> None:
    ended = simulated(tmp_path / "run", learner, "fedbuff", FIRST, keep_checkpoint=False)
    assert {path.name for path in (tmp_path / "run").glob("*.safetensors")} == {"model.safetensors"}
    assert outcome(resumed(tmp_path / "run", learner, "fedbuff", None)) == outcome(ended)
    with pytest.raises(ob.UsageError, match=r"has ended \(reached 31 client tasks\) and cannot go on"):
        resumed(tmp_path / "run", learner, "fedbuff", THEN)
    assert ob.read_run(tmp_path / "run").status == "finished"


def test_ended_by_more_than_limits(learner: ob.TorchLearner, tmp_path: Path) -> None:
    """A budget of privacy that is spent ends a run whatever its limits."""
    more: dict[str, Any] = {"privacy": noisy(epsilon=8.0)}
    ended = simulated(tmp_path / "run", learner, "fedavg", ob.Until(versions=10**4), **more)
    assert "budget" in ended.stop_reason
    with pytest.raises(ob.RunError, match=r"cannot go on from its checkpoint, which is at version .*budget"):
        resumed(tmp_path / "run", learner, "fedavg", ob.Until(versions=10**5), **more)
    assert ob.read_run(tmp_path / "run").status == "finished"


def test_noise_goes_on(learner: ob.TorchLearner, tmp_path: Path) -> None:
    privacy = noisy(epsilon=None)
    whole = simulated(tmp_path / "whole", learner, "fedbuff", THEN, privacy=privacy)
    simulated(tmp_path / "grown", learner, "fedbuff", FIRST, privacy=privacy)
    run = resumed(tmp_path / "grown", learner, "fedbuff", THEN, privacy=privacy)
    assert outcome(run) == outcome(whole)
    assert on_disk(tmp_path / "grown") == on_disk(tmp_path / "whole")


def test_limits_below_the_checkpoint(learner: ob.TorchLearner, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        simulated(tmp_path / "run", Interrupting(learner, [40]), "fedbuff", THEN)
    with pytest.raises(ob.RunError, match=r"cannot go on from its checkpoint.*reached 5 client tasks"):
        resumed(tmp_path / "run", learner, "fedbuff", ob.Until(tasks=5))


def test_the_best_version_stays(learner: ob.TorchLearner, tmp_path: Path) -> None:
    every = ob.Every(versions=1, keep_best="accuracy")
    simulated(tmp_path / "whole", learner, "fedbuff", THEN, evaluate=every)
    simulated(tmp_path / "grown", learner, "fedbuff", FIRST, evaluate=every)
    resumed(tmp_path / "grown", learner, "fedbuff", THEN, evaluate=every)
    whole, grown = (read_tensors(tmp_path / name / "best.safetensors") for name in ("whole", "grown"))
    assert all(bool((whole[key] == grown[key]).all()) for key in whole)


def test_killed_between(learner: ob.TorchLearner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies just after the run goes on leaves it where it can go on again."""
    whole = simulated(tmp_path / "whole", learner, "fedbuff", THEN)
    simulated(tmp_path / "grown", learner, "fedbuff", FIRST)

    class Died(BaseException):
        pass

    class Dying(Wrapped):
        def before(self, task: Any) -> None:
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr("offbeat.runs.store.RunStore.abandon", lambda self, status: self.close())
        with pytest.raises(Died):
            resumed(tmp_path / "grown", Dying(learner), "fedbuff", THEN)
    assert ob.read_run(tmp_path / "grown").status == "running"
    assert outcome(resumed(tmp_path / "grown", learner, "fedbuff", None)) == outcome(whole)


def test_what_differs_is_told_before_the_place_of_a_lambda(tmp_path: Path) -> None:
    data = digits().data

    def linear() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def learner(lr: float) -> ob.TorchLearner:
        return ob.TorchLearner(lambda: linear(), data, ob.Training(lr=lr))

    other = ob.TorchLearner(lambda: linear(), data, ob.Training(lr=0.2))
    ob.simulate(ob.fedavg(steps=1), learner=learner(0.1), until=ob.Until(versions=1), out=tmp_path / "run")
    with pytest.raises(ob.RunError, match=r"was started with another training: lr was 0\.1, now it is 0\.2"):
        ob.resume(tmp_path / "run", ob.fedavg(steps=1), learner=other, until=ob.Until(versions=2))
