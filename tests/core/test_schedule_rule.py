"""A mended schedule: a run goes on, and is replayed, by the rule that it was recorded with."""

import hashlib
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import offbeat as ob
from offbeat.algorithms import recorded_name
from offbeat.algorithms.fedcompass import CompassSchedule
from offbeat.core.errors import RunError
from offbeat.core.schedule_rule import RULE, with_rule
from offbeat.experiment import Experiment
from offbeat.models.specs import LogisticSpec
from offbeat.net.server.open_run import OpenRun, open_run
from offbeat.net.server.server_learner import server_learner
from offbeat.net.server.server_options import ServerOptions
from offbeat.recipes.build import recorded_algorithm, run_recipe
from offbeat.recipes.compare import _check_same
from offbeat.recipes.load import amend
from offbeat.recipes.run_pool import PlannedRun
from offbeat.sim.replay import replay

SPEEDS = [
    [0.04, 0.04, 0.08, 0.04, 0.04, 0.06, 0.04],
    [0.16, 0.16, 0.32, 0.16, 0.16, 0.24, 0.16],
]  # the rules part at row 70
WORLD, UNTIL = ob.World(SPEEDS), ob.Until(tasks=300)
NEW = ob.fedcompass(4, 20, latest=1.0)
OLD = with_rule(NEW, 1)


def digest(algorithm: ob.Algorithm) -> str:
    run = ob.simulate(algorithm, WORLD, until=UNTIL, evaluate=None)
    return hashlib.sha256(json.dumps(run.journal, sort_keys=True).encode()).hexdigest()[:16]


def record(algorithm: ob.Algorithm, directory: Path) -> ob.RunRecord:
    ob.simulate(algorithm, WORLD, until=UNTIL, evaluate=None, out=directory)
    return ob.read_run(directory)


def change_meta(directory: Path, key: str, value: Any) -> None:
    database = sqlite3.connect(directory / "run.db")
    with database:
        database.execute("DELETE FROM checksums")
        database.execute("REPLACE INTO meta (key, value) VALUES (?, ?)", (key, json.dumps(value)))
    database.close()


def test_the_first_rule_gives_the_commands_of_the_version_before_there_was_a_second():
    assert digest(OLD) == "4b519f161dc2578f"  # of that version
    assert digest(NEW) != digest(OLD)


def test_a_record_of_the_first_rule_has_no_number(tmp_path):
    assert RULE not in record(OLD, tmp_path / "old").meta["algorithm"]
    assert record(NEW, tmp_path / "new").meta["algorithm"][RULE] == 2


@pytest.mark.parametrize("recorded", [OLD, NEW], ids=["first", "second"])
@pytest.mark.parametrize("given", [OLD, NEW], ids=["given first", "given second"])
def test_a_replay_follows_the_recorded_rule_whichever_is_given(recorded, given, tmp_path):
    run = record(recorded, tmp_path)
    assert replay(run, given).difference is None
    assert recorded_algorithm(run) == recorded


class Interrupting(ob.NoTraining):
    """Ctrl-C in the training of a task."""

    def train(self, base: Any, task: Any, *rest: Any, **more: Any) -> Any:
        if task.task == 200:
            raise KeyboardInterrupt
        return super().train(base, task, *rest, **more)


def test_a_run_of_the_first_rule_is_resumed_by_it(tmp_path):
    """The record has no number, and the algorithm given is today's."""
    whole = record(OLD, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        ob.simulate(
            OLD,
            WORLD,
            Interrupting(2),
            until=UNTIL,
            evaluate=None,
            out=tmp_path / "part",
            checkpoint_seconds=0,
        )
    assert ob.read_run(tmp_path / "part").status == "interrupted"
    ob.resume(tmp_path / "part", NEW, WORLD, until=UNTIL, evaluate=None)
    resumed = ob.read_run(tmp_path / "part")
    assert resumed.journal == whole.journal
    assert RULE not in resumed.meta["algorithm"]


def test_a_rule_of_a_later_version_is_refused(tmp_path):
    run = record(NEW, tmp_path)
    change_meta(tmp_path, "algorithm", {**run.meta["algorithm"], RULE: 3})
    change_meta(tmp_path, "status", "interrupted")
    with pytest.raises(RunError, match="its schedule has no rule 3"):
        recorded_algorithm(ob.read_run(tmp_path))
    with pytest.raises(RunError, match="schedule_rule was 3, now it is 2"):
        ob.resume(tmp_path, NEW, WORLD, until=UNTIL)


def test_a_rule_does_not_change_the_name_under_which_an_algorithm_is_recorded():
    assert recorded_name(OLD) == recorded_name(NEW) == "fedcompass"
    assert recorded_name(replace(OLD, schedule=CompassSchedule(4, 21, 1.0))) == "fedcompass (changed)"


def test_the_rule_reaches_a_schedule_inside_of_others():
    wrapped = ob.compose(NEW, requests=ob.fedasmu())
    assert wrapped.schedule.rule == 2
    old = with_rule(wrapped, 1)
    assert old.schedule.rule == old.schedule.inner.rule == 1
    assert old.schedule.resolution == 0.0
    assert with_rule(old, 2) == wrapped


def test_other_schedules_have_one_rule():
    assert ob.fedbuff(2).schedule.rule == 1
    assert with_rule(ob.fedbuff(2), 2) == ob.fedbuff(2)


def test_a_planned_run_is_the_recorded_one_whichever_rule_it_has(tmp_path):
    """`compare` and `reproduce` go on with what an earlier version began."""
    recipe = amend(
        {
            "clients": 2,
            "data": {"dataset": "digits", "partition": {"kind": "iid"}},
            "model": {"name": "mlp", "hidden": [4]},
            "algorithm": {"name": "fedcompass", "q_min": 4, "q_max": 20, "latest": 1.0},
            "until": {"tasks": 3},
        },
        [],
        "a test",
    )
    run_recipe(recipe, out=tmp_path)
    described = ob.read_run(tmp_path).meta["algorithm"]
    planned = PlannedRun(recipe, "x", tmp_path)
    for own in (described, {k: v for k, v in described.items() if k != RULE}):
        change_meta(tmp_path, "algorithm", own)
        _check_same(planned, NEW)


def served(directory: Path) -> ob.RunRecord:
    """Serve a run and leave it; its schedule follows the rule that is recorded."""
    learner = server_learner(LogisticSpec(), sample_shape=(4,), classes=2)
    experiment = Experiment(NEW, learner, until=ob.Until(tasks=3), evaluate=ob.Every())
    opened = open_run(experiment, directory, ServerOptions(clients=2))
    assert isinstance(opened, OpenRun)
    opened.store.close()
    record = ob.read_run(directory)
    assert opened.coordinator.server.schedule.rule == record.meta["algorithm"].get(RULE, 1)
    return record


def test_a_served_run_goes_on_by_the_rule_it_was_begun_with(tmp_path):
    described = served(tmp_path).meta["algorithm"]
    assert described[RULE] == 2
    change_meta(tmp_path, "algorithm", {k: v for k, v in described.items() if k != RULE})
    assert RULE not in served(tmp_path).meta["algorithm"]


def test_a_served_run_of_a_later_version_is_refused(tmp_path):
    described = served(tmp_path).meta["algorithm"]
    change_meta(tmp_path, "algorithm", {**described, RULE: 3})
    with pytest.raises(RunError, match="follows rule 3 of the schedule of fedcompass, which this version"):
        served(tmp_path)


def test_sites_are_not_told_of_the_rule_which_earlier_versions_do_not_know(tmp_path):
    assert RULE not in served(tmp_path).meta["plan"]["algorithm"]
