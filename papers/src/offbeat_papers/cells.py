"""The runs of a study: one for each column, label and seed, with the digest of its options."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from offbeat.allowed import NotAllowedError
from offbeat.core.errors import UsageError, reason_of
from offbeat.core.validation import did_you_mean
from offbeat.recipes.load import amend
from offbeat.recipes.names import named_functions
from offbeat.recipes.planner import settings
from offbeat.recipes.recipe import Recipe
from offbeat.recipes.trace import inline_trace
from offbeat.runs.recorded_options import BESIDE
from offbeat_papers.load import size_columns, size_labels, study_document
from offbeat_papers.study import Size, Study

MOST_SEEDS = 1000
"""Most seeds of a study: a claim is judged by ten."""


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        study: Its study.
        size: Its size.
        column: Its column.
        label: Its label.
        digest: Digest of everything that determines the run's numbers. Runs with the same digest are one run.
        recipe: The recipe of the run, with what the label sets and with the run's seed.
    """

    study: Study
    size: Size
    column: str
    label: str
    digest: str
    recipe: Recipe

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.recipe.seed

    @property
    def name(self) -> str:
        """Name of the run within its study: "column label seed 0"."""
        return f"{self.column} {self.label} seed {self.seed}"

    def on(self, device: str) -> "Cell":
        """The same run with the same digest, trained on another device; its row says on which kind."""
        training = replace(self.recipe.training, device=device)
        return replace(self, recipe=self.recipe.model_copy(update={"training": training}))


def study_cells(
    study: Study,
    size: Size,
    *,
    columns: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    seeds: int | None = None,
    least_seeds: int = 1,
) -> list[Cell]:
    """The runs of a study at a size, seed by seed.

    Args:
        study: The study.
        size: The size.
        columns: Columns of the study. None means all that run at the size.
        labels: Labels of the study. None means all that run at the size.
        seeds: Number of seeds. None means the recipe's.
        least_seeds: Least number of seeds, also if `seeds` or the recipe has fewer.

    Raises:
        UsageError: There is no such size, column or label, or a setting is not valid.
    """
    if size not in study.sizes:
        raise UsageError(f"study {study.name} has no size {size}{did_you_mean(size, study.sizes)}")
    chosen = _chosen("--columns", columns, size_columns(study, size))
    names = _chosen("--labels", labels, size_labels(study, size))
    counts = seeds, least_seeds
    cells = [cell for column in chosen for cell in _column_cells(study, size, column, names, *counts)]
    return sorted(cells, key=lambda cell: cell.seed)


def _chosen(option: str, given: Sequence[str] | None, known: list[str]) -> list[str]:
    for name in given or ():
        if name not in known:
            raise UsageError(f"{option} {name} is unknown{did_you_mean(name, known)}")
    return known if given is None else [name for name in known if name in given]


def _column_cells(
    study: Study, size: Size, column: str, labels: Sequence[str], seeds: int | None, least: int
) -> list[Cell]:
    where = f"study {study.name}, {column}, {size}"
    document = study_document(study, size, column)
    stated = json.loads(json.dumps(document))
    recipe = amend(document, [], where)
    inline_trace(stated)
    count = max(seeds or recipe.seeds, least)
    if count > MOST_SEEDS:
        raise UsageError(f"{where} is to have {count:,} seeds, and a study has at most {MOST_SEEDS:,}")
    stated_text, cells = setting_text(stated), []
    for setting in settings(recipe, labels, where):
        # Whether a study may name a function is only known when its runs are made.
        with suppress(NotAllowedError):
            setting.algorithm()
        algorithm = algorithm_text(recipe.spec(setting.label))
        sources = own_sources(setting.recipe)
        for run in setting.runs(count):
            name = digest(stated_text, algorithm, run.seed, sources)
            cells.append(Cell(study, size, column, setting.label, name, run))
    return cells


def setting_text(document: Mapping[str, Any]) -> str:
    """The part of a recipe on which its runs depend, as written, as JSON: without the comparison's options.

    Defaults are not in it: a version of Offbeat with a further option leaves it as it is.

    Args:
        document: The recipe before it is checked, without files that it refers to.
    """
    return _json({key: value for key, value in document.items() if key not in BESIDE})


def algorithm_text(spec: Mapping[str, Any]) -> str:
    """A label's algorithm, as `Recipe.spec` gives it, as JSON without the label."""
    return _json({key: value for key, value in spec.items() if key != "label"})


def own_sources(recipe: Recipe) -> dict[str, str]:
    """Digests of the files of functions that a recipe names, by module; nothing is imported.

    A module is found as it is imported: on Python's path, and then in the current directory. What the file
    imports is not covered. A module that is not found has no digest, and no run.

    Args:
        recipe: The recipe.

    Raises:
        UsageError: A file cannot be read.
    """
    modules = {name.partition(":")[0] for _, name in named_functions(recipe) if ":" in name}
    # A row's commit says which code of Offbeat made it.
    own = {module for module in modules if module.partition(".")[0] not in ("offbeat", "offbeat_papers")}
    digests = {module: _source_digest(module) for module in sorted(own)}
    return {module: found for module, found in digests.items() if found is not None}


def _source_digest(module: str) -> str | None:
    """Digest of a module's file, on disk or in an archive; None where there is none."""
    path: Iterable[str] = [*sys.path, str(Path.cwd())]
    parts, spec = module.split("."), None
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), [*path])
        if spec is None:
            return None
        path = spec.submodule_search_locations or ()
    # Loaders of files and of archives have it; a package without a file of its own has none.
    read: Callable[[str], bytes] | None = getattr(spec and spec.loader, "get_data", None)
    if spec is None or spec.origin is None or read is None:
        return None
    try:
        return hashlib.sha256(read(spec.origin)).hexdigest()[:16]
    except (OSError, MemoryError) as error:
        raise UsageError(f"{spec.origin} cannot be read: {reason_of(error)}") from None


def digest(setting: str, algorithm: str, seed: int, sources: Mapping[str, str]) -> str:
    """Digest of a run: of its setting, its algorithm, its seed, and of the user's own code that it calls."""
    own = f",{_json(sources)}" if sources else ""
    return hashlib.sha256(f"[{setting},{algorithm},{seed}{own}]".encode()).hexdigest()[:16]


def _json(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """The value with 1.0 as 1, so that both mean the same."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
