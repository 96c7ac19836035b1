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


def standardized(recipe: Recipe, data: FederatedData) -> tuple[Any, FederatedData]:
    """The recipe's model, behind the means and deviations that `data.standardize` asks for, and its data.

    The columns of the data are put in the order of the statistics, by their names.

    Args:
        recipe: The recipe.
        data: The clients' data; a server has none.

    Raises:
        UsageError: The model is a function of the user's own, there are no statistics, they cannot be
            gathered, or they are of other columns.
    """
    wanted, model = recipe.data.standardize, recipe.model
    if wanted is None:
        return model, data
    if isinstance(model, NamedModel | StandardizedSpec | StatisticsSpec):
        raise UsageError(
            "data.standardize is for a built-in model: scale the inputs in your own model, by what "
            "offbeat report shows"
        )
    if wanted != FEDERATED:
        statistics = read_statistics(wanted)
        data = data.with_columns(read_run(wanted).columns)
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
    spec = StandardizedSpec(model=model, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
    return spec, data


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
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        return FeatureStatistics.of(arrays, samples, record.columns)
    except UsageError as error:
        raise UsageError(f"{directory}: {error}") from None
