"""Comparison of algorithms: every label under every seed, several runs at a time, each in its own directory.

A recipe with a sweep has each label once for each combination of the sweep's values.

A comparison can be repeated on the same directory: finished runs stay as they are, interrupted ones resume
from their last checkpoint.
"""

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

from offbeat.allowed import NOTHING, Allow, Allowed
from offbeat.callbacks.registry import make_callbacks
from offbeat.core.algorithm import Algorithm
from offbeat.core.differences import first_difference
from offbeat.core.errors import DivergedError, OffbeatError, RunError, UsageError
from offbeat.core.schedule_rule import without_rule
from offbeat.experiment import check_concurrency
from offbeat.recipes.build import make_algorithm, make_learner, resume_run, run_recipe
from offbeat.recipes.load import check, document_of, own_recipe
from offbeat.recipes.metrics import check_metrics
from offbeat.recipes.names import check_names
from offbeat.recipes.recipe import Recipe
from offbeat.recipes.sweep import directory_name, sweep_points
from offbeat.report.labels import label_text
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.recorded_options import BESIDE
from offbeat.runs.schema import DATABASE
from offbeat.sim.execution import Execution
from offbeat.sim.executors.ray.cluster import OnRay, import_ray
from offbeat.sim.executors.start_method import adopt_environment, worker_context
from offbeat.sim.progress import Progress
from offbeat.sim.signals import terminated_as_interrupted

MAX_RUNS = 1000
OF_A_COMPARISON = Execution(keep_checkpoint=False)
"""Each run in its own process; many ended runs shall not keep a model each."""
_NOT_OF_DATA = (*BESIDE, "until", "evaluate", "world", "training")  # a learner's data do not depend on these


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison.

    Attributes:
        recipe: The experiment as this run has it, with its algorithm and its seed.
        label: What the run is called: the label, with the values of a sweep.
        directory: The run's directory.
        execution: How this machine carries the run out; a comparison's runs keep no checkpoint of their end.
        allow: What the recipe may name.
    """

    recipe: Recipe
    label: str
    directory: Path
    execution: Execution = OF_A_COMPARISON
    allow: Allowed = NOTHING

    @property
    def name(self) -> str:
        """Label and seed."""
        return f"{self.label} seed {self.recipe.seed}"


@dataclass(frozen=True)
class RunProgress:
    """A report of one run.

    Attributes:
        name: Label and seed of the run.
        progress: Its progress. None means that the run has ended.
        finished: Whether the run has ended.
        error: Why the run failed. None means that it has not failed.
        diverged: Whether it failed because its training has diverged.
        processor: Processor seconds of the whole run. None means that it has not ended, or was resumed.
    """

    name: str
    progress: Progress | None = None
    finished: bool = False
    error: str | None = None
    diverged: bool = False
    processor: float | None = None


def plan(
    recipe: Recipe,
    labels: Sequence[str],
    seeds: int,
    out: Path,
    execution: Execution = OF_A_COMPARISON,
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
    make_callbacks(recipe.callbacks, allowed)  # one that is unknown is refused now; each run makes its own
    points = sweep_points(recipe.sweep)
    count = len(labels) * len(points) * seeds
    if count > MAX_RUNS:
        raise UsageError(
            f"{len(labels)} labels x {len(points)} combinations of the sweep x {seeds} seeds are {count:,} "
            f"runs, and a comparison has at most {MAX_RUNS:,}: leave out values, labels or seeds"
        )
    runs, clients = [], dict[str, int]()
    for label, point in product(labels, points):
        spec, text = recipe.spec(label), label_text(label, point.texts)
        own = own_recipe(recipe, {**spec, "label": text}, point.values)
        own = own.model_copy(
            update={
                "algorithm": {**own.algorithm, "label": label},
                "sweep": {key: [value] for key, value in point.values.items()},
            }
        )
        try:
            check_names(own, allowed)
            algorithm = make_algorithm(own.algorithm, allowed)
        except UsageError as error:
            raise UsageError(f"{text}: {error}") from None
        data = repr(document_of(own) | dict.fromkeys(_NOT_OF_DATA))
        if data not in clients:
            learner = make_learner(own, allowed)
            clients[data] = learner.clients
            check_metrics(own, learner, metric)
        check_concurrency(algorithm, clients[data], text)
        runs += [
            PlannedRun(
                own.with_seed(seed), text, out / directory_name(label, point) / f"seed-{seed}",
                execution, allowed,
            )
            for seed in range(recipe.seed, recipe.seed + seeds)
        ]  # fmt: skip
        for run in runs[-seeds:]:
            _check_same(run, algorithm)
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

    Raises:
        RunError: A run failed; the other runs have been finished first.
    """
    if any(isinstance(run.execution.executor, OnRay) for run in runs):
        import_ray()  # a missing package is reported once, before any run starts
    run_planned(runs, min(processes, len(runs)), watch)
    return [read_run(run.directory) for run in runs]


def run_planned(
    runs: Iterable[PlannedRun],
    processes: int,
    watch: Callable[[RunProgress], None],
    *,
    may_diverge: bool = False,
) -> None:
    """Simulate runs, several at a time, each taken from `runs` when a process is free for it.

    SIGTERM ends it as Ctrl-C does: the runs in progress stay at a checkpoint.

    Args:
        runs: The runs.
        processes: Most runs at a time, each in a process.
        watch: Called with the reports of all runs; with a run's last one before the next run is taken.
        may_diverge: That the training of a run diverges is a result, and no failure.

    Raises:
        RunError: A run failed; the other runs have been finished first.
    """
    failed: list[str] = []
    with terminated_as_interrupted():
        for report in _reports(iter(runs), processes):
            watch(report)
            if report.error is not None and not (may_diverge and report.diverged):
                failed.append(f"{report.name}: {report.error}")
    if failed:
        raise RunError("; ".join(failed))


def _reports(runs: Iterator[PlannedRun], processes: int) -> Iterator[RunProgress]:
    context = worker_context()
    reports: Any = context.Queue()
    with ProcessPoolExecutor(processes, context, _prepare, (dict(os.environ), reports)) as pool:
        running: list[Future[None]] = [pool.submit(_run, run) for run in islice(runs, processes)]
        left = len(running)
        try:
            while left:
                try:
                    report = reports.get(timeout=0.5)
                except queue.Empty:
                    for future in running:
                        if future.done() and (error := future.exception()):  # the process itself died
                            raise RunError(f"a run's process ended: {error}") from None
                    continue
                yield report
                if report.finished:
                    started = [pool.submit(_run, run) for run in islice(runs, 1)]
                    running = [future for future in running if not future.done()] + started
                    left += len(started) - 1
        except BaseException:
            workers = list((pool._processes or {}).values())  # a pool that is shut down drops them
            pool.shutdown(wait=False, cancel_futures=True)
            for process in workers:
                process.terminate()  # its run is left at a checkpoint
            raise


_reports_queue: Any = None
_interrupted = False


def _prepare(environment: Mapping[str, str], reports: Any) -> None:
    global _reports_queue
    adopt_environment(environment)
    _reports_queue = reports
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent terminates them
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A pool's process does not outlive a parent that was killed: its run stays at its checkpoint."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(run: PlannedRun) -> None:
    """Simulate or resume a run, in a process of the pool."""
    global _interrupted
    if _interrupted:  # submitted before the parent cancelled
        return

    def watch(progress: Progress) -> None:
        _reports_queue.put(RunProgress(run.name, progress))

    failure, diverged = None, False
    resumed, before = (run.directory / DATABASE).exists(), time.process_time()
    try:
        if resumed:
            resume_run(
                run.directory, run.execution, watch=watch, callbacks=run.recipe.callbacks, allow=run.allow
            )
        else:
            run_recipe(
                run.recipe, run.execution, out=run.directory, watch=watch, label=run.label, allow=run.allow
            )
    except KeyboardInterrupt:
        _interrupted = True
        return
    except OffbeatError as error:
        failure, diverged = str(error), isinstance(error, DivergedError)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    spent = None if resumed else time.process_time() - before
    _reports_queue.put(RunProgress(run.name, None, True, failure, diverged, spent))


def _check_same(run: PlannedRun, algorithm: Algorithm) -> None:
    """Raises `UsageError` where the run's directory holds another experiment."""
    if not (run.directory / DATABASE).exists():
        return
    record = read_run(run.directory)
    recorded = record.recipe and document_of(check(record.recipe, str(record.path)))  # with today's options
    then = {**_essence(recorded), "algorithm": without_rule(record.entry("algorithm"))}
    described = {"name": algorithm.name, **algorithm.hyperparameters}
    now = {**_essence(document_of(run.recipe)), "algorithm": described}
    if (found := first_difference(then, now)) is not None:
        raise UsageError(f"{run.directory} holds another experiment's run ({found}): choose another --out")


def _essence(document: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parts of a recipe that a single run depends on."""
    return {k: v for k, v in (document or {}).items() if k not in BESIDE}
