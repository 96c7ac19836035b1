from offbeat.recipes.build import run_recipe as run_recipe
from offbeat.recipes.load import load_recipe as load_recipe
from offbeat.recipes.built_in import built_in as built_in
from offbeat.recipes.recipe import Recipe as Recipe
