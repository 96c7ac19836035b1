"""The page about recipes has every key."""

import re
from dataclasses import fields
from pathlib import Path

from offbeat.local.training import Training
from offbeat.recipes.recipe import Recipe

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
KEYS = re.compile(r"^\| ((?:`[\w.]+`(?:, )?)+)", re.MULTILINE)


def keys(text: str) -> set[str]:
    """The keys at the beginning of the rows of tables."""
    return {key for row in KEYS.findall(text) for key in re.findall(r"[\w.]+", row)}


def test_the_page_has_a_row_for_every_key_of_the_training() -> None:
    section = PAGE.partition("\n## training\n")[2].partition("\n## ")[0].partition("\n| decay |")[0]
    assert keys(section) == {field.name for field in fields(Training)}


def test_the_page_has_a_row_for_every_key_of_a_recipe() -> None:
    assert keys(PAGE) >= set(Recipe.model_fields)
