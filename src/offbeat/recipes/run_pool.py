"""Simulation of planned runs, several at a time, each in a process of its own."""

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from offbeat.allowed import NOTHING, Allowed
from offbeat.core.errors import DivergedError, OffbeatError, RunError, UsageError
from offbeat.recipes.build import resume_run, run_recipe
from offbeat.recipes.recipe import Recipe
from offbeat.runs.schema import DATABASE
from offbeat.signals import deferred_interrupts, raised_interrupts
from offbeat.sim.execution import Execution
from offbeat.sim.executors.by_value import main_hidden
from offbeat.sim.executors.start_method import NEEDS_GUARD, UNGUARDED, adopt_environment, worker_context
from offbeat.sim.progress import Progress

_NAMED_RUNS = 3
ONE_OF_MANY = Execution(keep_checkpoint=False)
"""How a run among many is carried out: when all have ended, there shall not be a checkpoint of each."""


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
    execution: Execution = ONE_OF_MANY
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
        diverged: Whether its training has diverged: it has failed so, or the guard has ended it.
        processor: Processor seconds of the whole run. None means that it has not ended, or was resumed.
    """

    name: str
    progress: Progress | None = None
    finished: bool = False
    error: str | None = None
    diverged: bool = False
    processor: float | None = None


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
    failed: dict[str, list[str]] = {}
    with raised_interrupts():
        for report in _reports(iter(runs), processes):
            watch(report)
            if report.error is not None and not (may_diverge and report.diverged):
                failed.setdefault(report.error, []).append(report.name)
    if failed:
        raise RunError("; ".join(f"{_named(names)}: {error}" for error, names in failed.items()))


def _named(runs: Sequence[str]) -> str:
    """Names of the runs that failed in the same way: all of a few, else the first and how many more."""
    few = len(runs) <= _NAMED_RUNS
    return ", ".join(runs) if few else f"{runs[0]} and {len(runs) - 1} more runs"


def _reports(runs: Iterator[PlannedRun], processes: int) -> Iterator[RunProgress]:
    context = worker_context()
    reports: Any = context.Queue()
    with ProcessPoolExecutor(processes, context, _prepare, (dict(os.environ), reports)) as pool:
        try:
            running = [_submitted(pool, run) for run in islice(runs, processes)]
            unfinished = len(running)
            while unfinished:
                try:
                    report = reports.get(timeout=0.5)
                except queue.Empty:
                    _check_alive(running, pool)
                    continue
                yield report
                if report.finished:
                    started = [_submitted(pool, run) for run in islice(runs, 1)]
                    running = [future for future in running if not future.done()] + started
                    unfinished += len(started) - 1
        except BaseException:
            # The pool drops its processes when it is shut down.
            workers = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in workers:
                # A terminated run stays at its checkpoint.
                process.terminate()
            raise


def _submitted(pool: ProcessPoolExecutor, run: PlannedRun) -> "Future[Path | None]":
    """Hand a run to the pool, which may start a process for it.

    A process whose start is interrupted would not find what this process has removed, and say so.
    """
    with deferred_interrupts() as interrupted, main_hidden():
        future = pool.submit(_run, run)
    if interrupted():
        raise KeyboardInterrupt
    return future


def _check_alive(running: Iterable[Future[Path | None]], pool: ProcessPoolExecutor) -> None:
    """Raises `RunError` where a run has ended and will never report it, and `UsageError` without a guard."""
    processes = dict(pool._processes or {})
    for future in running:
        if not future.done():
            continue
        # A run's own error comes in its report: only a process that has died leaves one here.
        if (error := future.exception()) is not None:
            # The pool's own thread reads the exit codes.
            pool.shutdown()
            if any(process.exitcode == UNGUARDED for process in processes.values()):
                raise UsageError(NEEDS_GUARD)
            raise RunError(f"a run's process ended: {error}")
        if (directory := future.result()) is not None:
            raise RunError(
                f"another program has told the process of {directory} to end (SIGTERM): the run is at its "
                "last checkpoint; give the same command with the same directory to continue"
            )


_reports_queue: Any = None
_interrupted = False


def _prepare(environment: Mapping[str, str], reports: Any) -> None:
    global _reports_queue
    adopt_environment(environment)
    _reports_queue = reports
    # The parent terminates its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A pool's process does not outlive a parent that was killed: its run stays at its checkpoint."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(run: PlannedRun) -> Path | None:
    """Simulate or resume a run, in a process of the pool; returns its directory if it reports no end."""
    global _interrupted
    if _interrupted:
        # The run was submitted before the parent cancelled the others.
        return run.directory

    def watch(progress: Progress) -> None:
        _reports_queue.put(RunProgress(run.name, progress))

    failure, diverged, ended = None, False, None
    resumed, before = (run.directory / DATABASE).exists(), time.process_time()
    try:
        if resumed:
            ended = resume_run(
                run.directory, run.execution, watch=watch, callbacks=run.recipe.callbacks, allow=run.allow
            )
        else:
            ended = run_recipe(
                run.recipe, run.execution, out=run.directory, watch=watch, label=run.label, allow=run.allow
            )
    except KeyboardInterrupt:
        _interrupted = True
        return run.directory
    except OffbeatError as error:
        failure, diverged = str(error), isinstance(error, DivergedError)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    diverged = diverged or (ended is not None and ended.diverged)
    spent = None if resumed else time.process_time() - before
    _reports_queue.put(RunProgress(run.name, None, True, failure, diverged, spent))
    return None
