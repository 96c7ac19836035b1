"""Recipes whose world comes from a trace: where the file is looked for, and that a run needs it only once."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import offbeat as ob
from offbeat import cli
from offbeat.core.errors import UsageError
from offbeat.recipes.build import resume_run, run_recipe
from offbeat.recipes.compare import plan
from offbeat.recipes.load import document_of, load_recipe
from offbeat.recipes.recipe import Recipe

TRACE = "client,seconds_per_step,up,from,until\nphone,0.5,1e5,0,20\nlaptop,0.1,,,\nphone,,,30,\n"
DOCUMENT: dict[str, Any] = {
    "data": {"dataset": "digits", "samples": 200, "test_samples": 50, "partition": {"kind": "iid"}},
    "model": {"name": "logistic"},
    "world": {
        "trace": "traces/phones.csv", "jitter": 0.05, "network": {"latency": 0.1},
        "availability": {"dropout": 0.1},
    },
    "algorithm": {"name": "fedbuff", "steps": 4, "size": 1},
    "until": {"seconds": 40},
    "scales": {"alone": {"world.trace": "traces/alone.csv"}},
}  # fmt: skip
BY_HAND = {
    "seconds_per_step": [0.5, 0.1], "jitter": 0.05, "network": {"latency": 0.1, "up": [1e5, None]},
    "availability": {"dropout": 0.1, "intervals": [[[0, 20], [30, None]], [[0, None]]]},
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a recipe and its traces; the current one is another."""
    own, here = tmp_path / "own", tmp_path / "here"
    (own / "traces").mkdir(parents=True)
    here.mkdir()
    (own / "traces" / "phones.csv").write_text(TRACE)
    (own / "traces" / "alone.csv").write_text("client,seconds_per_step\n0,2\n")
    (here / "mine.csv").write_text("client,seconds_per_step\n0,3\n1,4\n2,5\n")
    (own / "recipe.yaml").write_text(yaml.safe_dump(DOCUMENT))
    monkeypatch.chdir(here)
    return own


def load(place: Path, *sets: str, scales: tuple[str, ...] = ()) -> Recipe:
    return load_recipe(str(place / "recipe.yaml"), sets=sets, scales=scales)


def by_hand(place: Path) -> Recipe:
    document = {**DOCUMENT, "world": BY_HAND, "clients": 2}
    (place / "by-hand.yaml").write_text(yaml.safe_dump(document))
    return load_recipe(str(place / "by-hand.yaml"))


def test_the_recipe_is_the_one_with_the_world_written_by_hand(place: Path) -> None:
    assert load(place) == by_hand(place)
    assert document_of(load(place)) == document_of(by_hand(place))


def test_a_path_is_from_the_recipe_and_in_a_set_from_here(place: Path) -> None:
    assert load(place, scales=("alone",)).world.seconds_per_step == [2.0]
    assert load(place, "world.trace=mine.csv").clients == 3
    assert load(place, f"world.trace={place}/traces/alone.csv").clients == 1
    recipe = load_recipe("digits", sets=["world={trace: mine.csv}", "clients=3"])
    assert recipe.world.seconds_per_step == [3.0, 4.0, 5.0]
    recipe = load_recipe(
        "digits", sets=["world.trace=mine.csv", "world.seconds_per_step=null", "clients=null"]
    )
    assert (recipe.clients, recipe.world.jitter) == (3, 0.05)


def test_a_trace_can_be_taken_away(place: Path) -> None:
    recipe = load(place, "world.trace=null", "clients=5")
    assert recipe.world == ob.World(
        jitter=0.05, network=ob.Network(latency=0.1), availability=ob.Availability(dropout=0.1)
    )


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["world.network.up=5"], "world.network.up = 5 is not allowed beside world.trace: "),
        (["world.seconds_per_step={law: constant, mean: 1}"], "world.seconds_per_step = {'law': 'constant'"),
        (["world.availability.intervals=[]"], "world.availability.intervals = [] is not allowed beside"),
        (["world.availability.leave=5"], "intervals say when each client is there"),
        (["world.network=5"], "world.network = 5 is not allowed beside world.trace"),
        (["world.change=0.1"], "change and per_task re-draw a speed"),
        (["clients=3"], "phones.csv has 2; make it that, or leave it out"),
        (["world.clients=3"], "world.clients = 3 is not clients = 2"),
        (["world.trace=[mine.csv]"], "world.trace = ['mine.csv'] is not allowed: should be the path"),
        (["world.trace=nowhere.csv"], "trace nowhere.csv cannot be read"),
        (["world.tracee=mine.csv"], 'unknown key world.tracee; did you mean "trace"?'),
        (["world.network.trace=mine.csv"], "unknown key world.network.trace; known: delay"),
    ],
)
def test_what_does_not_go_together_is_refused(sets: list[str], words: str, place: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(place, *sets)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_trace_clients_must_be_said(place: Path) -> None:
    with pytest.raises(UsageError, match="clients is missing"):
        load(place, "world.trace=null")


def test_a_run_is_resumed_when_its_trace_is_gone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load(place)
    whole = run_recipe(recipe.with_seed(1), out=None)
    train, tasks = ob.TorchLearner.train, iter(range(20))

    def until_it_fails(*arguments: Any, **options: Any) -> Any:
        if next(tasks, None) is None:
            raise ob.RunError("the power is gone")
        return train(*arguments, **options)

    monkeypatch.setattr(ob.TorchLearner, "train", until_it_fails)
    with pytest.raises(ob.RunError, match="the power is gone"):
        run_recipe(recipe.with_seed(1), out=Path("run"))
    monkeypatch.setattr(ob.TorchLearner, "train", train)
    (place / "traces" / "phones.csv").unlink()
    resumed = resume_run(Path("run"))
    assert resumed.journal == whole.journal
    assert resumed.model.values.equal(whole.model.values)
    recorded = ob.read_run("run").recipe
    assert recorded is not None
    assert recorded["world"]["network"]["up"] == [1e5, None]
    assert recorded["clients"] == 2


def test_a_comparison_does_not_go_on_with_another_trace(place: Path) -> None:
    recipe = load(place, "until.tasks=3")
    for job in plan(recipe, ["fedbuff"], 1, Path("out")):
        run_recipe(job.recipe, out=job.directory)
    assert plan(load(place, "until.tasks=3"), ["fedbuff"], 1, Path("out"))
    (place / "traces" / "phones.csv").write_text(TRACE.replace("1e5", "2e5"))
    with pytest.raises(UsageError, match="holds another experiment's run"):
        plan(load(place, "until.tasks=3"), ["fedbuff"], 1, Path("out"))


def test_what_is_wrong_ends_the_command_with_2(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    trace = place / "traces" / "phones.csv"
    trace.write_text(TRACE.replace("1e5", "fast"))
    monkeypatch.setattr(sys, "argv", ["offbeat", "run", str(place / "recipe.yaml"), "--out", "run"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    said = capfd.readouterr().err
    assert said.startswith(f"offbeat: {trace}: line 2: up = 'fast' is not allowed: should be a valid number")
    assert said.count("\n") == 1
    assert not Path("run").exists()
