"""Build the objects of a simulation from a recipe, and run it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.compose import build as build_algorithm
from offbeat.algorithms.compose import check_effects
from offbeat.allowed import NOTHING, Allow, Allowed, NotAllowedError
from offbeat.callbacks.callbacks_by_name import Entry, make_callbacks
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import RunError, UsageError
from offbeat.core.learner import Learner
from offbeat.core.limits import Until
from offbeat.core.streams import Purpose, stream
from offbeat.data import federate, load, without_clients
from offbeat.data.dataset import Dataset, Samples, sample_shape
from offbeat.data.federated import FederatedData, Source
from offbeat.data.site import server_data
from offbeat.experiment import Experiment
from offbeat.local.device import check_device
from offbeat.local.feature_statistics import StatisticsLearner
from offbeat.local.torch_learner import TorchLearner
from offbeat.models.specs import ModelMaker, NamedModel
from offbeat.recipes.load import check, document_of, own_recipe
from offbeat.recipes.metrics import check_metrics
from offbeat.recipes.names import check_names
from offbeat.recipes.recipe import Recipe
from offbeat.recipes.standardize import standardized
from offbeat.recipes.user_functions import labels_of, own_data, own_training
from offbeat.runs.record import RunRecord, read_run
from offbeat.sim.execution import HERE, Execution
from offbeat.sim.progress import Watcher
from offbeat.sim.result import Run
from offbeat.sim.run_experiment import resume_experiment, simulate_experiment

log = logging.getLogger(__name__)


def make_algorithm(spec: Mapping[str, Any], allow: Allow = NOTHING) -> Algorithm:
    """Build the algorithm of a mapping such as {"label": "fedcompass+M", "name": "fedcompass", …}.

    `allow` is what a name in it may import. An option without an effect is refused.
    """
    own = {k: v for k, v in spec.items() if k not in ("label", "set")}
    algorithm = build_algorithm(ALGORITHMS, own, Allowed.of(allow).load)
    check_effects(algorithm, ALGORITHMS, own)
    return algorithm


def make_learner(recipe: Recipe, allow: Allow = NOTHING) -> TorchLearner | StatisticsLearner:
    """Build a recipe's learner: data, partition and model; the seed determines subsample and partition.

    `allow` is what the recipe may name.
    """
    own = ":" in (recipe.data.dataset or "")
    data = own_data(recipe, allow) if own else _built_in_data(recipe)
    if recipe.data.columns is not None:
        data = data.with_columns({"x": recipe.data.columns})
    if recipe.gathers_statistics:
        return StatisticsLearner(data)
    return _learner(recipe, data, data.train, allow)


def _built_in_data(recipe: Recipe) -> FederatedData:
    data, seed = recipe.data, recipe.seed
    if data.dataset is None:
        raise UsageError("data.dataset is missing: a simulation has the clients' data, so name a dataset")
    source = _source(recipe, data.dataset)
    if data.evaluate_on == "train":
        # The stream with client 0 has drawn the subsample of the dataset.
        rng = stream(seed, Purpose.SUBSET, client=1)
        count = min(len(source.test), len(source.train))
        drawn = rng.choice(len(source.train), count, replace=False)
        source = replace(source, test=source.train.subset(np.sort(drawn)))
    source, root = _root_data(source, recipe)
    labels = labels_of(source.train, data)
    parts = data.partition.split(labels, recipe.clients, stream(seed, Purpose.PARTITION), source.groups)
    natural = data.partition.kind == "natural" and len(source.group_names) == len(parts)
    clients = dict(zip(source.group_names, parts, strict=True)) if natural else parts
    return federate(source, None, clients, validation=data.validation, root=root, drop_empty=data.drop_empty)


def _source(recipe: Recipe, name: str) -> Source:
    """Load a recipe's built-in dataset."""
    data, seed = recipe.data, recipe.seed
    return load(name, samples=data.samples, test_samples=data.test_samples, seed=seed, options=data.options)


def _root_data(source: Source, recipe: Recipe) -> tuple[Source, Samples | None]:
    """Take the server's own samples at random from a train set, which the clients then have without them."""
    count, seed = recipe.data.root, recipe.seed
    if count is None:
        return source, None
    available = len(source.train)
    if count >= available:
        raise UsageError(f"data.root = {count} is not allowed: the train set has {available} samples")
    chosen = np.zeros(available, dtype=bool)
    chosen[stream(seed, Purpose.SUBSET, client=2).choice(available, count, replace=False)] = True
    taken, left = np.flatnonzero(chosen), np.flatnonzero(~chosen)
    groups = None if source.groups is None else source.groups[left]
    return replace(source, train=source.train.subset(left), groups=groups), source.train.subset(taken)


def make_server_learner(
    recipe: Recipe, test: str | None = None, allow: Allow = NOTHING
) -> TorchLearner | StatisticsLearner:
    """Build the learner of a recipe's server, which has no clients' data.

    Args:
        recipe: The experiment; its seed determines the subsample of its dataset.
        test: The test data: a built-in dataset, "module:function", or "none". None means the test set of the
            recipe's dataset, if it has one.
        allow: What the recipe may name; `test` is the person's own word.

    Raises:
        UsageError: The data cannot be loaded, or the model cannot be made.
    """
    if recipe.examples is not None:
        raise UsageError(
            "examples is the privacy that a site gives its own examples: leave it out here, and give it to "
            "offbeat join --set examples"
        )
    data = recipe.data
    if recipe.gathers_statistics:
        shape = data.sample_shape
        features = None if shape is None else prod(shape)
        return StatisticsLearner(without_clients(columns=data.columns), features, data.classes)
    tested: Samples | None = None
    root: Samples | None = None
    if test not in (None, "none"):
        tested = server_data(test)
    described = tested
    if data.dataset is not None and (tested is None or data.root is not None):
        source = _source(recipe, data.dataset)
        _, root = _root_data(source, recipe)
        if tested is None:
            tested = source.test if test is None else None
            described = source.test
    return _learner(recipe, without_clients(tested, root, data.columns), described, allow)


def _learner(recipe: Recipe, data: FederatedData, described: Samples | None, allow: Allow) -> TorchLearner:
    """The learner of some data; the model is made for the shape and the classes of `described`."""
    shape, classes = recipe.data.sample_shape, recipe.data.classes
    if isinstance(described, Dataset) or (described is not None and not isinstance(recipe.model, NamedModel)):
        shape = shape or sample_shape(described)
        classes = classes or getattr(described, "classes", None)
    spec, data = standardized(recipe, data)
    maker = ModelMaker(spec, shape, classes, load=Allowed.of(allow).load)
    # A model that does not fit the data is refused here, before anything runs.
    maker()
    return TorchLearner(maker, data, recipe.training, **own_training(recipe, allow))


def make_experiment(
    recipe: Recipe, algorithm: Algorithm, learner: Learner, label: str | None = None
) -> Experiment:
    """The experiment of a recipe, in the simulator and on a server.

    Args:
        recipe: The recipe.
        algorithm: Its algorithm.
        learner: Its learner, with the clients' data or with a server's.
        label: What the run is called. None means the algorithm's label, or its name.
    """
    called = label or str(recipe.algorithm.get("label", algorithm.name))
    return Experiment(
        algorithm, learner, recipe.seed, recipe.until, recipe.evaluate, recipe.guard, recipe.privacy,
        recipe.initial, called, document_of(recipe), recipe.wire,
    )  # fmt: skip


def run_recipe(
    recipe: Recipe,
    execution: Execution = HERE,
    *,
    out: Path | None,
    watch: Watcher | None = None,
    label: str | None = None,
    metric: str | None = None,
    allow: Allow = NOTHING,
) -> Run:
    """Simulate the algorithm of a recipe under the recipe's seed.

    Args:
        recipe: The experiment. Its algorithm may have a "label", for reports, and a "set", which changes the
            recipe.
        execution: How this machine carries the run out.
        out: The run's directory. None means that nothing is recorded.
        watch: Called with the run's progress.
        label: The run's name in reports. None means the algorithm's label, or its name.
        metric: A metric that evaluations must give, if there are any. None means any.
        allow: Code that the recipe may name: "module", whose exposed functions may be called, or
            "module:function".

    Raises:
        UsageError: The recipe, the data or the directory does not allow the run, or evaluations do not give
            the metric.
    """
    recipe = own_recipe(recipe, recipe.algorithm)
    check_names(recipe, allow)
    algorithm = make_algorithm(recipe.algorithm, allow)
    learner = make_learner(recipe, allow)
    if algorithm.schedule.one_distribution and recipe.data.partition.kind != "iid":
        log.warning(
            "%s is for clients whose data are of one distribution, and may never learn from a slow client: "
            "with partition %s choose ringleader or malenia, which count every client alike",
            algorithm.name, recipe.data.partition.kind,
        )  # fmt: skip
    if metric is not None and not recipe.evaluate.never:
        check_metrics(recipe, learner, metric)
    return simulate_experiment(
        make_experiment(recipe, algorithm, learner, label), replace(recipe.world, clients=learner.clients),
        execution, out=out, watch=watch, callbacks=make_callbacks(recipe.callbacks, allow),
    )  # fmt: skip


def resume_run(
    directory: Path,
    execution: Execution = HERE,
    *,
    watch: Watcher | None = None,
    callbacks: Sequence[Entry] | None = None,
    until: Until | None = None,
    device: str | None = None,
    allow: Allow = NOTHING,
) -> Run:
    """Resume a run that was started from a recipe; options as of `run_recipe`.

    `callbacks` are those of a recipe; None means those that the run was started with. `until` are its limits
    from now on, and `device` is where it trains; None means those that it had. `allow` is what the run's
    directory may name.
    """
    record = read_run(directory)
    recipe = recorded_recipe(record)
    if until is not None:
        recipe = recipe.model_copy(update={"until": until})
    if callbacks is not None:
        recipe = recipe.model_copy(update={"callbacks": tuple(callbacks)})
    if device is not None:
        check_device(device, "--device")
        recipe = recipe.model_copy(update={"training": replace(recipe.training, device=device)})
    check_names(recipe, allow)
    algorithm = recorded_algorithm(record, allow)
    called = make_callbacks(recipe.callbacks, allow)
    learner = make_learner(recipe, allow)
    experiment = make_experiment(recipe, algorithm, learner)
    return resume_experiment(
        directory, experiment, replace(recipe.world, clients=learner.clients), execution,
        watch=watch, callbacks=called,
    )  # fmt: skip


def recorded_recipe(record: RunRecord) -> Recipe:
    """The recipe of a recorded run. Raises `UsageError` for a run that was started from Python."""
    if record.recipe is None:
        raise UsageError(
            f"{record.path} was started from Python: resume it with offbeat.resume(directory, …)"
        )
    return check(record.recipe, str(record.path))


def recorded_algorithm(record: RunRecord, allow: Allow = NOTHING) -> Algorithm:
    """The algorithm of a recorded run.

    Args:
        record: The run.
        allow: What the run's directory may name.

    Raises:
        RunError: Its name or options are not known.
        NotAllowedError: It is a function that is not allowed.
    """
    if record.algorithm not in ALGORITHMS and ":" not in record.algorithm:
        raise RunError(f"{record.path}: its algorithm, {record.algorithm!r}, cannot be built by name")
    try:
        # What is recorded has all options, also those that no part reads.
        return build_algorithm(ALGORITHMS, record.entry("algorithm"), Allowed.of(allow).load)
    except NotAllowedError as error:
        raise NotAllowedError(f"{record.path}: {error}") from None
    except UsageError as error:
        raise RunError(
            f"{record.path} was recorded by a version of Offbeat with other options: {error}"
        ) from None
