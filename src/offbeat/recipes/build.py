"""Build the objects of a simulation from a recipe, and run it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.compose import build as build_algorithm
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import RunError, UsageError
from offbeat.core.streams import Purpose, check_seed, stream
from offbeat.data import Dataset, FederatedData, federate, load
from offbeat.local.learner import TorchLearner
from offbeat.models.registry import build as build_module
from offbeat.recipes.load import check, document_of
from offbeat.recipes.own import own_data, own_training
from offbeat.recipes.recipe import Recipe
from offbeat.runs.record import RunRecord, read_run
from offbeat.sim.executors.batched import Batched
from offbeat.sim.executors.ray.cluster import OnRay
from offbeat.sim.progress import Watcher
from offbeat.sim.result import Run
from offbeat.sim.simulate import resume, simulate


def make_algorithm(spec: Mapping[str, Any]) -> Algorithm:
    """Build the algorithm of a mapping such as {"label": "fedcompass+M", "name": "fedcompass", …}."""
    return build_algorithm(ALGORITHMS, {k: v for k, v in spec.items() if k != "label"})


def make_learner(recipe: Recipe, seed: int) -> TorchLearner:
    """Build a recipe's learner: data, partition and model; the seed determines subsample and partition."""
    check_seed(seed)
    own = ":" in recipe.data.dataset
    data = own_data(recipe, seed) if own else _built_in_data(recipe, seed)
    train = data.train
    shape = train.sample_shape if isinstance(train, Dataset) and isinstance(train.x, Tensor) else ()
    classes = getattr(train, "classes", None) or 0
    maker = partial(build_module, recipe.model, shape, classes)
    maker()  # a model that does not fit the data is refused now
    return TorchLearner(maker, data, recipe.training, **own_training(recipe))


def _built_in_data(recipe: Recipe, seed: int) -> FederatedData:
    data = recipe.data
    source = load(data.dataset, samples=data.samples, test_samples=data.test_samples, seed=seed)
    if data.evaluate_on == "train":
        rng = stream(seed, Purpose.SUBSET, client=1)  # 0 has drawn the subsample of the dataset
        count = min(len(source.test), len(source.train))
        drawn = rng.choice(len(source.train), count, replace=False)
        source = replace(source, test=source.train.subset(np.sort(drawn)))
    labels = source.train.y.numpy()
    parts = data.partition.split(labels, recipe.clients, stream(seed, Purpose.PARTITION), source.groups)
    return federate(source, None, parts)


def run_recipe(
    recipe: Recipe,
    spec: Mapping[str, Any],
    *,
    seed: int,
    out: Path | None,
    workers: int = 0,
    executor: Batched | OnRay | None = None,
    watch: Watcher | None = None,
    client_memory: int | None = None,
) -> Run:
    """Simulate one algorithm of a recipe under one seed.

    Args:
        recipe: The experiment.
        spec: The algorithm, as `Recipe.spec` gives it; a "label" is for reports.
        seed: The run's seed.
        out: The run's directory. None means that nothing is recorded.
        workers: Number of worker processes; 0 trains in this one.
        executor: The executor. None means this process or worker processes.
        watch: Called with the run's progress.
        client_memory: Most bytes of client states in memory. None means all.

    Raises:
        UsageError: The recipe, the data or the directory does not allow the run.
    """
    algorithm = make_algorithm(spec)
    learner = make_learner(recipe, seed)
    own = recipe.model_copy(update={"seed": seed, "algorithm": dict(spec)})  # repeats exactly this run
    return simulate(
        algorithm, replace(recipe.world, clients=recipe.clients), learner,
        seed=seed, until=recipe.until, evaluate=recipe.evaluate, workers=workers, executor=executor, out=out,
        label=str(spec.get("label", spec["name"])), recipe=document_of(own), watch=watch,
        client_memory=client_memory,
    )  # fmt: skip


def resume_run(
    directory: Path,
    *,
    workers: int = 0,
    executor: Batched | OnRay | None = None,
    watch: Watcher | None = None,
    client_memory: int | None = None,
) -> Run:
    """Resume a run that was started from a recipe; options as of `run_recipe`."""
    record = read_run(directory)
    recipe = recorded_recipe(record)
    return resume(
        directory, recorded_algorithm(record), replace(recipe.world, clients=recipe.clients),
        make_learner(recipe, record.seed),
        until=recipe.until, evaluate=recipe.evaluate, workers=workers, executor=executor, watch=watch,
        client_memory=client_memory,
    )  # fmt: skip


def recorded_recipe(record: RunRecord) -> Recipe:
    """The recipe of a recorded run. Raises `UsageError` for a run that was started from Python."""
    if record.recipe is None:
        raise UsageError(
            f"{record.path} was started from Python: resume it with offbeat.resume(directory, …)"
        )
    return check(record.recipe, str(record.path))


def recorded_algorithm(record: RunRecord) -> Algorithm:
    """The algorithm of a recorded run. Raises `RunError` where its name or options are not known."""
    if record.algorithm not in ALGORITHMS:
        raise RunError(f"{record.path}: its algorithm, {record.algorithm!r}, cannot be built by name")
    try:
        return build_algorithm(ALGORITHMS, record.meta["algorithm"])
    except UsageError as error:
        raise RunError(
            f"{record.path} was recorded by a version of Offbeat with other options: {error}"
        ) from None
