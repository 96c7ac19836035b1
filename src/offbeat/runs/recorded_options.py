"""The options of a recorded run: the part of its recipe that it depends on, and its algorithm."""

from collections.abc import Mapping
from typing import Any

from offbeat.runs.record import RunRecord

BESIDE = frozenset({
    "title", "about", "algorithm", "algorithms", "seed", "seeds", "metric", "target", "baseline",
    "scales", "sweep", "callbacks",
})  # fmt: skip
"""Keys of a recipe that describe a comparison, or are given to each of its runs."""


def run_options(record: RunRecord) -> dict[str, Any]:
    """Options of a run but its seed, as nested plain values.

    Args:
        record: The run. One that was started from Python recorded its algorithm and its number of clients.

    Returns:
        The keys of its recipe without those of a comparison; under "algorithm" the name and all
        hyper-parameters.
    """
    options = {key: value for key, value in (record.recipe or {}).items() if key not in BESIDE}
    known = {"clients": record.clients, "executor": "batched" if record.meta.get("batched") else None}
    return known | options | {"algorithm": record.meta.get("algorithm", {"name": record.algorithm})}


def flatten(options: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The values of nested options by dotted key; null values are left out."""
    flat: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{path}{key}.")
        elif value is not None:
            flat[f"{path}{key}"] = value
    return flat


def option(options: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, a mapping for a whole section; None where the options lack it."""
    found: Any = options
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
