"""A run is simulated again in the world that its journal tells of."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.recipes.build import run_recipe
from offbeat.recipes.from_run import fit_run, simulate_like, world_document, world_text
from offbeat.recipes.load import check
from offbeat.recipes.recipe import Recipe
from offbeat.runs.record import RunRecord, read_run

DOCUMENT: dict[str, Any] = {
    "clients": 5,
    "data": {"dataset": "digits", "partition": {"kind": "iid"}},
    "model": {"name": "logistic"},
    "training": {"lr": 0.3},
    "world": {
        "seconds_per_step": [0.1, 0.2, 0.4, 0.5, 1.0], "jitter": 0.05, "availability": {"dropout": 0.1},
    },
    "algorithm": {"label": "mine", "name": "fedcompass", "q_min": 4, "q_max": 20},
    "algorithms": {"fedbuff": {"steps": 10, "size": 2}},
    "until": {"seconds": 100},
    "evaluate": {"seconds": 5},
}  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    place = tmp_path_factory.mktemp("like") / "run"
    recipe = check(DOCUMENT, "test")
    run_recipe(recipe, out=place)
    return read_run(place)


def go(recipe: Recipe, seed: int = 1) -> ob.Run:
    return run_recipe(recipe.with_seed(seed), out=None)


def test_the_same_algorithm_in_the_fitted_world_does_much_the_same(recorded: RunRecord) -> None:
    """Seeds differ, so the worlds' draws do: versions and updates within 10 %, accuracy within 0.05."""
    before, after = recorded.meta["summary"], go(simulate_like(recorded).recipe).summary
    assert after.versions == pytest.approx(before["versions"], rel=0.1)
    assert after.tasks == pytest.approx(before["tasks"], rel=0.1)
    assert after.accuracy == pytest.approx(before["accuracy"], abs=0.05)
    assert after.mean_staleness == pytest.approx(before["mean_staleness"], abs=0.3)


def test_accuracy_over_time_is_alike(recorded: RunRecord) -> None:
    then = {m["t"]: m["accuracy"] for m in recorded.metrics}
    now = {m["t"]: m["accuracy"] for m in go(simulate_like(recorded).recipe).metrics}
    late = [t for t in then if t >= 20 and t in now]
    assert len(late) > 10
    for t in late:
        assert now[t] == pytest.approx(then[t], abs=0.08)


def test_another_algorithm_by_its_label_with_changes(recorded: RunRecord) -> None:
    like = simulate_like(recorded, algorithm="fedbuff", sets=["algorithm.size=3", "until.seconds=20"])
    assert like.recipe.algorithm == {"label": "fedbuff", "name": "fedbuff", "steps": 10, "size": 3}
    assert like.recipe.until.seconds == 20
    assert like.recipe.world.seconds_per_step == like.fit.world.seconds_per_step
    assert go(like.recipe).summary.versions > 0


def test_one_that_is_not_in_the_recipe_is_taken_with_its_defaults(recorded: RunRecord) -> None:
    assert simulate_like(recorded, algorithm="fedasync").recipe.algorithm["name"] == "fedasync"
    own = simulate_like(recorded, algorithm="fedbuff", sets=["algorithms.fedbuff.size=4", "until.seconds=20"])
    assert own.recipe.algorithm["size"] == 4, "an option of the label, which is chosen afterwards"
    with pytest.raises(UsageError, match="fedbuf"):
        simulate_like(recorded, algorithm="fedbuf")


def test_the_fitted_world_can_be_changed(recorded: RunRecord) -> None:
    like = simulate_like(recorded, sets=["world.availability.dropout=0", "world.jitter=0"])
    assert like.recipe.world.availability.dropout == 0
    assert like.recipe.world.jitter == 0


def test_a_world_survives_its_text(recorded: RunRecord) -> None:
    fit = fit_run(recorded)
    document = yaml.safe_load(world_text(fit.world))
    assert document == {"world": world_document(fit.world)}
    assert "clients" not in document["world"]
    again = check(DOCUMENT | document, "test")
    assert again.world.seconds_per_step == fit.world.seconds_per_step
    assert again.world.availability == fit.world.availability


def test_the_speeds_are_near_the_true_ones(recorded: RunRecord) -> None:
    fit = fit_run(recorded)
    for speed, own in zip([0.1, 0.2, 0.4, 0.5, 1.0], fit.clients, strict=True):
        assert own.seconds_per_step == pytest.approx(speed, rel=5 * 0.05 / own.arrived**0.5)


def test_a_run_from_python_has_no_recipe(tmp_path: Path) -> None:
    ob.simulate(ob.fedasync(steps=2), ob.World(1.0, 2), until=ob.Until(tasks=4), out=tmp_path / "run")
    with pytest.raises(UsageError, match="started from Python"):
        simulate_like(read_run(tmp_path / "run"))
    assert fit_run(read_run(tmp_path / "run")).world.seconds_per_step == pytest.approx([1.0, 1.0])
