"""Load studies, and make the recipe of each of their settings."""

import json
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from offbeat.core.errors import UsageError, reason_of
from offbeat.core.validation import did_you_mean, format_error, most_relevant
from offbeat.documents import parse_yaml, read_text
from offbeat.recipes.load import amend, change
from offbeat.recipes.recipe import Recipe, Section
from offbeat.recipes.trace import resolve_trace_path
from offbeat_papers.study import Item, PaperClaim, Size, Study, StudySize


def built_in_studies() -> dict[str, Path]:
    """Paths of the built-in studies of papers by name, "paper/study"."""
    return _studies("studies", "*/*.yaml")


def leaderboard_studies() -> dict[str, Path]:
    """Paths of the leaderboard's studies by name, "leaderboard/data"."""
    return _studies(".", "leaderboard/*.yaml")


def _studies(folder: str, pattern: str) -> dict[str, Path]:
    root = Path(str(files("offbeat_papers"))) / folder
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.glob(pattern))}


def load_study(name: str | Path) -> Study:
    """Load a study.

    Args:
        name: Path of a YAML file, or name of a built-in study.

    Raises:
        UsageError: The study is not found or not valid; the message is one line.
    """
    path, known = Path(name), {**built_in_studies(), **leaderboard_studies()}
    if not path.is_file():
        if str(name) not in known:
            raise UsageError(f"study {name} is neither a file nor built in{did_you_mean(str(name), known)}")
        path = known[str(name)]
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"study {name} cannot be read: {reason_of(error)}") from None
    full_name = f"{path.resolve().parent.name}/{path.stem}"
    return _read_study(text, str(name), full_name, path.parent).model_copy(deep=True)


@lru_cache(maxsize=64)
def _read_study(text: str, given: str, full_name: str, folder: Path) -> Study:
    """The study of a file's text; a text is read once, as that takes a tenth of a second."""
    document = parse_yaml(text, f"study {given}")
    if not isinstance(document, dict):
        raise UsageError(f"study {given} is not a mapping with recipe, columns, sizes and items")
    recipe = document.get("recipe")
    if isinstance(recipe, dict):
        resolve_trace_path(recipe, folder)
    return make_study(full_name, document)


def make_study(name: str, document: Mapping[str, Any]) -> Study:
    """Check the document of a study. Raises `UsageError`, one line, where it is not valid."""
    try:
        return Study.model_validate({**document, "name": name})
    except ValidationError as error:
        section, *inner = most_relevant(error)["loc"] or ("",)
        where = (
            f"study {name}, {inner[0]}"
            if section in ("items", "sizes", "columns") and inner
            else f"study {name}"
        )
        sections: dict[str, type[Section]] = {"items": Item, "sizes": StudySize}
        allowed = PaperClaim if "claims" in inner[:-1] else sections.get(str(section), Study)
        raise UsageError(f"{where}: {format_error(error, allowed.model_fields)}") from None


def find_item(name: str) -> tuple[Study, str]:
    """Find "paper/item" among the built-in studies of the paper, or in a file, "path.yaml:item".

    Raises:
        UsageError: There is no such item, or a study cannot be loaded.
    """
    known = items_of(name)
    if name in known:
        return known[name]
    if Path(name).suffix in (".yaml", ".yml"):
        items = ", ".join(load_study(name).items)
        raise UsageError(f"{name} is a study, with the items {items}: give one, as {name}:ITEM")
    raise UsageError(f"item {name} is unknown{did_you_mean(name, known or all_items())}")


def parts_of(experiment: str) -> dict[str, tuple[Study, str]]:
    """Study and item by name of the parts of an experiment, such as "fedcompass/table-1".

    Args:
        experiment: "paper/experiment".
    """
    known = {} if ":" in experiment else items_of(experiment)
    return {name: found for name, found in known.items() if name.startswith(f"{experiment}-")}


def items_of(name: str) -> dict[str, tuple[Study, str]]:
    """Study and item by name of all the items that share a name's paper or file."""
    path, colon, _ = name.rpartition(":")
    if colon:
        study = load_study(path)
        return {f"{path}:{item}": (study, item) for item in study.items}
    paper = name.partition("/")[0]
    studies = [load_study(known) for known in built_in_studies() if known.split("/")[0] == paper]
    return {f"{paper}/{item}": (study, item) for study in studies for item in study.items}


def all_items() -> dict[str, tuple[Study, str]]:
    """Study and item of every item of the built-in studies, by name."""
    papers = dict.fromkeys(known.split("/")[0] for known in built_in_studies())
    return {name: found for paper in papers for name, found in items_of(paper).items()}


def study_document(study: Study, size: Size, column: str) -> dict[str, Any]:
    """The recipe of a setting as a raw document: the study's, changed by the column and then by the size.

    Raises:
        UsageError: The study has no such size, or a change is not allowed.
    """
    if size not in study.sizes:
        raise UsageError(f"study {study.name} has no size {size}{did_you_mean(size, study.sizes)}")
    # Copying through JSON separates values that YAML's aliases share.
    document: dict[str, Any] = json.loads(json.dumps(study.recipe))
    for name, changes in ((f"columns.{column}", study.columns[column]), (size, study.sizes[size].set)):
        for key, value in changes.items():
            _change(document, str(key), value, f"study {study.name}: {name}:")
    return document


def study_recipe(study: Study, size: Size, column: str) -> Recipe:
    """The checked recipe of a setting. Raises `UsageError` as `study_document` and a recipe do."""
    where = f"study {study.name}, {column}, {size}"
    return amend(study_document(study, size, column), [], where)


def check_study(study: Study) -> None:
    """Check the recipes of all settings of a study. Raises `UsageError`, one line, for the first bad one."""
    for size in study.sizes:
        for column in size_columns(study, size):
            study_recipe(study, size, column)


def size_columns(study: Study, size: Size) -> list[str]:
    """Columns of a study that are run at a size."""
    own = study.sizes[size].columns
    return list(study.columns) if own is None else own


def size_labels(study: Study, size: Size) -> list[str]:
    """Labels of a study that are run at a size."""
    own = study.sizes[size].labels
    return study.labels if own is None else own


def _change(document: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set a dotted key of a recipe; "algorithms.*.option" of each label that has the option."""
    section, _, dotted = key.partition(".")
    if section != "algorithms" or not dotted:
        change(document, key, deepcopy(value), where)
        return
    labels = {
        str(label): algorithm
        for label, algorithm in document["algorithms"].items()
        if isinstance(algorithm, dict)
    }
    if dotted.startswith("*."):
        option = dotted.removeprefix("*.")
        chosen = [algorithm for algorithm in labels.values() if option.split(".")[0] in algorithm]
    else:
        # A label may have dots, so the longest match is taken.
        label = max((label for label in labels if dotted.startswith(f"{label}.")), key=len, default="")
        option = dotted.removeprefix(f"{label}.")
        chosen = [labels[label]] if label else []
    if not chosen:
        raise UsageError(f"{where} {key} is not allowed: no label has it{did_you_mean(dotted, labels)}")
    for algorithm in chosen:
        change(algorithm, option, deepcopy(value), where)
