"""Experiments as data: YAML recipes, checked and run by name.

`build`, `compare` and `from_run` run recipes; they are modules of their own since they import the simulator.
"""

from offbeat.recipes.load import built_in, load_recipe
from offbeat.recipes.recipe import Recipe

__all__ = ["Recipe", "built_in", "load_recipe"]
