"""Load recipes: find, read, change and check them."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from offbeat.algorithms import ALGORITHMS
from offbeat.core.errors import UsageError, reason_of
from offbeat.core.labels import check_label
from offbeat.core.limits import Until
from offbeat.core.validation import (
    MAPPING_EXPECTED,
    UNKNOWN_KEY,
    as_written,
    did_you_mean,
    format_error,
    most_relevant,
)
from offbeat.documents import parse_yaml, read_text
from offbeat.recipes.assignments import assignment, assignments, set_key
from offbeat.recipes.built_in import find_recipe
from offbeat.recipes.hints import keys_allowed, places_of
from offbeat.recipes.recipe import Recipe
from offbeat.recipes.trace import inline_label_trace, inline_trace, resolve_trace_path
from offbeat.runs.recorded_options import BESIDE


def load_recipe(
    name: str,
    *,
    sets: Sequence[str] = (),
    scales: Sequence[str] = (),
    seed: int | None = None,
    sweeps: Sequence[str] = (),
) -> Recipe:
    """Load a recipe and apply changes to it.

    Args:
        name: Path of a YAML file, or name of a built-in recipe.
        sets: Changes `section.key=value` with a YAML value, each key once, applied after the scales. A path
            in them (`world.trace`, `initial`, `data.partition.path`) is relative to the current directory,
            one in the recipe to the recipe's own.
        scales: Names of the recipe's own sets of changes, applied in this order.
        seed: The seed. None means the recipe's own.
        sweeps: Values of further keys of its `sweep`, `section.key=value,value,…` each; those of one key add
            up.

    Raises:
        UsageError: The recipe is not found, is not valid, or a change is not allowed; one line.
    """
    path, document = _read(name)
    known = _mapping(document, "scales")
    for scale in scales:
        if not known:
            raise UsageError(f"--scale {scale} is not allowed: {name} has no scales; leave it out")
        if scale not in known:
            raise UsageError(f"--scale {scale} is unknown{did_you_mean(scale, known)}")
        for key, value in _mapping(known, scale, "scales").items():
            change(document, str(key), value)
    keys = {text.partition("=")[0].partition(".")[0] for text in sets}
    for given, key in ((seed is not None, "seed"), (sweeps, "sweep")):
        if given and key in keys:
            raise UsageError(f"--{key} and --set {key} are both given: leave one out")
    if seed is not None:
        document["seed"] = seed
    resolve_trace_path(document, path.parent)
    for changes in _label_changes(document):
        inline_label_trace(changes, path.parent)
    for section in (document, *_label_changes(document)):
        _resolve_paths(section, path.parent)
    swept: dict[str, list[Any]] = {}
    for text in sweeps:
        key, values = assignment(text, "--sweep", "section.key=value,value", "[{}]")
        swept.setdefault(key, []).extend(values)
    if swept:
        document["sweep"] = _mapping(document, "sweep") | swept
    recipe = amend(document, sets, name)
    if (label := recipe.algorithm.get("label")) is not None:
        check_label(label, f"{name}: algorithm.label =")
    return recipe


def amend(document: dict[str, Any], sets: Sequence[str], source: str) -> Recipe:
    """Apply changes, `section.key=value` each, to a document and check it; errors begin with `source`.

    A trace is read, so that the recipe holds the world itself.
    """
    changes = assignments(sets)
    for key, value in changes:
        change(document, key, value)
    _choose(document)
    algorithm = document["algorithm"]
    if isinstance(algorithm, dict) and isinstance(algorithm.get("set"), dict):
        # Options given with `--set` replace those of the document.
        options = {
            key: value for key, value in changes if key.split(".")[0] not in BESIDE and key != "world.trace"
        }
        document["algorithm"] = algorithm | {"set": algorithm["set"] | options}
    inline_trace(document)
    _resolve_paths(document, Path.cwd())
    return check(document, source)


def changed_limits(document: Mapping[str, Any], sets: Sequence[str], source: str) -> Until:
    """The limits of a recorded recipe with changes.

    Args:
        document: The recipe.
        sets: The changes, `until.key=value` each; null for no limit.
        source: What the recipe is from, for errors.

    Raises:
        UsageError: A change is not one of the limits, or is not allowed.
    """
    for text in sets:
        if text.split("=")[0].split(".")[0] != "until":
            raise UsageError(
                f"--set {text} is not allowed: a run goes on as it was begun, and only its limits change; "
                "write until.KEY=VALUE, or run the changed recipe anew"
            )
    return amend(deepcopy(dict(document)), sets, source).until


def own_recipe(
    recipe: Recipe, spec: Mapping[str, Any], changes: Mapping[str, Any] = {}, source: str = ""
) -> Recipe:
    """The recipe of the runs of one label: with the label's changes, and with its algorithm.

    Args:
        recipe: The experiment.
        spec: The label's algorithm, as `Recipe.spec` gives it.
        changes: Further changes, by dotted key, that come after those.
        source: What the recipe is from, for errors.

    Raises:
        UsageError: A change is not allowed; one line with the label.
    """
    algorithm = {key: value for key, value in spec.items() if key != "set"}
    changes = {**spec.get("set", {}), **changes}
    if not changes:
        return recipe.model_copy(update={"algorithm": algorithm})
    # What is checked already stays as it is: a recipe may have many labels, and each is checked so.
    beside = {name: getattr(recipe, name) for name in BESIDE if name != "algorithm"}
    document = {name: getattr(recipe, name) for name in Recipe.model_fields if name not in BESIDE}
    document |= recipe.model_dump(mode="json", include={key.split(".")[0] for key in changes} - BESIDE)
    document["algorithm"] = algorithm
    where = ": ".join(filter(None, [source, f"label {spec.get('label', spec['name'])}"]))
    for key, value in changes.items():
        change(document, key, deepcopy(value), where)
    _resolve_paths(document, Path.cwd())
    return _validated(document, where).model_copy(update=beside)


def check(document: Any, source: str) -> Recipe:
    """Validate a document, and its labels' changes; errors begin with `source`."""
    recipe = _validated(document, source)
    for label in recipe.algorithms:
        own_recipe(recipe, recipe.spec(label), source=source)
    base, known = recipe.baseline, {*recipe.algorithms, *ALGORITHMS}
    if base is not None and base not in known:
        raise UsageError(f"{source}: baseline {base!r} is none of the algorithms{did_you_mean(base, known)}")
    return recipe


def _validated(document: Any, source: str) -> Recipe:
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        problem = most_relevant(error)
        where = problem["loc"]
        if problem["type"] in UNKNOWN_KEY and (meant := places_of(where, as_written(where, document))):
            key, places = (
                ".".join(map(str, as_written(where, document))),
                " or ".join(f'"{place}"' for place in meant),
            )
            raise UsageError(f"{source}: unknown key {key}; did you mean {places}?") from None
        inner = keys_allowed((*where, "")) if problem["type"] in MAPPING_EXPECTED else []
        keys = f" with keys of {', '.join(inner)}" if inner else ""
        text = format_error(error, keys_allowed(where), document=document)
        raise UsageError(f"{source}: {text}{keys}") from None


def _read(name: str) -> tuple[Path, dict[str, Any]]:
    """Find a recipe, a file or a built-in one, and read its raw mapping."""
    path = find_recipe(name)
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"recipe {name} cannot be read: {reason_of(error)}") from None
    document = parse_yaml(text, f"recipe {name}")
    if not isinstance(document, dict):
        raise UsageError(f"recipe {name} is not a mapping of sections such as data, model and world")
    return path, document


def change(document: dict[str, Any], key: str, value: Any, where: str = "--set") -> None:
    """Set a dotted key. `algorithm.name=LABEL` chooses the label, as `algorithm=LABEL` does."""
    if key == "algorithm.name":
        key = "algorithm"
    if key.startswith("algorithm."):
        _choose(document)
    set_key(document, key, value, where)


def _choose(document: dict[str, Any]) -> None:
    """Replace an algorithm's label by its name and options."""
    algorithms = _mapping(document, "algorithms")
    chosen = document.get("algorithm", next(iter(algorithms), "fedcompass"))
    if isinstance(chosen, str):
        if chosen not in algorithms and chosen not in ALGORITHMS and ":" not in chosen:
            hint = did_you_mean(chosen, {*algorithms, *ALGORITHMS})
            raise UsageError(f"algorithm {chosen!r} is unknown{hint}")
        own = _mapping(algorithms, chosen, "algorithms")
        document["algorithm"] = {"label": chosen, "name": chosen, **own}
    elif not isinstance(chosen, dict):
        raise UsageError(
            f"algorithm = {chosen!r} is not allowed: write a name, such as fedbuff, or a mapping"
        )


def _mapping(section: dict[str, Any], key: str, path: str = "") -> dict[str, Any]:
    """The mapping under a key of a section; empty where the section lacks the key."""
    value = section.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        where = f"{path}.{key}" if path else key
        raise UsageError(f"{where} = {value!r} is not allowed: should be a mapping")
    return value


def _resolve_paths(section: dict[str, Any], directory: Path) -> None:
    """Make paths absolute: a run may be resumed from another directory.

    They are those of initial weights and of a partition's file.
    """
    for dotted in ("initial", "data.partition.path"):
        for holder, key in _holders(section, dotted):
            holder[key] = str((directory / holder[key]).absolute())


def _holders(section: dict[str, Any], dotted: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Where a section has texts under a dotted key, whose parts may be keys of sections within it."""
    parts = dotted.split(".")
    for count in range(1, len(parts) + 1):
        key, rest = ".".join(parts[:count]), ".".join(parts[count:])
        inner = section.get(key)
        if rest and isinstance(inner, dict):
            yield from _holders(inner, rest)
        elif not rest and isinstance(inner, str):
            yield section, key


def _label_changes(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The options that the labels of a document set, of those labels that set any."""
    labels = (own for own in _mapping(document, "algorithms").values() if isinstance(own, dict))
    return [changes for own in labels if isinstance(changes := own.get("set"), dict)]


def document_of(recipe: Recipe) -> dict[str, Any]:
    """Convert a recipe to plain JSON values, as a run's directory records it."""
    return recipe.model_dump(mode="json")
