"""Labels that tell runs apart: first by their names, then by the options in which they differ.

Runs of one label are the seeds of one experiment only if they were started with the same options. Where they
were not, or where a seed occurs twice, they become several groups, each with a label of its own.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from offbeat.core.errors import UsageError
from offbeat.runs.record import RunRecord
from offbeat.runs.recorded_options import flatten, option, run_options

_LONGEST = 40
# These keys say what their section is.
_KINDS = ("name", "kind", "law")


@dataclass(frozen=True, slots=True)
class Label:
    """Name of a group of runs.

    Attributes:
        text: The whole label, which no other group has.
        name: The label without options.
        options: Values, as text, of the options that distinguish groups with this name, by dotted key;
            without those that the group's runs do not have.
    """

    text: str
    name: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LabelledRuns:
    """The runs of one label, a run for each seed, in the order of their seeds."""

    label: Label
    runs: tuple[RunRecord, ...]


def group_by_label(records: Sequence[RunRecord]) -> list[LabelledRuns]:
    """Group runs that differ in nothing but their seed, and give each group a label of its own.

    Args:
        records: The runs. One that is there twice, from the same directory, counts once.

    Returns:
        The groups in order of appearance; their runs carry the group's label, and their times count from
        the moment that they began.

    Raises:
        UsageError: There is no run.
    """
    if not records:
        raise UsageError("there is no run to report on: give at least one finished or running run")
    runs = list({record.path.resolve(): record for record in records}.values())
    names = dict.fromkeys(run.label for run in runs)
    groups = [group for name in names for group in _told_apart([run for run in runs if run.label == name])]
    texts = unique(group.label.text for group in groups)
    keys = list(dict.fromkeys(key for group in groups for key in group.label.options))
    return [_finished(group, text, keys) for group, text in zip(groups, texts, strict=True)]


def in_recipe_order(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Sort runs by label as the first run's recipe lists them, by the values of a sweep, and by seed."""
    listed = list((records[0].recipe or {}).get("algorithms", {})) if records else []

    def rank(run: RunRecord) -> tuple[Any, ...]:
        name, options = _name(run)
        place = listed.index(name) if name in listed else len(listed)
        return place, name, [_natural(text) for text in options.values()], run.label, run.seed

    return sorted(records, key=rank)


def label_text(name: str, options: Mapping[str, str]) -> str:
    """A name with options, such as "fedavg lr=0.1 steps=40"."""
    short = short_keys(options)
    return " ".join([name, *(f"{short[key]}={value}" for key, value in options.items())])


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Shorten dotted keys to their last words, to as many as tell them apart: "training.lr" to "lr"."""
    words = {key: _words(key) for key in keys}
    short = {}
    for key, own in words.items():
        others = [other for name, other in words.items() if name != key]
        known = (own[-n:] for n in range(1, len(own) + 1))
        ends = next((end for end in known if all(other[-len(end) :] != end for other in others)), None)
        short[key] = key if ends is None else ".".join(ends)
    return short


def option_text(value: Any) -> str:
    """An option's value in a few characters: "0.1", "true", "none", "{kind: iid}"."""
    text = " ".join(_exact(value).replace('"', "").split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def shortened(text: str, most: int) -> str:
    """A text of at most `most` characters: of a longer one both ends."""
    if len(text) <= most:
        return text
    end = 2 * most // 3
    return f"{text[: most - end - 1]}…{text[-end:]}"


def unique(texts: Iterable[str]) -> list[str]:
    """The texts, of which those that were there before get a number, such as "a #2"."""
    seen = dict[str, None]()
    for text in texts:
        own, number = text, 2
        while own in seen:
            own, number = f"{text} #{number}", number + 1
        seen[own] = None
    return list(seen)


def _told_apart(runs: Sequence[RunRecord]) -> list[LabelledRuns]:
    """Groups of runs that were called the same: by their options, and by place where these are equal."""
    alike: dict[tuple[tuple[str, str], ...], list[RunRecord]] = {}
    for run in runs:
        exact = {key: _exact(value) for key, value in flatten(run_options(run)).items()}
        alike.setdefault(tuple(sorted(exact.items())), []).append(run)
    known = [flatten(run_options(group[0])) for group in alike.values()]
    shown = [{key: option_text(value) for key, value in options.items()} for options in known]
    telling = _telling(shown)
    units: dict[tuple[tuple[str, str], ...], list[list[RunRecord]]] = {}
    for options, group in zip(shown, alike.values(), strict=True):
        values = tuple((key, options[key]) for key in telling if key in options)
        units.setdefault(values, []).extend(_each_seed_once(group))
    labelled = []
    for values, same in units.items():
        for unit, place in zip(same, _places(same), strict=True):
            name, swept = _name(unit[0])
            text = label_text(unit[0].label, dict(values))
            label = Label(text + place, name + place, swept | dict(values))
            labelled.append(LabelledRuns(label, tuple(unit)))
    return labelled


def _finished(group: LabelledRuns, text: str, keys: Sequence[str]) -> LabelledRuns:
    """The group under its whole label, with its values of the options by which any groups are told apart."""
    known = run_options(group.runs[0])
    found = {key: value for key in keys if (value := option(known, key)) is not None}
    options = {key: option_text(value) for key, value in found.items()} | dict(group.label.options)
    runs = sorted(group.runs, key=lambda run: run.seed)
    return LabelledRuns(
        Label(text, group.label.name, {key: options[key] for key in keys if key in options}),
        tuple(replace(run.from_begin(), label=text) for run in runs),
    )


def _name(run: RunRecord) -> tuple[str, dict[str, str]]:
    """A run's label without the values of the sweep that it is part of, and these."""
    recipe = run.recipe or {}
    algorithm, sweep = recipe.get("algorithm"), recipe.get("sweep") or {}
    name = algorithm.get("label") if isinstance(algorithm, Mapping) else None
    options = {key: option_text(values[0]) for key, values in sweep.items() if len(values) == 1}
    if isinstance(name, str) and options and run.label.startswith(f"{name} "):
        return name, options
    return run.label, {}


def _telling(options: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys whose values tell the options apart as far as they differ; none of them could be left out."""
    keys = list(dict.fromkeys(key for one in options for key in one))

    def told(shortest: Sequence[str]) -> int:
        return len({tuple(one.get(key) for key in shortest) for one in options})

    shortest: list[str] = []
    while told(shortest) < told(keys):
        shortest.append(max(keys, key=lambda key: told([*shortest, key])))
    for key in list(shortest):
        others = [other for other in shortest if other != key]
        if told(others) == told(keys):
            shortest = others
    return [key for key in keys if key in shortest]


def _each_seed_once(runs: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Divide runs of equal options: by their folder where a seed occurs twice, else one by one."""
    if _distinct(runs):
        return [list(runs)]
    folders: dict[Path, list[RunRecord]] = {}
    for run in runs:
        folders.setdefault(run.path.parent, []).append(run)
    return [
        part
        for folder in folders.values()
        for part in ([folder] if _distinct(folder) else [[run] for run in folder])
    ]


def _distinct(runs: Sequence[RunRecord]) -> bool:
    return len({run.seed for run in runs}) == len(runs)


def _places(units: Sequence[Sequence[RunRecord]]) -> list[str]:
    """The place of each of several units, as far as places differ: " (trial)"; nothing for a single unit."""
    if len(units) == 1:
        return [""]
    paths = [unit[0].path if len(unit) == 1 else unit[0].path.parent for unit in units]
    parts = [path.resolve().parts for path in paths]
    start = _common(parts)
    end = _common([part[:start:-1] for part in parts])
    own = [part[start : len(part) - end] or part[-1:] for part in parts]
    names = ["/".join(part) for part in own]
    return [f" ({name})" for name in unique(names)]


def _common(parts: Sequence[Sequence[str]]) -> int:
    """How many first parts of several paths are the same."""
    return sum(1 for _ in takewhile(lambda words: len(set(words)) == 1, zip(*parts, strict=False)))


def _words(key: str) -> list[str]:
    words = key.split(".")
    return words[:-1] if len(words) > 1 and words[-1] in _KINDS else words


def _exact(value: Any) -> str:
    """The whole value as text; 1.0 is 1."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return repr(value).removesuffix(".0")
        case str() | int():
            return str(value)
        case _:
            return json.dumps(value, default=str)


def _natural(text: str) -> tuple[bool, float, str]:
    """Sort key that orders numbers by value, before all other texts."""
    try:
        return False, float(text), ""
    except ValueError:
        return True, 0.0, text
