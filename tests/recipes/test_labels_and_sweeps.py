"""Labels that differ in any option, and sweeps over options."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import offbeat as ob
from offbeat.recipes import compare, load
from offbeat.recipes.build import resume_run, run_recipe
from offbeat.recipes.compare import MAX_RUNS, plan
from offbeat.recipes.from_run import simulate_like
from offbeat.recipes.load import document_of, load_recipe, own_recipe
from offbeat.recipes.recipe import MOST_LABELS
from offbeat.recipes.sweep import directory_name, sweep_points
from offbeat.report import group_by_label

RECIPE: dict[str, Any] = {
    "clients": 3,
    "data": {"dataset": "digits", "samples": 60, "test_samples": 20, "partition": {"kind": "iid"}},
    "model": {"name": "logistic"},
    "algorithm": "fedbuff",
    "algorithms": {
        "fedbuff": {"steps": 2, "size": 2},
        "slow": {
            "name": "fedbuff", "steps": 2, "size": 2,
            "set": {"training.lr": 0.01, "clients": 4, "data.partition": {"kind": "iid"}, "until.tasks": 3},
        },
    },
    "until": {"tasks": 5},
}  # fmt: skip


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(yaml.safe_dump(RECIPE))
    return "r.yaml"


def refusal(recipe: str, **options: Any) -> str:
    def planned() -> None:
        loaded = load_recipe(recipe, **options)
        plan(loaded, list(loaded.algorithms), 1, Path("out"))

    with pytest.raises(ob.UsageError) as caught:
        planned()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_label_changes_the_recipe_for_its_own_runs(recipe: str) -> None:
    loaded = load_recipe(recipe)
    runs = plan(loaded, ["fedbuff", "slow"], 2, Path("out"))
    assert [run.name for run in runs] == ["fedbuff seed 0", "slow seed 0", "fedbuff seed 1", "slow seed 1"]
    plain, slow = (run.recipe for run in runs[:2])
    assert (plain.training.lr, plain.clients, plain.until.tasks) == (0.1, 3, 5)
    assert (slow.training.lr, slow.clients, slow.until.tasks) == (0.01, 4, 3)
    assert slow.algorithm == {"label": "slow", "name": "fedbuff", "steps": 2, "size": 2}


def test_run_and_compare_give_the_same_run_and_its_recipe_repeats_it(recipe: str) -> None:
    chosen = load_recipe(recipe, sets=["algorithm=slow"])
    first = run_recipe(chosen.with_seed(1), out=Path("first"))
    job = plan(load_recipe(recipe), ["slow"], 2, Path("out"))[1]
    again = run_recipe(job.recipe, out=job.directory, label=job.label)
    one, other = ob.read_run("first"), ob.read_run(job.directory)
    assert one.recipe == other.recipe
    assert (one.label, one.clients, one.recipe and one.recipe["training"]["lr"]) == ("slow", 4, 0.01)
    assert one.journal == other.journal
    assert first.model.digest() == again.model.digest()
    Path("again.yaml").write_text(yaml.safe_dump(one.recipe))
    repeated = load_recipe("again.yaml")
    third = run_recipe(repeated, out=None)
    assert third.model.digest() == first.model.digest()
    assert resume_run(Path("first")).stop_reason == "reached 3 client tasks"
    # the directory is known again, and refused for another value
    assert plan(load_recipe(recipe), ["slow"], 2, Path("out"))
    with pytest.raises(ob.UsageError, match="another experiment"):
        plan(load_recipe(recipe, sets=["algorithms.slow.set={training.lr: 0.02}"]), ["slow"], 2, Path("out"))


def test_what_is_set_by_hand_wins_for_one_run_and_not_in_a_comparison(recipe: str) -> None:
    loaded = load_recipe(recipe, sets=["training.lr=0.5", "algorithm=slow", "clients=2"])
    own = own_recipe(loaded, loaded.algorithm)
    assert (own.training.lr, own.clients, own.until.tasks) == (0.5, 2, 3)
    plain, slow = plan(load_recipe(recipe, sets=["training.lr=0.5"]), ["fedbuff", "slow"], 1, Path("out"))
    assert (plain.recipe.training.lr, slow.recipe.training.lr) == (0.5, 0.01)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training.lrr": 1}, 'label slow: unknown key training.lrr; did you mean "lr"?'),
        ({"training.lr": -1}, "label slow: training.lr = -1 is not allowed"),
        ({"clients.x": 1}, "label slow clients.x is not allowed: clients is not a section but 3"),
        ({"seed": 1}, "algorithms.slow.set has 'seed', which is not allowed"),
        ({"algorithm.steps": 1}, "algorithms.slow.set has 'algorithm.steps', which is not allowed"),
        (3, "algorithms.slow.set = 3 is not allowed: write dotted keys and values"),
    ],
)
def test_what_a_label_sets_is_checked_when_the_recipe_is_loaded(changes: Any, said: str, recipe: str) -> None:
    document = {**RECIPE, "algorithms": {"slow": {"name": "fedbuff", "set": changes}}, "algorithm": "fedavg"}
    Path(recipe).write_text(yaml.safe_dump(document))
    complained = refusal(recipe)
    assert complained.startswith(f"{recipe}: ")
    assert said in complained


def test_a_label_is_checked_without_the_others(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of reading a recipe is that of its labels, not of each with all."""
    algorithms = {f"a{n}": {"name": "fedavg", "set": {"training.lr": n + 1}} for n in range(20)}
    Path(recipe).write_text(yaml.safe_dump({**RECIPE, "algorithms": algorithms, "algorithm": "a0"}))
    checked = []

    def noting(document: dict[str, Any], source: str) -> Any:
        checked.append(document)
        return validated(document, source)

    validated = load._validated
    monkeypatch.setattr(load, "_validated", noting)
    loaded = load_recipe(recipe)
    whole, *each = checked
    assert len(whole["algorithms"]) == len(each) == 20
    assert not any({"algorithms", "scales", "sweep"} & document.keys() for document in each)
    own = own_recipe(loaded, loaded.spec("a7"))
    assert own.algorithms is loaded.algorithms
    assert document_of(own) == {
        **document_of(loaded), "algorithm": {"label": "a7", "name": "fedavg"},
        "training": {**document_of(loaded)["training"], "lr": 8.0},
    }  # fmt: skip


def test_a_recipe_has_not_more_labels_than_a_comparison_has_runs(recipe: str) -> None:
    assert MOST_LABELS == MAX_RUNS
    algorithms = {f"a{n}": {"name": "fedavg"} for n in range(MOST_LABELS + 1)}
    Path(recipe).write_text(yaml.safe_dump({**RECIPE, "algorithms": algorithms, "algorithm": "a0"}))
    with pytest.raises(ob.UsageError, match="algorithms has 1001 labels, at most 1000 are allowed"):
        load_recipe(recipe)


def test_the_directory_of_a_label_and_its_sweep_must_fit(recipe: str) -> None:
    algorithms = {"a" * 250: {"name": "fedavg"}}
    Path(recipe).write_text(yaml.safe_dump({**RECIPE, "algorithms": algorithms, "algorithm": "fedavg"}))
    assert len(plan(load_recipe(recipe), ["a" * 250], 1, Path("out"))) == 1
    assert "and has 261 bytes: at most 255 are allowed" in refusal(recipe, sweeps=["training.lr=0.12345"])


def test_a_label_may_have_a_trace_and_weights_of_its_own(recipe: str) -> None:
    Path("phones.csv").write_text("client,seconds_per_step\n0,1\n1,2\n")
    changes = {"world.trace": "phones.csv", "initial": "weights.safetensors"}
    document = {**RECIPE, "algorithms": {"phones": {"name": "fedavg", "set": changes}}, "algorithm": "phones"}
    Path("sub").mkdir()
    for name in ("r.yaml", "phones.csv"):
        Path(name).rename(Path("sub") / name)
    Path("sub/r.yaml").write_text(yaml.safe_dump(document))
    loaded = load_recipe("sub/r.yaml")
    Path("sub/phones.csv").unlink()
    own = own_recipe(loaded, loaded.algorithm)
    assert (own.clients, own.world.seconds_per_step) == (2, [1.0, 2.0])
    assert own.initial == str(Path("sub/weights.safetensors").absolute())


def test_the_fitted_world_comes_after_what_a_label_sets(recipe: str) -> None:
    loaded = load_recipe(recipe)
    run_recipe(loaded, out=Path("run"))
    like = simulate_like(ob.read_run("run"), algorithm="slow", sets=["training.batch_size=8"]).recipe
    assert (like.training.lr, like.training.batch_size, like.clients) == (0.01, 8, 3)
    assert run_recipe(like, out=None).summary.tasks == 3


def test_a_sweep_is_a_grid_and_its_labels_and_directories_say_which_point(recipe: str) -> None:
    sweeps = ["training.lr=0.1, 1.0", "algorithm.steps=1,3"]
    runs = plan(load_recipe(recipe, sweeps=sweeps), ["fedbuff", "slow"], 1, Path("out"))
    assert [run.label for run in runs[:4]] == [
        "fedbuff lr=0.1 steps=1", "fedbuff lr=0.1 steps=3", "fedbuff lr=1 steps=1", "fedbuff lr=1 steps=3",
    ]  # fmt: skip
    assert len(runs) == 8
    last = runs[-1]
    assert last.directory == Path("out/slow,lr=1,steps=3/seed-0")
    assert (last.recipe.training.lr, last.recipe.clients, last.recipe.algorithm["steps"]) == (1.0, 4, 3)
    assert last.recipe.sweep == {"training.lr": [1.0], "algorithm.steps": [3]}
    for job in (runs[0], runs[3]):
        run_recipe(job.recipe, out=job.directory, label=job.label)
    groups = group_by_label(ob.find_runs(Path("out")))
    assert [group.label.text for group in groups] == ["fedbuff lr=0.1 steps=1", "fedbuff lr=1 steps=3"]
    assert {group.label.name for group in groups} == {"fedbuff"}
    assert groups[1].label.options == {"training.lr": "1", "algorithm.steps": "3"}
    assert plan(load_recipe(recipe, sweeps=sweeps), ["fedbuff"], 1, Path("out"))  # may go on


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ("training.lrr=1", 'label fedbuff lrr=1: unknown key training.lrr; did you mean "lr"?'),
        ("algorithm.sise=1", 'fedbuff sise=1: fedbuff: unknown key sise; did you mean "size"?'),
        ("seed=1,2", "sweep has 'seed', which is not allowed"),
        ("algorithm.name=fedavg", "sweep has 'algorithm.name', which is not allowed"),
        ("clients=", "sweep.clients = [] is not allowed"),
        ("clients", "--sweep clients is not allowed: write section.key=value,value"),
        ("clients={", "--sweep clients={ is not valid YAML"),
    ],
)
def test_sweeps_that_are_refused(sweep: str, said: str, recipe: str) -> None:
    assert said in refusal(recipe, sweeps=[sweep])


def test_a_comparison_has_a_limit(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    many = ",".join(map(str, range(1, MAX_RUNS // 2 + 2)))
    assert refusal(recipe, sweeps=[f"clients={many}"]) == (
        "2 labels x 501 combinations of the sweep x 1 seeds are 1,002 runs, and a comparison has at most "
        "1,000: leave out values, labels or seeds"
    )
    monkeypatch.setattr(compare, "MAX_RUNS", 4)
    assert len(plan(load_recipe(recipe, sweeps=["clients=2,3"]), ["fedbuff"], 2, Path("out"))) == 4


def test_points_of_a_sweep() -> None:
    assert [point.values for point in sweep_points({})] == [{}]
    points = sweep_points(
        {"data.partition": [{"kind": "iid"}, {"kind": "iid"}, {"kind": "shards"}], "a": [1]}
    )
    assert [dict(point.texts) for point in points] == [
        {"data.partition": "{kind: iid}", "a": "1"},
        {"data.partition": "{kind: shards}", "a": "1"},
    ]
    long = sweep_points({"x": [list(range(90)), list(range(91))]})
    assert len({point.texts["x"] for point in long}) == 2
    assert directory_name("fedavg", sweep_points({"initial": ["a/b c"]})[0]) == "fedavg,initial=a_bc"
