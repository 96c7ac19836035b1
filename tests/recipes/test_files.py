"""Recipes: the built-in ones, the changes to one, and what is wrong with one, in one line."""

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import save_file

import offbeat as ob
from offbeat.algorithms import ALGORITHMS
from offbeat.core.errors import UsageError
from offbeat.core.guard import Guard
from offbeat.recipes.build import (
    make_algorithm,
    make_learner,
    recorded_algorithm,
    recorded_recipe,
    run_recipe,
)
from offbeat.recipes.built_in import built_in
from offbeat.recipes.load import document_of, load_recipe
from offbeat.recipes.recipe import Recipe
from offbeat.sim.replay import replay

BASE: dict[str, Any] = {
    "clients": 10,
    "data": {"dataset": "digits", "samples": 300, "partition": {"kind": "iid"}},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"optimizer": "sgd", "lr": 0.1},
    "world": {"seconds_per_step": {"law": "exponential", "mean": 0.15}},
    "algorithm": "fedavg",
    "algorithms": {
        "fedavg": {"steps": 4},
        "fedbuff": {"steps": 4, "size": 3},
        "slow": {"name": "fedasync", "steps": 9},
    },
    "until": {"tasks": 20},
    "scales": {"small": {"clients": 3, "until.tasks": 5}, "buffered": {"algorithm": "fedbuff"}},
}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to(document: Any) -> str:
        path = tmp_path / "recipe.yaml"
        text = document if isinstance(document, str) else yaml.safe_dump(document)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return to


def algorithm(recipe: Recipe) -> ob.Algorithm:
    return make_algorithm(recipe.algorithm)


# ---- the built-in ones ----


@pytest.mark.parametrize("name", built_in())
def test_built_in_recipes_are_right(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.title
    assert algorithm(recipe).name in ALGORITHMS
    for label in recipe.algorithms:
        made = make_algorithm(recipe.spec(label))
        concurrency = made.schedule.concurrency
        assert concurrency is None or concurrency <= recipe.clients
    assert recipe.baseline is None or recipe.baseline in recipe.algorithms
    assert {type(recipe).model_validate(document_of(recipe)) == recipe} == {True}


def test_there_are_built_in_recipes() -> None:
    assert set(built_in()) == {"digits", "fashion-all", "heart_disease", "statistics", "stragglers"}


# ---- changes ----


def chosen(write: Any, *sets: str, **more: Any) -> dict[str, Any]:
    return load_recipe(write(BASE), sets=sets, **more).algorithm


def test_choosing_an_algorithm(write: Any) -> None:
    fedbuff = {"label": "fedbuff", "name": "fedbuff", "steps": 4, "size": 3}
    assert chosen(write) == {"label": "fedavg", "name": "fedavg", "steps": 4}
    assert chosen(write, "algorithm=fedbuff") == fedbuff
    assert chosen(write, "algorithm.name=fedbuff") == fedbuff
    assert chosen(write, "algorithm=slow") == {"label": "slow", "name": "fedasync", "steps": 9}
    assert chosen(write, "algorithm=fedcompass", "algorithm.q_min=5") == {
        "label": "fedcompass", "name": "fedcompass", "q_min": 5
    }  # fmt: skip
    assert chosen(write, "algorithm=fedbuff", "algorithm.size=7")["size"] == 7
    assert chosen(write, "algorithm={name: fedavg, epochs: 2}") == {"name": "fedavg", "epochs": 2}


def test_a_labels_options_can_be_changed_before_or_after_choosing_it(write: Any) -> None:
    assert chosen(write, "algorithms.fedavg.steps=7")["steps"] == 7
    assert chosen(write, "algorithms.fedbuff.steps=7", "algorithm=fedbuff")["steps"] == 7
    assert chosen(write, "algorithm=fedbuff", "algorithms.fedbuff.steps=7")["steps"] == 7
    assert chosen(write, "algorithms.new={name: fedasync}", "algorithm=new") == {
        "label": "new", "name": "fedasync"
    }  # fmt: skip


def test_without_an_algorithm_the_first_label_runs(write: Any) -> None:
    document = deepcopy(BASE)
    del document["algorithm"]
    assert load_recipe(write(document)).algorithm["label"] == "fedavg"
    del document["algorithms"]
    assert load_recipe(write(document)).algorithm["label"] == "fedcompass"


@pytest.mark.parametrize("off", ["off", False, None])
def test_the_guard_is_off_by_a_word(off: Any, write: Any) -> None:
    assert load_recipe(write({**BASE, "guard": off})).guard is None
    assert load_recipe(write({**BASE, "guard": {}})).guard == Guard()


def test_values_are_yaml_and_sections_are_made(write: Any) -> None:
    recipe = load_recipe(
        write(BASE),
        sets=[
            "clients=4",
            "training.lr=1e-3",
            "model.hidden=[5, 6]",
            "world.network.latency={law: uniform, low: 1, high: 2}",
            "world.availability.dropout=0.1",
            "until.tasks=null",
            "until.seconds=8",
            "title=a=b",
            "data.partition={kind: shards, shards_per_client: 3}",
        ],
    )
    assert recipe.clients == 4
    assert recipe.training.lr == 0.001
    assert recipe.model.hidden == (5, 6)
    assert recipe.world.network.latency == ob.laws.Uniform(1, 2)
    assert recipe.world.availability.dropout == 0.1
    assert recipe.until == ob.Until(seconds=8)
    assert recipe.title == "a=b"
    assert recipe.data.partition.shards_per_client == 3


def test_scale_then_seed_then_sets(write: Any) -> None:
    recipe = load_recipe(write(BASE), scales=["small"], sets=["until.tasks=6"], seed=9)
    assert (recipe.clients, recipe.until.tasks, recipe.seed) == (3, 6, 9)
    assert load_recipe(write(BASE), scales=["small"]).until.tasks == 5
    both = load_recipe(write(BASE), scales=["small", "buffered"])
    assert (both.clients, both.until.tasks, both.algorithm["name"]) == (3, 5, "fedbuff")
    assert chosen(write, scales=["buffered"])["name"] == "fedbuff"
    with pytest.raises(ob.UsageError, match="--seed and --set seed are both given: leave one out"):
        load_recipe(write(BASE), seed=9, sets=["seed=2"])


# ---- what is wrong ----


def put(path: str, value: Any) -> dict[str, Any]:
    document = deepcopy(BASE)
    *sections, last = path.split("|")
    place = document
    for section in sections:
        place = place.setdefault(section, {})
    place[last] = value
    return document


def complaint(write: Any, document: Any, **more: Any) -> str:
    with pytest.raises(ob.UsageError) as caught:
        algorithm(load_recipe(write(document), **more))
    text = str(caught.value)
    assert "\n" not in text
    return text


LAW, CUT, FEDBUFF = "world|seconds_per_step", "data|partition", {"name": "fedbuff"}


@pytest.mark.parametrize(
    ("path", "value", "named", "meant"),
    [
        ("clents", 3, "clents", "clients"),
        ("wrold", {}, "wrold", "world"),
        ("data|datset", "digits", "data.datset", "dataset"),
        ("data|test_sample", 3, "data.test_sample", "test_samples"),
        (CUT, {"kind": "dual_dirichlet", "alpah1": 1}, "alpah1", "alpha1"),
        (CUT, {"kind": "iidd"}, "data.partition.kind = 'iidd'", "iid"),
        ("model|hiden", [3], "hiden", "hidden"),
        ("model|name", "mpl", "model.name = 'mpl'", "mlp"),
        ("training|batchsize", 3, "training.batchsize", "batch_size"),
        ("training|decay", {"kind": "exponential", "gamma": 1, "evry": 3}, "evry", "every"),
        ("training|batch-size", 3, "training.batch-size", "training.batch_size"),
        ("world|jiter", 1, "world.jiter", "jitter"),
        (LAW, {"law": "exponental", "mean": 1}, "world.seconds_per_step.law = 'exponental'", "exponential"),
        (LAW, {"law": "exponential", "mean": 1, "minimun": 1}, "minimun", "minimum"),
        ("world|network", {"latncy": 1}, "world.network.latncy", "latency"),
        ("world|availability", {"dropot": 0.1}, "world.availability.dropot", "dropout"),
        ("until|second", 3, "until.second", "seconds"),
        ("evaluate", {"secnds": 1}, "evaluate.secnds", "seconds"),
        ("algorithm", "fedbuf", "fedbuf", "fedbuff"),
        ("algorithm", {"name": "fedbuf"}, "fedbuf", "fedbuff"),
        ("algorithm", {**FEDBUFF, "sise": 3}, "sise", "size"),
        ("algorithm", {"name": "fedcompass", "q_mim": 3}, "q_mim", "q_min"),
        ("algorithm", {**FEDBUFF, "staleness": {"kind": "hinge", "bb": 1}}, "staleness.bb", "b"),
        ("algorithm", {**FEDBUFF, "staleness": {"kind": "polinomial"}}, "staleness.kind = 'polinomial'",
         "polynomial"),
    ],
)  # fmt: skip
def test_misspelt_keys(path: str, value: Any, named: str, meant: str, write: Any) -> None:
    text = complaint(write, put(path, value))
    assert named in text
    assert f'did you mean "{meant}"?' in text


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("clients", "ten", "clients = 'ten'"),
        ("clients", 2.5, "clients = 2.5"),
        ("data", 5, "data = 5"),
        ("data", None, "data = None"),
        (CUT, "iid", "data.partition = 'iid'"),
        ("model", "mlpp", "model.name = 'mlpp' is unknown"),
        ("model|hidden", 3, "hidden = 3"),
        ("training|lr", "fast", "training.lr = 'fast'"),
        ("training|optimizer", "sdg", "training.optimizer = 'sdg'"),
        ("world|jitter", "much", "world.jitter = 'much'"),
        (LAW, "fast", "world.seconds_per_step = 'fast'"),
        (LAW, {"mean": 1}, "world.seconds_per_step.law is missing"),
        (LAW, {"law": "exponential"}, "mean is missing"),
        ("algorithm", 5, "algorithm = 5"),
        ("algorithm", ["fedavg"], "algorithm = ['fedavg']"),
        ("algorithm", {"name": ["fedavg"]}, "algorithm ['fedavg']"),
        ("algorithm", {}, "algorithm = {} has no name"),
        ("algorithm", {**FEDBUFF, "size": "three"}, "size = 'three'"),
        ("algorithm", {**FEDBUFF, "staleness": 3}, "staleness = 3"),
        ("algorithms", 5, "algorithms = 5"),
        ("algorithms", ["fedavg"], "algorithms = ['fedavg']"),
        ("algorithms|fedavg", 5, "algorithms.fedavg = 5"),
        ("algorithms|fedbuff", [1], "algorithms.fedbuff = [1]"),
        ("scales", 5, "scales = 5"),
        ("scales|small", 5, "scales.small = 5"),
        ("until", 5, "until = 5"),
        ("seed", 1.5, "seed = 1.5"),
        ("title", 3, "title = 3"),
    ],
)
def test_wrong_types(path: str, value: Any, named: str, write: Any) -> None:
    assert named in complaint(write, put(path, value))


@pytest.mark.parametrize(
    ("path", "value", "named", "allowed"),
    [
        ("clients", 0, "clients = 0", "greater than or equal to 1"),
        ("data|samples", 0, "data.samples = 0", "greater than or equal to 1"),
        (CUT, {"kind": "dual_dirichlet", "alpha1": -1}, "alpha1 = -1", "greater than 0"),
        ("model|hidden", [0], "hidden.0 = 0", "greater than or equal to 1"),
        ("training|lr", 0, "training.lr = 0", "greater than 0"),
        ("training|momentum", 1, "training.momentum = 1", "less than 1"),
        (LAW, {"law": "exponential", "mean": -1}, "mean = -1", "greater than 0"),
        (LAW, -3, "world.seconds_per_step = -3", "greater than 0"),
        (LAW, [1, -2], "world.seconds_per_step.1 = -2", "greater than 0"),
        ("world|jitter", 2, "world.jitter = 2", "less than or equal to 1"),
        ("world|network", {"latency": -1}, "world.network.latency = -1", "greater than or equal to 0"),
        ("world|availability", {"dropout": 1}, "world.availability.dropout = 1", "less than 1"),
        ("algorithm", {"name": "fedcompass", "q_min": 0}, "q_min = 0", "greater than or equal to 1"),
        ("algorithm", {"name": "fedcompass", "q_min": 5, "q_max": 3}, "q_min = 5", "above q_max = 3"),
        ("algorithm", {"name": "fedcompass", "momentum": 1}, "momentum = 1", "less than 1"),
        ("algorithm", {"name": "fedavg", "steps": 2, "epochs": 2}, "steps=2, epochs=2", "either"),
        ("algorithm", {**FEDBUFF, "staleness": {"kind": "polynomial", "a": -1}}, "a = -1", "equal to 0"),
        ("until", {"seconds": 0}, "until.seconds = 0", "greater than 0"),
        ("until", {}, "the run would never end", "accuracy, metric or early_stopping"),
        ("seed", -1, "seed = -1", "greater than or equal to 0"),
        ("seeds", 0, "seeds = 0", "greater than or equal to 1"),
        ("target", 2, "target = 2", "accuracy is a share in (0, 1]"),
    ],
)
def test_out_of_range(path: str, value: Any, named: str, allowed: str, write: Any) -> None:
    text = complaint(write, put(path, value))
    assert named in text
    assert allowed in text


@pytest.mark.parametrize("section", ["clients", "until"])
def test_missing_sections(section: str, write: Any) -> None:
    document = deepcopy(BASE)
    del document[section]
    assert f"{section} is missing" in complaint(write, document)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a mapping of sections"),
        ("- 1", "is not a mapping of sections"),
        ("5", "is not a mapping of sections"),
        ("a: [1", "is not valid YAML at line 1"),
        ("clients: 3\ndata: x: y", "is not valid YAML at line 2"),
        ("a:\n\t- b", "is not valid YAML at line 2"),
        ("a: *b", "is not valid YAML at line 1: found undefined alias"),
        ("a: \x00", "is not valid YAML: unacceptable character"),
        ("a: !!python/object:os.system {}", "is not valid YAML at line 1"),
    ],
)
def test_files_that_are_not_recipes(text: str, said: str, write: Any) -> None:
    complained = complaint(write, text)
    assert said in complained
    assert "recipe.yaml" in complained


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    for name, said in (
        (str(tmp_path / "bytes.yaml"), "cannot be read"),
        (str(tmp_path), "is a directory: give the recipe's file"),
        ("digts", 'did you mean "digits"?'),
        ("heart_diseas", 'did you mean "heart_disease"?'),
    ):
        with pytest.raises(ob.UsageError, match=said.replace("?", r"\?")) as caught:
            load_recipe(name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("clients", "--set clients is not allowed: write section.key=value"),
        ("=5", "--set =5 is not allowed: write section.key=value"),
        ("a..b=1", "unknown key a"),
        ("clients=[1", "--set clients=[1 is not valid YAML"),
        ("clients.x=5", "clients is not a section but 10"),
        ("model.hidden.0=4", "hidden is not a section but [8]"),
        ("world.network.latncy=2", 'did you mean "latency"?'),
        ("algorithm=fedbuf", 'did you mean "fedbuff"?'),
        ("algorithm.name=fedbuf", 'did you mean "fedbuff"?'),
        ("algorithm.q_min=5", "unknown key q_min"),
        ("algorithms=5", "algorithms = 5"),
        ("algorithms.fedavg=3", "algorithms.fedavg = 3"),
        ("until.seconds=abc", "until.seconds = 'abc'"),
        ("training.decay.gamma=0.9", "training.decay.kind is missing"),
        ("clients=", "clients = None"),
    ],
)
def test_changes_that_cannot_be(change: str, said: str, write: Any) -> None:
    assert said in complaint(write, BASE, sets=[change])


def test_scales_that_cannot_be(write: Any) -> None:
    assert 'did you mean "small"?' in complaint(write, BASE, scales=["smal"])
    assert "--scale x is not allowed" in complaint(write, {**BASE, "scales": {}}, scales=["x"])
    odd = {**BASE, "scales": {"odd": {3: 4}}}
    assert "unknown key 3" in complaint(write, odd, scales=["odd"])
    typo = {**BASE, "scales": {"typo": {"cliens": 4}}}
    assert 'did you mean "clients"?' in complaint(write, typo, scales=["typo"])


def test_a_recipe_evaluates_at_its_clients() -> None:
    sets = ["data.validation=0.25", "evaluate.at=clients", "until={versions: 2}"]
    recipe = load_recipe("digits", sets=sets)
    run = run_recipe(recipe, out=None)
    held_out = make_learner(recipe).data.held_out
    assert held_out is not None
    counts = [held_out.count(client) for client in range(recipe.clients)]
    assert [row["samples"] for row in run.client_metrics(0)] == counts
    assert "clients.accuracy.p10" in run.metrics[-1]
    with pytest.raises(UsageError, match=r"evaluate.at = 'clients' needs samples that clients hold out"):
        run_recipe(load_recipe("digits", sets=sets[1:]), out=None)


def test_the_training_loss_is_that_of_training_samples() -> None:
    recipe = load_recipe("digits")
    source = make_learner(recipe.with_seed(3)).data
    data = recipe.data.model_copy(update={"evaluate_on": "train"})
    own = make_learner(recipe.model_copy(update={"data": data, "seed": 3})).data
    assert len(own.test) == len(source.test)
    known = {tuple(x.flatten().tolist()) for x in own.train.x}
    assert all(tuple(x.flatten().tolist()) in known for x in own.test.x)
    assert own.rows.offsets.tolist() == source.rows.offsets.tolist()


def test_a_recipe_without_data_is_for_sites_only(write: Any) -> None:
    document = deepcopy(BASE)
    del document["data"]
    recipe = load_recipe(str(write(document)))
    with pytest.raises(ob.UsageError, match=r"^data\.dataset is missing: a simulation has the clients' data"):
        make_learner(recipe)


def test_functions_of_ones_own_by_name(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path, ""])
    (tmp_path / "a_lab_of_ours.py").write_text(OWN, encoding="utf-8")
    own = {
        "model": {"name": "a_lab_of_ours:make_model", "options": {"hidden": 5}},
        "loss": "nll_loss",
        "metrics": {"f1": "f1", "certain": "a_lab_of_ours:certain"},
        "algorithm": {"name": "a_lab_of_ours:schedule", "steps": 2},
        "until": {"versions": 2},
        "initial": "weights.safetensors",
    }
    path = str(write({**BASE, **own, "data": {**BASE["data"], "partition": {"kind": "iid"}}}))
    recipe = load_recipe(path)
    assert recipe.initial == str(Path(path).parent / "weights.safetensors")
    allow = ["a_lab_of_ours"]
    learner = make_learner(recipe, allow)
    save_file(learner.initial(7).state_dict(), recipe.initial)
    run = run_recipe(recipe, out=tmp_path / "run", allow=allow)
    assert run.metrics[-1].keys() >= {"loss", "f1", "certain"}
    record = ob.read_run(tmp_path / "run")
    assert record.meta["algorithm"] == {"name": "a_lab_of_ours:schedule", "steps": 2}
    assert replay(record, recorded_algorithm(record, allow)).difference is None
    assert record.meta["initial"] == learner.initial(7).digest()
    assert recorded_recipe(record) == recipe
    sys.modules.pop("a_lab_of_ours")


OWN = """
from torch import nn
import offbeat as ob

@ob.expose
def make_model(hidden):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Linear(hidden, 10), nn.LogSoftmax(1))

@ob.expose
def certain(scores, target):
    return float((scores.max(1).values > -1).float().mean())

@ob.expose
def schedule(steps):
    return ob.fedbuff(2, steps=steps)
"""
