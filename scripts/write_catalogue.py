"""Write what is built in: the names that Python and type checkers read, and what the commands of lists show.

    python scripts/write_catalogue.py

Gathering both takes importing PyTorch, which `import offbeat` and `offbeat algorithms` need not. The stub
`src/offbeat/algorithms/_factories.pyi` says in which module each published algorithm is, and
`src/offbeat/cli/catalogue.json` has the algorithms, models, datasets and recipes in words. Tests compare both
with what is found.
"""

from dataclasses import fields
from pathlib import Path

from msgspec import json

from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.privacy.private import sum_only
from offbeat.cli.catalogue import FILE, Catalogue, DatasetView, ModelView
from offbeat.cli.list import view_of
from offbeat.data.datasets_by_name import ENTRIES
from offbeat.models.specs import MODELS, ModelEntry, shown_shapes
from offbeat.recipes.built_in import built_in
from offbeat.recipes.load import load_recipe

SOURCE = Path(__file__).parents[1] / "src/offbeat"
STUB, CATALOGUE = SOURCE / "algorithms/_factories.pyi", SOURCE / "cli" / FILE


def stub() -> str:
    """The stub: one import for each factory."""
    lines = sorted(f"from {f.make.__module__} import {name} as {name}" for name, f in ALGORITHMS.items())
    return "\n".join(["# Written by scripts/write_catalogue.py.", *lines, ""])


def catalogue() -> str:
    """The catalogue as JSON."""
    found = Catalogue(
        {name: view_of(factory) for name, factory in ALGORITHMS.items()},
        list(sum_only()),
        {name: _model(entry) for name, entry in MODELS.items()},
        {name: DatasetView(e.size, e.sample, e.task, e.groups, e.licence) for name, e in ENTRIES.items()},
        {name: load_recipe(name).title for name in built_in()},
    )
    return json.format(json.encode(found), indent=1).decode() + "\n"


def _model(entry: ModelEntry) -> ModelView:
    options = [field.name for field in fields(entry.spec) if field.name != "name"]
    return ModelView(entry.parameters, shown_shapes(entry), options, entry.used)


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
    CATALOGUE.write_text(catalogue(), encoding="utf-8")
