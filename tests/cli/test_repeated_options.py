"""Options that are given more than once: lists add up, and nothing is dropped without a word."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from offbeat.recipes.assignments import assignments
from offbeat.recipes.load import document_of, load_recipe


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("compare digits --metric accuracy --metric loss", "--metric is given twice: give it once"),
        ("compare digits --seeds 2 --seeds 3", "--seeds is given twice"),
        ("run digits -o one --out two", "--out is given twice"),
        ("report one --baseline a --baseline b", "--baseline is given twice"),
        ("reproduce all --seeds 2 --seeds 3", "--seeds is given twice"),
        ("run digits --set clients=3 --set clients=4", "--set clients is given twice, 3 and 4: give it once"),
        ("run digits --set algorithm=fedavg --set algorithm.name=fedbuff", "--set algorithm is given twice"),
        ("run digits --seed 3 --set seed=4", "--seed and --set seed are both given: leave one out"),
        ("compare digits --sweep seed=3 --set sweep={}", "--sweep and --set sweep are both given"),
        ("run digits --set initial=a --set initial=b", "--set initial is given twice"),
        ("resume one --set until.tasks=3 --set until.tasks=4", "--set until.tasks is given twice"),
        ("serve digits --state s --set server.lease=3 --set server.lease=4", "--set server.lease is given"),
        (
            "join x:1 --set site.threads=1 --set site.threads=2",
            "--set site.threads is given twice, 1 and 2",
        ),
        # All labels of a list that is given in parts are looked at.
        ("compare digits -a fedavg -a nosuch", "--algorithm nosuch is unknown"),
        ("compare digits -a nosuch -a fedavg -a fedbuff", "--algorithm nosuch is unknown"),
        (
            "compare digits -a fedavg -a fedbuff -a fedavg",
            "--algorithm fedavg --algorithm fedbuff --algorithm fedavg is not",
        ),
    ],
)
def test_a_value_that_would_be_lost_is_refused(
    arguments: str, said: str, offbeat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "resume" in arguments:
        offbeat("run", "digits", "--set", "until={tasks: 1}", "--out", "one")
    assert re.search(re.escape(said), offbeat(*arguments.split()).complaint())


def test_flags_may_be_repeated(offbeat: Any) -> None:
    assert offbeat("run", "nosuch", "--json", "--json").complaint().startswith("offbeat: recipe nosuch")


def test_sweeps_of_one_key_add_up_and_replace_those_of_the_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    own = {"training.lr": [1.0], "clients": [9]}
    recipe.write_text(yaml.safe_dump(document_of(load_recipe("digits")) | {"sweep": own}))
    changed = load_recipe(str(recipe), sweeps=["clients=2", "clients=3,4"])
    assert changed.sweep == {"training.lr": [1.0], "clients": [2, 3, 4]}


def test_sections_are_set_before_the_keys_within_them() -> None:
    sets = ["training.lr=0.2", "training={batch_size: 8}", "algorithm.size=3", "algorithm=fedbuff"]
    recipe = load_recipe("digits", sets=sets)
    assert (recipe.training.lr, recipe.training.batch_size) == (0.2, 8)
    assert recipe.algorithm["name"] == "fedbuff"
    assert recipe.algorithm["size"] == 3
    assert [key for key, _ in assignments(sets)] == ["algorithm", "training", "training.lr", "algorithm.size"]
