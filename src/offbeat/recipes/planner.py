"""The planner of comparisons and studies: settings (a label, values of a sweep), and a run for each seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from offbeat.allowed import NOTHING, Allow
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import UsageError
from offbeat.recipes.build import make_algorithm
from offbeat.recipes.load import own_recipe
from offbeat.recipes.names import check_names
from offbeat.recipes.recipe import Recipe
from offbeat.recipes.sweep import SweepPoint, sweep_points
from offbeat.report.labels import label_text


@dataclass(frozen=True)
class Setting:
    """A label of a recipe under one combination of its sweep's values.

    Attributes:
        label: The label.
        point: The values of the sweep; none without a sweep.
        text: Label and values, as reports show them.
        recipe: The experiment as the setting's runs have it, under the recipe's first seed.
        source: What the recipe is from, for errors.
    """

    label: str
    point: SweepPoint
    text: str
    recipe: Recipe
    source: str = ""

    def algorithm(self, allow: Allow = NOTHING) -> Algorithm:
        """Make the setting's algorithm, and check the names in its recipe.

        Args:
            allow: What the recipe may name.

        Raises:
            NotAllowedError: The recipe names what is not allowed.
            UsageError: The algorithm, or an option of it, is not valid.
        """
        try:
            check_names(self.recipe, allow)
            return make_algorithm(self.recipe.algorithm, allow)
        except UsageError as error:
            where = ", ".join(filter(None, [self.source, self.text]))
            raise type(error)(f"{where}: {error}") from None

    def runs(self, seeds: int) -> Iterator[Recipe]:
        """The recipe of each run, under each seed: as many as `seeds`, from the recipe's first on."""
        first = self.recipe.seed
        return (self.recipe.with_seed(seed) for seed in range(first, first + seeds))


def settings(recipe: Recipe, labels: Sequence[str], source: str = "") -> list[Setting]:
    """Plan every label with every combination of the recipe's sweep, the last key first to change.

    Args:
        recipe: The experiment.
        labels: Its labels.
        source: What the recipe is from, for errors.

    Raises:
        UsageError: What a label or the sweep changes is not allowed.
    """
    points = sweep_points(recipe.sweep)
    return [_setting(recipe, label, point, source) for label, point in product(labels, points)]


def _setting(recipe: Recipe, label: str, point: SweepPoint, source: str) -> Setting:
    text = label_text(label, point.texts)
    own = own_recipe(recipe, {**recipe.spec(label), "label": text}, point.values, source)
    update: dict[str, Any] = {
        "algorithm": {**own.algorithm, "label": label},
        "sweep": {key: [value] for key, value in point.values.items()},
    }
    return Setting(label, point, text, own.model_copy(update=update), source)
