"""A recipe goes a straight way from the command line to a run's first event."""

from pathlib import Path

import pytest

import offbeat
from tests.script_modules import load_script

SCRIPT = Path(__file__).parents[2] / "scripts" / "trace_recipe.py"
STAYS = 30


def test_a_recipe_stays_in_few_places_on_its_way() -> None:
    if not Path(offbeat.__file__).is_relative_to(SCRIPT.parents[1]):
        pytest.skip("the package under test is not this checkout")
    module = load_script(SCRIPT)
    stays = module.trace_recipe("digits")
    assert len(stays) <= STAYS, stays
    passed = {name.removeprefix("offbeat.") for name, _ in stays}
    assert passed >= {
        "recipes.load",
        "recipes.build",
        "sim.run_experiment",
        "sim.simulation",
    }  # it saw the way
