from offbeat.recipes.build import run_recipe as run_recipe
from offbeat.recipes.load import built_in as built_in, load_recipe as load_recipe
from offbeat.recipes.recipe import Recipe as Recipe
