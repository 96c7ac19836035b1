"""The study file: loading, changes, errors of one line."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

import offbeat as ob
from offbeat_papers.arm_rows import known_cells
from offbeat_papers.cells import study_cells
from offbeat_papers.load import (
    all_items,
    built_in_studies,
    check_study,
    find_item,
    leaderboard_studies,
    load_study,
    make_study,
    parts_of,
    study_recipe,
)
from offbeat_papers.rows import Results
from offbeat_papers.study import Study
from tests.papers.study_files import DOCUMENT, documented

pytestmark = pytest.mark.xdist_group("papers")  # the studies are read once


def changed(**keys: Any) -> dict[str, Any]:
    """The document with other values; a key's dots are written "__"."""
    document = deepcopy(DOCUMENT)
    for key, value in keys.items():
        *path, last = key.split("__")
        place = document
        for part in path:
            place = place[part]
        place[last] = value
    return document


def refusal(document: dict[str, Any]) -> str:
    with pytest.raises(ob.UsageError) as caught:
        check_study(make_study("p/s", document))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_column_changes_the_recipe_and_the_size_comes_after_it() -> None:
    study = make_study("p/s", changed(columns__one={"until.tasks": 7, "training.lr": 0.5}))
    recipe = study_recipe(study, "laptop", "one")
    assert (recipe.until.tasks, recipe.training.lr) == (7, 0.5)
    small = study_recipe(study, "seconds", "one")
    assert (small.until.tasks, small.training.lr) == (4, 0.5)
    assert study_recipe(study, "laptop", "two").training.lr == 0.2  # the study itself is not changed


def test_a_star_changes_each_label_that_has_the_option() -> None:
    sets = {"algorithms.*.size": 3, "algorithms.fed.avg.steps": 9}
    algorithms = {"fed.avg": {"name": "fedavg", "steps": 2}, "fedbuff": {"steps": 2, "size": 2}}
    document = changed(recipe__algorithms=algorithms, sizes__laptop={"set": sets})
    del document["items"]["table-1"]["claims"], document["items"]["table-1"]["numbers"]
    recipe = study_recipe(make_study("p/s", document), "laptop", "one")
    assert recipe.algorithms == {
        "fed.avg": {"name": "fedavg", "steps": 9}, "fedbuff": {"steps": 2, "size": 3},
    }  # fmt: skip


def test_aliases_of_a_file_are_separate_values(tmp_path: Path) -> None:
    text = yaml.safe_dump(changed(sizes__laptop={"set": {"algorithms.fedbuff.staleness.a": 2.0}}))
    shared = "fedbuff: {steps: 2, size: 2, staleness: &s {kind: polynomial, a: 0.5}}\n"
    other = "other: {name: fedbuff, steps: 2, size: 2, staleness: *s}\n"
    text = text.replace("    fedbuff:\n      size: 2\n      steps: 2\n", f"    {shared}    {other}")
    (tmp_path / "s.yaml").write_text(text)
    algorithms = study_recipe(load_study(tmp_path / "s.yaml"), "laptop", "one").algorithms
    assert [algorithms[label]["staleness"]["a"] for label in ("fedbuff", "other")] == [2.0, 0.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sises": {}}, 'study p/s: unknown key sises; did you mean "sizes"?'),
        ({"sizes__tiny": {}}, "should be 'paper', 'laptop' or 'seconds'"),
        ({"items__table-1__columns": ["three"]}, "table-1: 'three' is no column of the study: known: one"),
        ({"sizes__laptop": {"targets": {"three": 0.5}}}, "sizes.laptop.targets: 'three' is no column"),
        ({"items__table-1__relative": "fedprox"}, "items.table-1: 'fedprox' is no label of the study"),
        ({"items__table-1__numbers": {"one": {"x": 1}}}, "items.table-1.numbers.one: 'x' is no label"),
        ({"items__table-1__shows": "speed"}, "study p/s, table-1: items.shows = 'speed' is not allowed"),
        ({"recipe__algorithms": {}}, "recipe.algorithms is missing"),
        ({"columns__two": {"trainin.lr": 1}}, "p/s, two, laptop: unknown key trainin"),
        ({"columns__two": {"algorithms.*.q_min": 1}}, "two: algorithms.*.q_min is not allowed: no label"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(change: dict[str, Any], message: str) -> None:
    assert message in refusal(changed(**change))


def test_an_arm_of_a_claim_is_a_label_or_a_label_at_a_column() -> None:
    claim = {"says": "x", "better": "fedbuff@two", "than": ["fedavg@one"]}
    assert make_study("p/s", changed(**{"items__table-1__claims": [claim]}))
    assert "'three' is no column" in refusal(
        changed(**{"items__table-1__claims": [claim | {"than": ["fedavg@three"]}]})
    )


def test_the_documented_study_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(documented())
    study, item = find_item(f"{path}:table-1")
    check_study(study)
    assert (item, study.item_columns(item)) == ("table-1", ["normal", "exponential"])
    with pytest.raises(ob.UsageError, match=r'did you mean ".*:table-1"'):
        find_item(f"{path}:table-2")


def test_what_is_done_to_a_loaded_study_stays_with_it() -> None:
    first = load_study("wireless/figure-4")
    first.recipe["clients"] = 1
    assert load_study("wireless/figure-4").recipe["clients"] != 1


def test_a_file_is_named_by_its_folder_wherever_it_is_loaded_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "s.yaml").write_text(documented())
        monkeypatch.chdir(tmp_path / name)
        assert load_study("s.yaml").name == f"{name}/s"
    (tmp_path / "two" / "s.yaml").write_text(documented().replace("two speeds", "three"))
    assert "three" in load_study("s.yaml").title


def test_the_leaderboard_s_studies_have_names_and_are_no_papers() -> None:
    names = set(leaderboard_studies())
    assert names == {f"leaderboard/{data}" for data in ("cifar10", "digits", "fashion", "hapt")}
    study, item = find_item("leaderboard/digits:board")
    assert (study.name, item) == ("leaderboard/digits", "board")
    assert not names & set(built_in_studies())
    assert not [name for name in all_items() if name.startswith("leaderboard")]


def test_a_study_that_is_not_there() -> None:
    with pytest.raises(ob.UsageError, match=r"study no\.yaml is neither a file nor built in"):
        load_study("no.yaml")
    with pytest.raises(ob.UsageError, match="item fedcompas/table-1 is unknown"):
        find_item("fedcompas/table-1")


def test_an_experiment_s_name_stands_for_its_parts_and_a_file_s_for_none(tmp_path: Path) -> None:
    parts = parts_of("fedcompass/table-1")
    assert {"fedcompass/table-1-mnist-class", "fedcompass/table-1-mnist-cnn"} < set(parts)
    assert not any(name.startswith("fedcompass/table-14") for name in parts)
    assert parts_of("fedcompass/table-99") == {}
    path = tmp_path / "study.yaml"
    path.write_text(documented())
    with pytest.raises(ob.UsageError) as caught:
        find_item(str(path))
    assert str(caught.value).startswith(f"{path} is a study, with the items ")
    assert str(caught.value).endswith(f": give one, as {path}:ITEM")


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"numbers": {"one": {"fedavg": 0}}}, "numbers.one.fedavg = 0 is not allowed: a cost is above 0"),
        (
            {"numbers": {"one": {"fedavg": [-2, 1]}}},
            "numbers.one.fedavg = -2 is not allowed: a cost is above 0",
        ),
        ({"numbers": {"one": {"fedavg": float("nan")}}}, "= nan is not allowed: should be a finite number"),
        ({"target": float("inf")}, "= inf is not allowed: should be a finite number"),
    ],
)
def test_numbers_that_cannot_be_are_refused(item: dict[str, Any], message: str) -> None:
    changes = {f"items__table-1__{key}": value for key, value in item.items()}
    assert message in refusal(changed(**changes))


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"margin": -1}, "claims.0.margin = -1 is not allowed: of a cost it is a share above -1"),
        ({"margin": float("nan")}, "margin = nan"),
        ({"by": "bestt"}, "claims.0.by = 'bestt' is not allowed; did you mean \"best\"?"),
        ({"than": ["fedbuff"]}, "claims.0.than has 'fedbuff', which is what the claim is about"),
    ],
)
def test_claims_that_cannot_be_are_refused(claim: dict[str, Any], message: str) -> None:
    given = {"says": "x", "better": "fedbuff", "than": ["fedavg"], **claim}
    assert message in refusal(changed(**{"items__table-1__claims": [given]}))


def test_a_study_has_a_thousand_seeds_at_most() -> None:
    study = make_study("p/s", changed(recipe__seeds=10**9))
    with pytest.raises(ob.UsageError, match="is to have 1,000,000,000 seeds, and a study has at most 1,000"):
        study_cells(study, "laptop")
    with pytest.raises(ob.UsageError, match="is to have 1,001 seeds"):
        study_cells(make_study("p/s", DOCUMENT), "laptop", seeds=1001)


@pytest.mark.parametrize(("key", "value"), [("seeds", "abc"), ("seeds", None), ("seed", "abc")])
def test_seeds_that_are_no_numbers_are_refused(key: str, value: object, tmp_path: Path) -> None:
    study = make_study("p/s", changed(**{f"recipe__{key}": value}))
    with pytest.raises(ob.UsageError, match=f"{key} = .* is not allowed"):
        study_cells(study, "laptop")
    with pytest.raises(ob.UsageError, match=f"{key} = .* is not allowed"):
        known_cells(study, "laptop", Results(tmp_path))


def test_a_study_s_file_cannot_name_itself() -> None:
    assert make_study("p/s", changed() | {"name": "x/y"}).name == "p/s"


def test_metrics_of_the_user_s_own_may_be_compared() -> None:
    item = {"items__table-1__metric": "mine"}
    assert make_study("p/s", changed(**item, recipe__metrics={"mine": "clinic:mine"}))
    assert make_study("p/s", changed(**item, recipe__metrics=["clinic:mine"]))
    assert make_study("p/s", changed(**item, recipe__evaluate_batch="clinic:evaluate"))
    assert make_study("p/s", changed(**item, columns__two={"metrics": ["clinic:mine"]}))
    with pytest.raises(ob.UsageError, match="metric = 'mine' is not allowed"):
        make_study("p/s", changed(**item))


def test_the_built_in_studies_are_valid_and_name_each_item_of_a_paper_once() -> None:
    studies: list[Study] = [load_study(name) for name in built_in_studies()]
    for study in studies:
        check_study(study)
    assert len(all_items()) == sum(len(study.items) for study in studies)
