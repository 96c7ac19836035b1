"""Functions of users' modules in a recipe, by name "module:function": data, loss, step and metrics."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import numpy as np

from offbeat.allowed import NOTHING, Allow, Allowed, Load
from offbeat.core.errors import UsageError
from offbeat.core.streams import Purpose, stream
from offbeat.core.validation import did_you_mean
from offbeat.data.convert import as_train_and_other
from offbeat.data.dataset import Samples, class_labels
from offbeat.data.federated import FederatedData, Source, federate
from offbeat.local.criterion import Evaluate, Step
from offbeat.local.examples_privacy import ExamplesPrivacy
from offbeat.local.losses import LOSSES, Loss
from offbeat.metrics.metrics_by_name import Wanted
from offbeat.named import named_errors
from offbeat.recipes.recipe import Data, Recipe
from offbeat.world.partitions import DualDirichlet

log = logging.getLogger(__name__)


def own_data(recipe: Recipe, allow: Allow = NOTHING) -> FederatedData:
    """Call the function that `data.dataset` names, and divide its result among the clients.

    Args:
        recipe: The experiment; its seed determines the partition.
        allow: What the recipe may name.

    Raises:
        UsageError: The function is not allowed, cannot be imported, raises or returns something else; or its
            data cannot be divided.
    """
    data, name = recipe.data, recipe.data.dataset or ""
    where = f"data.dataset {name}"
    function = Allowed.of(allow).load(name, "data.dataset")
    with named_errors(name, "data.dataset"):
        made = function(**data.options)
    if isinstance(made, FederatedData):
        fewer = data.drop_empty and made.clients < recipe.clients
        if made.clients != recipe.clients and not fewer:
            raise UsageError(f"clients = {recipe.clients}, and {where} returned {made.clients}: give as many")
        if data.validation:
            raise UsageError(
                f"data.validation = {data.validation:g} is not allowed: {where} returned data that are "
                "divided already; leave it out, and let the function give federate(…, validation=…)"
            )
        if data.partition != DualDirichlet():
            # A run that was recorded with one goes on, so this is no error.
            log.warning(
                "data.partition = %s divides nothing: %s returned data that are divided already",
                data.partition.kind, where,
            )  # fmt: skip
        return made
    sets, groups = ((made.train, made.test), made.groups) if isinstance(made, Source) else (made, None)
    try:
        train, test = as_train_and_other(sets, "test", data.label)
    except UsageError as error:
        raise UsageError(f"{where} returned a {type(made).__name__}: {error}") from None
    if groups is None and data.partition.kind == "natural":
        raise UsageError(
            f"data.partition 'natural' divides by groups, and {where} returned none: return "
            "offbeat.federate([one dataset per client], test), or a Source with groups"
        )
    parts = data.partition.split(
        labels_of(train, data), recipe.clients, stream(recipe.seed, Purpose.PARTITION), groups
    )
    return federate(train, test, parts, validation=data.validation, drop_empty=data.drop_empty)


def labels_of(train: Samples, data: Data) -> Any:
    """The classes that a partition divides by, int64 [N]. Raises `UsageError` where there are none."""
    known = class_labels(train)
    if known is not None:
        return known.numpy()
    if data.partition.kind not in ("iid", "natural", "file"):
        raise UsageError(
            f"data.partition {data.partition.kind!r} divides by class, which data.dataset {data.dataset} has "
            "not: return a Dataset with classes, or divide by iid, natural or file"
        )
    return np.zeros(len(train), dtype=np.int64)


class OwnTraining(TypedDict):
    """Arguments of `TorchLearner`."""

    loss: Loss | None
    step: Step | None
    evaluate: Evaluate | None
    metrics: Wanted | None
    personal: Sequence[str]
    examples: ExamplesPrivacy | None


def own_training(recipe: Recipe, allow: Allow = NOTHING) -> OwnTraining:
    """Import a recipe's functions. Raises `UsageError` for one that is not allowed, missing or unknown."""
    load = Allowed.of(allow).load
    return OwnTraining(
        loss=_loss(recipe.loss, load),
        step=_function(recipe.step, "step", load),
        evaluate=_function(recipe.evaluate_batch, "evaluate_batch", load),
        metrics=_metrics(recipe.metrics, load),
        personal=recipe.personal,
        examples=recipe.examples,
    )


def _loss(name: str | None, load: Load) -> Loss | None:
    if name is None or ":" in name:
        return _function(name, "loss", load)
    if name not in LOSSES:
        raise UsageError(f"loss = {name!r} is unknown{did_you_mean(name, LOSSES)}; or give module:function")
    return LOSSES[name]


def _metrics(wanted: tuple[str, ...] | dict[str, str] | None, load: Load) -> Wanted | None:
    if wanted is None:
        return None
    named = wanted if isinstance(wanted, dict) else {text.rpartition(":")[2]: text for text in wanted}
    if len(named) < len(wanted):
        raise UsageError(f"metrics = {list(wanted)} has a name twice: give them by name, as a mapping")
    return {n: load(text, f"metrics.{n}") if ":" in text else text for n, text in named.items()}


def _function(name: str | None, option: str, load: Load) -> Callable[..., Any] | None:
    return None if name is None else load(name, option)
