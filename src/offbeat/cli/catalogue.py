"""What the commands of lists show, and what a shell completes: algorithms, models, datasets, recipes.

It is a file, which `scripts/write_catalogue.py` writes: to gather it again takes importing PyTorch.
"""

from functools import cache
from importlib.resources import files

from msgspec import Struct, json

FILE = "catalogue.json"


class OptionView(Struct, frozen=True):
    """An option of an algorithm, in words."""

    name: str
    default: str
    allowed: str
    meaning: str


class PartView(Struct, frozen=True):
    """A part of an algorithm; `depth` is above 0 for a part inside another."""

    role: str
    name: str
    summary: str
    exchange: str
    depth: int


class AlgorithmView(Struct, frozen=True):
    """An algorithm, in words.

    Attributes:
        name: Its name.
        summary: What it does, in a line.
        description: More about it; may be empty.
        paper: Its paper; empty for a user's own.
        short_paper: The paper's authors and year.
        options: Its options.
        parts: The parts of which its defaults make it.
        needs: Each feature that it needs of what runs it, with what that is.
        privacy: What holds of it with privacy.
        problem: Why it cannot be made with its defaults; then it has no parts, needs and privacy.
    """

    name: str
    summary: str
    description: str
    paper: str
    short_paper: str
    options: list[OptionView]
    parts: list[PartView] = []
    needs: dict[str, str] = {}
    privacy: str = ""
    problem: str | None = None


class ModelView(Struct, frozen=True):
    """A built-in model, in words."""

    parameters: int
    samples: str
    options: list[str]
    used: str


class DatasetView(Struct, frozen=True):
    """A built-in dataset, in words."""

    size: str
    sample: str
    task: str
    groups: str
    licence: str


class Catalogue(Struct, frozen=True):
    """All that is built in, by name.

    Attributes:
        algorithms: The algorithms, in the order of their list.
        sums: Names of the algorithms for which sums of updates are enough.
        models: The models.
        datasets: The datasets.
        recipes: The title of each recipe.
    """

    algorithms: dict[str, AlgorithmView]
    sums: list[str]
    models: dict[str, ModelView]
    datasets: dict[str, DatasetView]
    recipes: dict[str, str]


@cache
def catalogue() -> Catalogue:
    """What is built in."""
    return json.decode((files("offbeat.cli") / FILE).read_bytes(), type=Catalogue)
