"""Simulation of a recorded run: its recipe, in a world fitted to its journal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import TypeAdapter

from offbeat.core.errors import UsageError
from offbeat.recipes.build import recorded_recipe
from offbeat.recipes.load import amend, document_of, own_recipe
from offbeat.recipes.recipe import Recipe
from offbeat.runs.record import RunRecord
from offbeat.world.fit import Fit, Sizes, Speeds, fit_world
from offbeat.world.world import World

_WORLD: TypeAdapter[World] = TypeAdapter(World)
MOST_COUNTS = 10
"""Most clients whose numbers of samples are said."""


@dataclass(frozen=True, slots=True)
class Like:
    """A recipe that simulates like a run: its world is the fitted one."""

    recipe: Recipe
    fit: Fit


def simulate_like(
    record: RunRecord, *, algorithm: str | None = None, sets: Sequence[str] = (), speeds: Speeds = "jitter"
) -> Like:
    """Make a recipe that simulates like a recorded run.

    Args:
        record: The run.
        algorithm: Another algorithm, a label or a name. None means the run's own. What a label sets comes
            after the run's own options, and before the fitted world.
        sets: Changes `section.key=value` as of `load_recipe`, to the fitted world too. Those of
            `algorithms.LABEL` come before the label is chosen.
        speeds: Model of the clients' speeds, as of `fit_world`.

    Raises:
        UsageError: The run was not started from a recipe, or no update has arrived in it.
    """
    recipe = recorded_recipe(record)
    fit = fit_run(record, speeds=speeds)
    if algorithm is not None:
        # The recipe of one label no longer has the others: their options must be there before.
        of_labels = [change for change in sets if change.startswith("algorithms.")]
        sets = [change for change in sets if change not in of_labels]
        chosen = amend(document_of(recipe), [*of_labels, f"algorithm={algorithm}"], str(record.path))
        recipe = own_recipe(chosen, chosen.algorithm)
    document = document_of(recipe) | {"clients": len(fit.clients), "world": world_document(fit.world)}
    return Like(amend(document, sets, str(record.path)), fit)


def other_data(record: RunRecord, like: RunRecord) -> str | None:
    """What sets the data of a simulation apart from those of the run it is like; None where nothing does.

    Args:
        record: The run. Of its clients' data it has the numbers of samples alone.
        like: The simulation.
    """
    theirs, ours = record.client_samples(), like.client_samples()
    if theirs == ours:
        return None
    return (
        f"the run's clients had {_counts(theirs)} training samples, and those of the simulation have "
        f"{_counts(ours)} by the recipe's data.partition: accuracies of the two cannot be compared"
    )


def _counts(samples: Mapping[int, int]) -> str:
    """The numbers of samples by client; of many clients the first ones."""
    shown = [str(count) for _, count in sorted(samples.items())[:MOST_COUNTS]]
    return ", ".join(shown) + (", …" if len(samples) > MOST_COUNTS else "")


def fit_run(record: RunRecord, *, speeds: Speeds = "jitter") -> Fit:
    """Fit a world to a recorded run, finished or not. Raises `UsageError` as `fit_world`."""
    try:
        clients = max([record.clients, *(client + 1 for client in record.client_samples())])
        return fit_world(record.rows(), clients, sizes=_sizes(record), speeds=speeds)
    except UsageError as error:
        raise UsageError(f"{record.path}: {error}") from None


def world_document(world: World) -> dict[str, Any]:
    """Convert a world to the section of a recipe: plain values without the defaults."""
    document: dict[str, Any] = _WORLD.dump_python(world, mode="json", exclude_defaults=True)
    # The recipe gives the number of clients.
    document.pop("clients", None)
    return document


def world_text(world: World) -> str:
    """Write a world as YAML, to be pasted into a recipe."""
    return yaml.safe_dump(
        {"world": world_document(world)}, sort_keys=False, default_flow_style=None, width=100
    )


def _sizes(record: RunRecord) -> Sizes | None:
    """Bits of a model and of an update: the bytes until the last evaluation, over what was sent by then."""
    last = record.last_evaluation()
    if last is None:
        return None
    sent = sum(row.t <= last.t for row in record.rows("command") if row.name in ("train", "send"))
    if not sent or not last.tasks:
        return None
    return Sizes(8 * last.bytes_down / sent, 8 * last.bytes_up / last.tasks)
