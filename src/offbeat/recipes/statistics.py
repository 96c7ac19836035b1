"""Statistics of features for recipes: they are read from a run, and scale the features of another."""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.core.errors import UsageError
from offbeat.data.federated import FederatedData
from offbeat.local.feature_statistics import FeatureStatistics
from offbeat.models.specs import NamedModel, StandardizedSpec
from offbeat.recipes.recipe import Recipe, StatisticsSpec
from offbeat.runs.files import read_tensors
from offbeat.runs.record import read_run
from offbeat.runs.schema import MODEL
from offbeat.sim.gather_statistics import feature_statistics

FEDERATED = "federated"
log = logging.getLogger(__name__)


def standardized(recipe: Recipe, data: FederatedData) -> Any:
    """The recipe's model, behind the means and deviations that `data.standardize` asks for.

    Args:
        recipe: The recipe.
        data: The clients' data; a server has none.

    Raises:
        UsageError: The model is a function of the user's own, there are no statistics, or they cannot be
            gathered.
    """
    wanted, model = recipe.data.standardize, recipe.model
    if wanted is None:
        return model
    if isinstance(model, NamedModel | StandardizedSpec | StatisticsSpec):
        raise UsageError(
            "data.standardize is for a built-in model: scale the inputs in your own model, by what "
            "offbeat statistics shows"
        )
    if wanted != FEDERATED:
        statistics = read_statistics(wanted)
    elif data.clients:
        statistics = feature_statistics(data, rounded=True)
    else:
        raise UsageError(
            "data.standardize = federated is for a simulation: let sites tell their statistics first, with "
            "offbeat serve statistics --state DIR, and give that directory"
        )
    if statistics.far_apart:
        log.warning("%s", statistics.apart_text)
    mean, std = np.nan_to_num(statistics.mean), np.nan_to_num(statistics.std)
    return StandardizedSpec(model=model, mean=tuple(mean.tolist()), std=tuple(std.tolist()))


def read_statistics(directory: str | Path) -> FeatureStatistics:
    """Read what a run of the recipe "statistics" has gathered, in a simulation or from sites.

    Raises:
        UsageError: The directory holds no such run, or it has not finished.
    """
    record = read_run(directory)
    if record.status != "finished":
        raise UsageError(f"{directory}: the run is {record.status}: let it finish first")
    tensors = read_tensors(record.path / MODEL)
    samples = sum(record.client_samples().values())
    try:
        return FeatureStatistics.of({name: tensor.numpy() for name, tensor in tensors.items()}, samples)
    except UsageError as error:
        raise UsageError(f"{directory}: {error}") from None
