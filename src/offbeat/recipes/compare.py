"""Comparison of algorithms: every label under every seed, each run in its own directory.

A recipe with a sweep has each label once for each combination of the sweep's values.

A comparison can be repeated on the same directory: finished runs stay as they are, interrupted ones resume
from their last checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from offbeat.allowed import NOTHING, Allow, Allowed
from offbeat.callbacks.callbacks_by_name import make_callbacks
from offbeat.core.algorithm import Algorithm
from offbeat.core.differences import first_difference
from offbeat.core.errors import UsageError
from offbeat.core.labels import check_label
from offbeat.experiment import check_clients
from offbeat.recipes.build import make_learner
from offbeat.recipes.load import check, document_of
from offbeat.recipes.metrics import check_metrics
from offbeat.recipes.planner import settings
from offbeat.recipes.recipe import Recipe
from offbeat.recipes.run_pool import ONE_OF_MANY, PlannedRun, RunProgress, run_planned
from offbeat.recipes.sweep import directory_name, sweep_points
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.recorded_options import BESIDE
from offbeat.runs.schema import DATABASE
from offbeat.sim.execution import Execution
from offbeat.sim.executors.ray.cluster import OnRay, import_ray

MAX_RUNS = 1000
# A learner's data do not depend on these options.
_NOT_OF_DATA = (*BESIDE, "until", "evaluate", "world", "training")


def plan(
    recipe: Recipe,
    labels: Sequence[str],
    seeds: int,
    out: Path,
    execution: Execution = ONE_OF_MANY,
    *,
    metric: str | None = None,
    allow: Allow = NOTHING,
) -> list[PlannedRun]:
    """Plan the runs of a comparison, and check their algorithms, data and directories.

    Args:
        recipe: The experiment.
        labels: Labels of the algorithms; each is run with each combination of the recipe's sweep.
        seeds: Number of seeds, from the recipe's on.
        out: Directory of the comparison.
        execution: How this machine carries each run out.
        metric: Metric that the runs are compared by. None means the first that they have.
        allow: What the recipe may name.

    Raises:
        UsageError: A name is not allowed; an algorithm, an option, a callback or the data is not valid;
            evaluations do not give a metric that is named; there are too many runs; or a directory holds
            another experiment's run.
    """
    allowed = Allowed.of(allow)
    # An unknown callback is refused here. Each run makes its own callbacks.
    make_callbacks(recipe.callbacks, allowed)
    combinations = len(sweep_points(recipe.sweep))
    if (count := len(labels) * combinations * seeds) > MAX_RUNS:
        raise UsageError(
            f"{len(labels)} labels x {combinations} combinations of the sweep x {seeds} seeds are {count:,} "
            f"runs, and a comparison has at most {MAX_RUNS:,}: leave out values, labels or seeds"
        )
    runs, clients = list[PlannedRun](), dict[str, int]()
    for setting in settings(recipe, labels):
        algorithm = setting.algorithm(allowed)
        data = repr(setting.recipe.model_dump(mode="json", exclude=set(_NOT_OF_DATA)))
        if data not in clients:
            learner = make_learner(setting.recipe, allowed)
            clients[data] = learner.clients
            check_metrics(setting.recipe, learner, metric)
        check_clients(algorithm, clients[data], setting.text)
        place = out / check_label(
            directory_name(setting.label, setting.point), "label with its values of the sweep,"
        )
        for own in setting.runs(seeds):
            run = PlannedRun(own, setting.text, place / f"seed-{own.seed}", execution, allowed)
            _check_same(run, algorithm)
            runs.append(run)
    if len({run.directory for run in runs}) < len(runs):
        raise UsageError("two labels of the comparison have the same directory: call one otherwise")
    return sorted(runs, key=lambda run: run.recipe.seed)


def compare(
    runs: Sequence[PlannedRun], processes: int, watch: Callable[[RunProgress], None]
) -> list[RunRecord]:
    """Simulate planned runs, several at a time.

    Args:
        runs: The runs of `plan`.
        processes: Most runs at a time, each in a process.
        watch: Called with the reports of all runs.

    Returns:
        The runs, in the order given. A run whose training diverged is among them, and says so (`diverged`).

    Raises:
        RunError: A run failed otherwise; the other runs have been finished first.
    """
    if any(isinstance(run.execution.executor, OnRay) for run in runs):
        # A missing package is reported once, before any run starts.
        import_ray()
    run_planned(runs, min(processes, len(runs)), watch, may_diverge=True)
    return [read_run(run.directory) for run in runs]


def _check_same(run: PlannedRun, algorithm: Algorithm) -> None:
    """Raises `UsageError` where the run's directory holds another experiment."""
    if not (run.directory / DATABASE).exists():
        return
    record = read_run(run.directory)
    # Checking the recorded recipe gives it the options of this version.
    recorded = record.recipe and document_of(check(record.recipe, str(record.path)))
    then = {**_essence(recorded), "algorithm": dict(record.entry("algorithm"))}
    described = {"name": algorithm.name, **algorithm.hyperparameters}
    now = {**_essence(document_of(run.recipe)), "algorithm": described}
    if (found := first_difference(then, now)) is not None:
        raise UsageError(f"{run.directory} holds another experiment's run ({found}): choose another --out")


def _essence(document: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parts of a recipe that a single run depends on."""
    return {k: v for k, v in (document or {}).items() if k not in BESIDE}
