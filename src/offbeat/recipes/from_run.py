"""Simulating like a real run: its recipe, in a world fitted to its journal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import TypeAdapter

from offbeat.core.errors import UsageError
from offbeat.recipes.build import recorded_recipe
from offbeat.recipes.load import amend, document_of
from offbeat.recipes.recipe import Recipe
from offbeat.runs.record import RunRecord
from offbeat.world.fit import Fit, Speeds, fit_world
from offbeat.world.world import World

_WORLD: TypeAdapter[World] = TypeAdapter(World)


@dataclass(frozen=True, slots=True)
class Like:
    """What simulates like a run: a recipe whose world is the fitted one, and the fit."""

    recipe: Recipe
    fit: Fit


def simulate_like(
    record: RunRecord, *, algorithm: str | None = None, sets: Sequence[str] = (), speeds: Speeds = "jitter"
) -> Like:
    """The recipe of a run in its fitted world; with another algorithm (a label or a name) if one is given.

    `sets` are changes as of `load_recipe`, to the fitted world too. Raises `UsageError` for a run that was
    not started from a recipe, or in which no update has arrived.
    """
    recipe = recorded_recipe(record)
    fit = fit_run(record, speeds=speeds)
    document = document_of(recipe) | {"clients": len(fit.clients), "world": world_document(fit.world)}
    chosen = [f"algorithm={algorithm}"] if algorithm is not None else []
    return Like(amend(document, [*chosen, *sets], str(record.path)), fit)


def fit_run(record: RunRecord, *, speeds: Speeds = "jitter") -> Fit:
    """The world of a recorded run, finished or not."""
    try:
        clients = max([record.clients, *(client + 1 for client in record.client_samples())])
        return fit_world(record.rows(), clients, model_bits=_model_bits(record), speeds=speeds)
    except UsageError as error:
        raise UsageError(f"{record.path}: {error}") from None


def world_document(world: World) -> dict[str, Any]:
    """A world as a recipe's section has it: plain values, those that are not the defaults."""
    document: dict[str, Any] = _WORLD.dump_python(world, mode="json", exclude_defaults=True)
    document.pop("clients", None)  # the recipe says how many there are
    return document


def world_text(world: World) -> str:
    """A world as YAML, to be pasted into a recipe."""
    return yaml.safe_dump(
        {"world": world_document(world)}, sort_keys=False, default_flow_style=None, width=100
    )


def _model_bits(record: RunRecord) -> int | None:
    """Bits of a model: what had been sent at the last evaluation, over the models sent by then."""
    evaluations = record.evaluations()
    if not evaluations:
        return None
    last = evaluations[-1]
    sent = sum(row.t <= last.t for row in record.rows("command") if row.name in ("train", "send"))
    return round(8 * last.bytes_down / sent) or None if sent else None
