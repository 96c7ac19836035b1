"""docs/datasets.md says what the registries say, and what the models really have."""

import re
from pathlib import Path

import pytest

from offbeat.core.errors import UsageError
from offbeat.data import load
from offbeat.data.datasets_by_name import ENTRIES
from offbeat.data.download import FETCHABLE
from offbeat.models.specs import MODELS

PAGE = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Cells of the first table below a heading, without its head."""
    section = PAGE.partition(f"\n{heading}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:]]


def test_every_dataset_has_its_row():
    table = {row[0].strip("`"): row[1:] for row in rows("## Datasets")}
    assert set(table) == set(ENTRIES)
    for name, (task, size, sample, groups, _, licence) in table.items():
        entry = ENTRIES[name]
        told = (task, size, sample.replace("×", "x"), groups, licence)
        assert told == (entry.task, entry.size, entry.sample, entry.groups, entry.licence), name


def test_the_page_says_what_can_be_fetched():
    fetched = {
        name: row[2]
        for row in rows("### Files")
        for name in re.findall(r"`(\w+)`", row[0])
    }  # fmt: skip
    assert set(fetched) == set(ENTRIES)
    assert {name for name, said in fetched.items() if said == "yes"} == set(FETCHABLE)


def test_every_model_has_its_row_and_its_size():
    table = {row[0].strip("`"): row[1:] for row in rows("## Models")}
    assert list(table) == list(MODELS)
    for name, (_, parameters, of, _) in table.items():
        shape, classes = MODELS[name].example
        samples = f"{shape[0]} tokens" if len(shape) == 1 else "×".join(map(str, shape))
        assert of == f"{samples}, {classes} classes", name
        assert parameters == f"{MODELS[name].parameters:,}", name


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_a_missing_dataset_is_one_line(name, tmp_path):
    if name == "digits":
        pytest.skip("has no files")
    with pytest.raises(UsageError, match=rf"dataset '{name}' is not in {tmp_path}/{name}\S*: put ") as caught:
        load(name, root=tmp_path)
    assert "\n" not in str(caught.value)
    assert ("fetch(" in str(caught.value)) == (name in FETCHABLE)
