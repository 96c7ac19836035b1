"""Runs recorded with an option that there is no more are refused by what has changed, not gone on with."""

import json
import sqlite3
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.core.errors import RunError
from offbeat.recipes.build import recorded_algorithm, resume_run, run_recipe
from offbeat.recipes.compare import plan
from offbeat.recipes.load import load_recipe

GONE = "there is no option limit any more: give `threshold`"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A run of FedASMU as it was recorded when it had `limit`, by default as many as m'."""
    sets = ["clients=3", "until.tasks=3", "algorithm=fedasmu", "algorithm.steps=2", "algorithm.size=3"]
    recipe = load_recipe("digits", sets=sets)
    run_recipe(recipe, out=tmp_path / "run")
    database = sqlite3.connect(tmp_path / "run" / "run.db")
    [(text,)] = database.execute("SELECT value FROM meta WHERE key = 'algorithm'").fetchall()
    options = json.loads(text)
    options["limit"] = options.pop("threshold")
    options |= {"lam": 1.0, "mu_beta": 1.0, **options.pop("merge")}
    with database:
        database.execute("DELETE FROM checksums")
        database.execute("UPDATE meta SET value = ? WHERE key = 'algorithm'", [json.dumps(options)])
        database.execute("UPDATE meta SET value = '\"interrupted\"' WHERE key = 'status'")
    database.close()
    return tmp_path / "run"


def test_a_replay_and_a_resumption_by_name_say_so(recorded: Path) -> None:
    message = f"{recorded} was recorded by a version of Offbeat with other options: fedasmu: {GONE}"
    with pytest.raises(RunError) as error:
        recorded_algorithm(ob.read_run(recorded))
    assert message in str(error.value)
    with pytest.raises(RunError) as error:
        resume_run(recorded)
    assert message in str(error.value)


def test_a_resumption_from_python_says_so(recorded: Path) -> None:
    algorithm = ob.fedasmu(steps=2, size=3)
    world, learner = ob.World(1.0, clients=3), ob.NoTraining(3)
    with pytest.raises(RunError, match="limit was None, now it is not given"):
        ob.resume(recorded, algorithm, world, learner, until=ob.Until(tasks=5))


def test_a_comparison_from_before_an_option_goes_on(tmp_path: Path) -> None:
    """What the run's recipe does not name has its default."""
    recipe = load_recipe("digits", sets=["clients=3", "until.tasks=3", "data.samples=60"])
    [job] = plan(recipe, ["fedavg"], 1, tmp_path)
    run_recipe(job.recipe, out=job.directory)
    database = sqlite3.connect(job.directory / "run.db")
    [(text,)] = database.execute("SELECT value FROM meta WHERE key = 'recipe'").fetchall()
    recorded = json.loads(text)
    del recorded["training"]["accumulate"]
    with database:
        database.execute("DELETE FROM checksums")
        database.execute("UPDATE meta SET value = ? WHERE key = 'recipe'", [json.dumps(recorded)])
    database.close()
    assert plan(recipe, ["fedavg"], 1, tmp_path)
