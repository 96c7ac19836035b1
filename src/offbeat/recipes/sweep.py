"""The grid of a recipe's `sweep`: every value of each key with every value of the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from offbeat.report.labels import label_text, option_text, unique


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One combination of a sweep's values.

    Attributes:
        values: Value of each dotted key.
        texts: The value as it stands in labels.
    """

    values: Mapping[str, Any]
    texts: Mapping[str, str]


def sweep_points(sweep: Mapping[str, Sequence[Any]]) -> list[SweepPoint]:
    """The combinations of a sweep in order, the last key first to change; one of nothing without a sweep.

    Args:
        sweep: The values of each dotted key; equal ones are taken once.
    """
    axes = [_values(values) for values in sweep.values()]
    return [
        SweepPoint(
            {key: value for key, (_, value) in zip(sweep, chosen, strict=True)},
            {key: text for key, (text, _) in zip(sweep, chosen, strict=True)},
        )
        for chosen in product(*axes)
    ]


def directory_name(label: str, point: SweepPoint) -> str:
    """The name of the directory of a label's runs, such as "fedavg,lr=0.1,steps=40"."""
    safe = {key: text.replace("/", "_").replace("\\", "_") for key, text in point.texts.items()}
    options = label_text("", {key: text.replace(" ", "") for key, text in safe.items()})
    return label + options.replace(" ", ",")


def _values(values: Sequence[Any]) -> list[tuple[str, Any]]:
    """Text and value of each distinct value of a key; no two texts are the same."""
    distinct = list({repr(value): value for value in values}.values())
    return list(zip(unique(map(option_text, distinct)), distinct, strict=True))
