"""A partition from a file: its lists as they are, and one line for what is no partition."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offbeat as ob
from offbeat.core.errors import RunError, UsageError
from offbeat.recipes import load_recipe
from offbeat.recipes.build import make_learner, resume_run, run_recipe
from offbeat.recipes.load import own_recipe
from offbeat.world.partitions import FromFile

LABELS = np.zeros(10, dtype=np.int64)
RNG = np.random.default_rng(0)


def split(path: Path, text: str, clients: int = 2) -> list[list[int]]:
    path.write_text(text)
    return [part.tolist() for part in FromFile(str(path)).split(LABELS, clients, RNG)]


def test_each_client_has_the_samples_of_its_list(tmp_path: Path) -> None:
    assert split(tmp_path / "parts.json", "[[9, 0, 3], [], [5]]", clients=3) == [[0, 3, 9], [], [5]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[0, 1], [10]]", r"sample index 10 of client 1: must be 0 to 9; the train set has 10 samples"),
        ("[[0, 1], [-1]]", r"Expected `int` >= 0 - at `\$\[1\]\[0\]`"),
        ("[[0, 1], [1]]", "sample index 1 is used 2 times, by clients 0 and 1"),
        ("[[0, 1], [1.5]]", "Expected `int`, got `float`"),
        ("[[0, 1], [true]]", "Expected `int`, got `bool`"),
        ("[[0, 1], [99999999999999999999]]", "partition .* is not allowed"),
        ("[0, 1]", "Expected `array`, got `int`.*: give a JSON list that has one list of sample indices"),
        ('{"a": [0], "b": [1]}', "Expected `array`, got `object`"),
        ("[]", "Expected `array` of length >= 1"),
        ("[[0]", "partition .* is not allowed"),
        ("[[0], [1], [2]]", r"clients = 2 is not allowed: the partition .* has lists for 3 clients"),
    ],
)
def test_what_is_no_partition_is_told_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        split(tmp_path / "parts.json", text)
    assert "parts.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"partition none\.json cannot be read \(.*\): give a JSON list"):
        FromFile("none.json").split(LABELS, 2, RNG)


RECIPE: dict[str, Any] = {
    "clients": 3,
    "data": {"dataset": "digits", "partition": {"kind": "file", "path": "parts.json"}},
    "model": "logistic",
    "algorithms": {
        "fedavg": {"steps": 1},
        "other": {"name": "fedavg", "steps": 1, "set": {"data.partition.path": "others.json"}},
    },
    "until": {"versions": 1},
}
PARTS = [[0, 1, 2], [7, 5], [100]]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A recipe in a folder of its own, beside its files."""
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "r.yaml").write_text(json.dumps(RECIPE))
    (folder / "parts.json").write_text(json.dumps(PARTS))
    (folder / "others.json").write_text("[[3], [4], [6]]")
    Path("mine.json").write_text("[[8], [9], [10]]")
    return "study/r.yaml"


def parts_of(recipe: Any) -> list[list[int]]:
    data = make_learner(recipe).data
    return [data.client_indices(client).tolist() for client in range(data.clients)]


def test_a_recipe_has_its_file_beside_it(recipe: str) -> None:
    assert parts_of(load_recipe(recipe)) == [[0, 1, 2], [5, 7], [100]]
    assert parts_of(load_recipe(recipe, sets=["data.partition.path=mine.json"])) == [[8], [9], [10]]
    loaded = load_recipe(recipe)
    assert parts_of(own_recipe(loaded, loaded.spec("other"))) == [[3], [4], [6]]


def test_a_run_does_not_go_on_with_another_partition(recipe: str) -> None:
    """Its directory records who has which samples, as with any partition."""
    run_recipe(load_recipe(recipe), out=Path("run"))
    assert resume_run(Path("run"), until=ob.Until(versions=2)).summary.versions == 2
    Path("study/parts.json").write_text(json.dumps(PARTS[::-1]))
    with pytest.raises(RunError, match="was started with another data"):
        resume_run(Path("run"), until=ob.Until(versions=3))


def test_samples_are_not_taken_from_under_the_indices(recipe: str) -> None:
    with pytest.raises(UsageError, match=r"data\.samples and data\.root take samples out of the train set"):
        load_recipe(recipe, sets=["data.samples=100"])
